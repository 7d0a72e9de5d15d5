//! Training time of a trial over all its attempts, to be compared with time limits.

use crate::fact::training_ms_between;
use dtrain_protocol::{AttemptId, Event, StampedEvent};
use std::collections::BTreeMap;
use std::time::Duration;

/// Training time of each attempt.
#[derive(Default)]
pub(super) struct TrainingTime {
    /// Milliseconds of each attempt as stored in the ledger.
    recalled: BTreeMap<AttemptId, u64>,
    /// Time of the last event by the clock of the agent's host, in milliseconds since the Unix epoch, and
    /// milliseconds from the first `Ready` until then.
    noted: BTreeMap<AttemptId, (u64, u64)>,
}

impl TrainingTime {
    /// Creates the training time of a trial from the milliseconds of each attempt in the ledger.
    pub(super) fn from_ledger(attempts: Vec<(AttemptId, u64)>) -> Self {
        Self { recalled: attempts.into_iter().collect(), noted: BTreeMap::new() }
    }

    /// Processes an event; the events of one rank come in order.
    pub(super) fn observe(&mut self, stamped: &StampedEvent) {
        let StampedEvent { attempt, at_ms, event, .. } = stamped;
        if let Event::Ready { .. } = event {
            self.noted.entry(*attempt).or_insert((*at_ms, 0));
        }
        if let Some((last, total)) = self.noted.get_mut(attempt) {
            *total += training_ms_between(*last, *at_ms);
            *last = *at_ms;
        }
    }

    /// Returns the training time of all attempts together, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        let mut longest = self.recalled.clone();
        for (attempt, (_, total)) in &self.noted {
            let known = longest.entry(*attempt).or_default();
            *known = (*known).max(*total);
        }
        Duration::from_millis(longest.values().sum()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Rank, StepId};

    #[test]
    fn a_clock_that_is_set_does_not_change_how_long_was_trained() {
        let mut trained = TrainingTime::default();
        let mut said = |at_ms: u64, is_ready: bool| {
            let event = match is_ready {
                true => Event::Ready {
                    step: StepId(0),
                    parameters: 1,
                    device: String::new(),
                    train_samples: 1,
                    valid_samples: 1,
                    data_fingerprint: String::new(),
                    notice: None,
                },
                false => Event::Validated { step: StepId(1), loss: 1.0, accuracy: None, seconds: None },
            };
            trained.observe(&StampedEvent {
                attempt: AttemptId(1),
                rank: Rank(0),
                sequence: 0,
                at_ms,
                event,
            });
            trained.seconds()
        };
        let hour = 3_600_000;
        assert_eq!(said(10 * hour - 500, false), 0.0, "no rank is ready");
        assert_eq!(said(10 * hour, true), 0.0);
        assert_eq!(said(10 * hour + 2_000, false), 2.0);
        assert_eq!(said(11 * hour + 2_000, false), 2.0, "an hour ahead");
        assert_eq!(said(11 * hour + 5_000, false), 5.0);
        assert_eq!(said(9 * hour, false), 5.0, "two hours back");
        assert_eq!(said(9 * hour + 1_000, true), 6.0);
    }
}

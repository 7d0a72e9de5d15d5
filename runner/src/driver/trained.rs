//! How long a trial has trained, over all its attempts: what a limit of time is held against.

use crate::agent::SpoolRecord;
use crate::agent::spool::SpoolReader;
use crate::launch::Launcher;
use dtrain_protocol::{AttemptId, Event, Stamped};
use std::collections::BTreeMap;
use std::time::Duration;

/// Between two events nobody trains for longer, in milliseconds: the clock was set, or the machine slept.
const LONGEST: u64 = 600_000;

/// How long each attempt trained, from its first `Ready` to its last event: when that was by the clock of the agent's host, in
/// milliseconds since the epoch, and milliseconds until then.
#[derive(Default)]
pub(super) struct Trained(BTreeMap<AttemptId, (u64, u64)>);

impl Trained {
    /// Takes in an event; those of one rank come in order.
    pub(super) fn note(&mut self, stamped: &Stamped) {
        let Stamped { attempt, at_ms, event, .. } = stamped;
        if let Event::Ready { .. } = event {
            self.0.entry(*attempt).or_insert((*at_ms, 0));
        }
        if let Some((last, total)) = self.0.get_mut(attempt) {
            *total += at_ms.checked_sub(*last).filter(|passed| *passed <= LONGEST).unwrap_or(0);
            *last = *at_ms;
        }
    }

    /// Reads how long the attempts up to `newest` trained in what they left behind, but for the one still open.
    pub(super) fn recall(&mut self, launcher: &mut dyn Launcher, newest: AttemptId, open: Option<AttemptId>) {
        for attempt in (1..=newest.0).map(AttemptId).filter(|attempt| open != Some(*attempt)) {
            let Ok(spool) = launcher.leftover(attempt, 0) else { continue };
            let mut reader = SpoolReader::at(0, spool);
            while let Ok(record) = reader.next() {
                if let SpoolRecord::Event(stamped) = record {
                    self.note(&stamped);
                }
            }
        }
    }

    /// Seconds over all attempts.
    pub(super) fn seconds(&self) -> f64 {
        let milliseconds: u64 = self.0.values().map(|(_, total)| total).sum();
        Duration::from_millis(milliseconds).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Rank, StepId};

    #[test]
    fn a_clock_that_is_set_does_not_change_how_long_was_trained() {
        let mut trained = Trained::default();
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
                false => Event::Validated { step: StepId(1), loss: 1.0, accuracy: None },
            };
            trained.note(&Stamped { attempt: AttemptId(1), rank: Rank(0), sequence: 0, at_ms, event });
            trained.seconds()
        };
        let hour = 3_600_000;
        assert_eq!(said(10 * hour - 500, false), 0.0, "nobody is ready");
        assert_eq!(said(10 * hour, true), 0.0);
        assert_eq!(said(10 * hour + 2_000, false), 2.0);
        assert_eq!(said(11 * hour + 2_000, false), 2.0, "an hour ahead");
        assert_eq!(said(11 * hour + 5_000, false), 5.0);
        assert_eq!(said(9 * hour, false), 5.0, "two hours back");
        assert_eq!(said(9 * hour + 1_000, true), 6.0);
    }
}

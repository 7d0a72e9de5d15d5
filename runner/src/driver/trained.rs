//! How long a trial has trained, over all its attempts: what a limit of time is held against.

use crate::agent::SpoolRecord;
use crate::agent::spool::SpoolReader;
use crate::launch::Launcher;
use dtrain_protocol::{AttemptId, Event, Stamped};
use std::collections::BTreeMap;
use std::time::Duration;

/// When each attempt trained, from its first `Ready` to its last event, in milliseconds since the epoch.
#[derive(Default)]
pub(super) struct Trained(BTreeMap<AttemptId, (u64, u64)>);

impl Trained {
    /// Takes in an event; those of one rank come in order.
    pub(super) fn note(&mut self, stamped: &Stamped) {
        let Stamped { attempt, at_ms, event, .. } = stamped;
        if let Event::Ready { .. } = event {
            self.0.entry(*attempt).or_insert((*at_ms, *at_ms));
        } else if let Some((_, last)) = self.0.get_mut(attempt) {
            *last = (*last).max(*at_ms);
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
        let milliseconds: u64 = self.0.values().map(|(first, last)| last - first).sum();
        Duration::from_millis(milliseconds).as_secs_f64()
    }
}

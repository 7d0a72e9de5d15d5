//! The target of a foreign program: who watches it, and what follows.

use super::{Effect, Leader};
use crate::agent::SpoolRecord;
use dtrain_protocol::{Stamped, StopReason};

impl Leader {
    /// Whether a foreign program reports that its training is complete. The ranks of dtrain's own models know it themselves.
    pub(super) fn reaches_target(&mut self, said: &Stamped) -> bool {
        if !self.are_foreign() {
            return false;
        }
        let Some(target) = &self.settings.first.until.target else { return false };
        let results = self.reporters.results(said);
        results.into_iter().any(|(name, value)| target.is_reached(&name, value))
    }

    /// Asks the ranks to stop, and records once that they are asked: they may take long.
    pub(super) fn stop_at_target(&mut self) {
        let was_stopping = self.stopping.is_some();
        self.stop(StopReason::Target);
        if self.stopping.is_some() && !was_stopping {
            let attempt = self.settings.attempt;
            self.effects.push(Effect::Spool(SpoolRecord::TargetReached { attempt }));
        }
    }
}

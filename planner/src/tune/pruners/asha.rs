//! ASHA: asynchronous successive halving (Li et al. 2020).
//!
//! Rungs are at `min_resource`, `min_resource·eta`, `min_resource·eta²` … units of training. At a rung, a
//! trial among the best `1/eta` so far goes on, any other pauses; as more trials reach the rung, a paused one
//! may turn out to be among the best and is resumed. So no trial waits for another. The best trial of a rung
//! always goes on.

use super::rungs::Rungs;
use crate::tune::event::PruneDecision;
use crate::tune::study_trial::StudyTrial;
use serde::{Deserialize, Serialize};

/// Rule of ASHA: the spacing of the rungs, and the fraction of the trials that pass each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asha {
    /// Reduction factor: one in `eta` trials passes a rung; at least 2.
    pub eta: u32,
    /// Units of training before the first rung, at least 1.
    pub min_resource: u64,
    /// Units of training of a whole trial; all rungs are below it.
    pub max_resource: u64,
}

impl Asha {
    /// Returns the units of training at the rung with index `rung`; `None` when there is no such rung.
    pub fn level(&self, rung: u32) -> Option<u64> {
        let factor = u64::from(self.eta.max(2)).checked_pow(rung)?;
        self.min_resource.max(1).checked_mul(factor).filter(|level| *level < self.max_resource)
    }

    /// Returns the number of rungs that a trial has reached after `at` units of training.
    pub fn reached(&self, at: u64) -> u32 {
        let levels = (0..).map_while(|rung| self.level(rung));
        u32::try_from(levels.take_while(|level| *level <= at).count()).expect("a few rungs")
    }

    /// Returns the number of trials that go on, if `count` have reached a rung.
    pub(in crate::tune) fn promoted(&self, count: usize) -> usize {
        let eta = usize::try_from(self.eta.max(2)).expect("a small number");
        (count / eta).max(1)
    }

    /// Returns the decision on a trial: when its newest report reached a rung, it pauses unless it is among
    /// the best there.
    pub(in crate::tune) fn prune_decision(
        &self,
        trial: u64,
        seen: &StudyTrial,
        rungs: &Rungs,
        bracket: u32,
    ) -> PruneDecision {
        let Some((_, value)) = seen.reports.last() else { return PruneDecision::Continue };
        if !value.is_finite() {
            return PruneDecision::Stop;
        }
        // No decision between rungs.
        let before = seen.reports.len().checked_sub(2).map_or(0, |place| self.reached(seen.reports[place].0));
        if seen.rungs == before || seen.rungs == 0 {
            return PruneDecision::Continue;
        }
        let rung = rungs.at(bracket, seen.rungs - 1);
        let is_best = rung.iter().take(self.promoted(rung.len())).any(|(_, other)| *other == trial);
        if is_best { PruneDecision::Continue } else { PruneDecision::Pause }
    }
}

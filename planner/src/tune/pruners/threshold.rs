//! Threshold rule: stops a trial that reports a value above a bound, or not a number, as it has diverged.

use crate::tune::event::PruneDecision;
use crate::tune::study_trial::StudyTrial;
use serde::{Deserialize, Serialize};

/// The threshold rule: a bound on the reported values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Threshold {
    /// Highest reported value with which a trial goes on.
    pub limit: f64,
    /// Units of training before which only a value that is not a number stops a trial.
    pub warmup: u64,
}

impl Threshold {
    pub(in crate::tune) fn prune_decision(&self, seen: &StudyTrial) -> PruneDecision {
        let Some((at, value)) = seen.reports.last() else {
            return PruneDecision::Continue;
        };
        let is_above = *at >= self.warmup && *value > self.limit;
        if is_above || !value.is_finite() { PruneDecision::Stop } else { PruneDecision::Continue }
    }
}

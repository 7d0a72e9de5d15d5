//! Median rule: stops a trial whose best value is worse than the median of the values that other trials
//! reported after as much training.

use crate::tune::event::PruneDecision;
use crate::tune::outcome::median;
use crate::tune::study_trial::StudyTrial;
use serde::{Deserialize, Serialize};

/// The median rule, with the conditions for its first decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Median {
    /// Number of other trials that must have trained as long, at least 1.
    pub startup_trials: usize,
    /// Units of training before which no trial is stopped, such as those of a warm-up.
    pub warmup: u64,
}

impl Median {
    /// Returns the decision on a trial, compared at equal training: other trials count with their last report
    /// up to that of this trial.
    pub(in crate::tune) fn prune_decision(&self, trial: u64, trials: &[StudyTrial]) -> PruneDecision {
        let seen = &trials[usize::try_from(trial).expect("it was launched")];
        let Some((at, value)) = seen.reports.last() else { return PruneDecision::Continue };
        if !value.is_finite() {
            return PruneDecision::Stop;
        }
        if *at < self.warmup {
            return PruneDecision::Continue;
        }
        let others = trials.iter().zip(0..).filter(|(_, number)| *number != trial);
        let values: Vec<f64> = others.filter_map(|(other, _)| other.value_at(*at)).collect();
        if values.len() < self.startup_trials.max(1) {
            return PruneDecision::Continue;
        }
        let best = seen.reports.iter().map(|(_, value)| *value).fold(f64::INFINITY, f64::min);
        let is_worse = median(values).is_some_and(|middle| best > middle);
        if is_worse { PruneDecision::Stop } else { PruneDecision::Continue }
    }
}

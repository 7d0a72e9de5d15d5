//! Pruners: early stopping, or pausing, of trials that report worse values than others.

pub use super::pruners::asha::Asha;
pub use super::pruners::hyperband::Hyperband;
pub use super::pruners::median::Median;
pub use super::pruners::threshold::Threshold;

use super::event::PruneDecision;
use super::pruners::Rungs;
use super::study_trial::StudyTrial;
use serde::{Deserialize, Serialize};

/// Rule for early stopping: which trials are stopped or paused when they report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pruner {
    /// Stops no trial: each runs to its end.
    #[default]
    None,
    /// Stops a trial that is worse than the median of the others.
    Median(Median),
    /// Pauses a trial that is not among the best of its rung.
    Asha(Asha),
    /// Applies ASHA in several brackets, which differ in the training before the first rung.
    Hyperband(Hyperband),
    /// Stops a trial whose value is above a bound, or not a number.
    Threshold(Threshold),
}

impl Pruner {
    /// Returns the decision on a trial after its newest report. `trials` are all trials of the study, in the
    /// order of launch. Panics when the trial is not among them.
    pub(super) fn prune_decision(&self, trial: u64, trials: &[StudyTrial], rungs: &Rungs) -> PruneDecision {
        let seen = &trials[usize::try_from(trial).expect("it was launched")];
        match self {
            Self::None => PruneDecision::Continue,
            Self::Median(median) => median.prune_decision(trial, trials),
            Self::Asha(asha) => asha.prune_decision(trial, seen, rungs, 0),
            Self::Hyperband(hyperband) => {
                let bracket = hyperband.bracket(trial);
                hyperband.asha(bracket).prune_decision(trial, seen, rungs, bracket)
            }
            Self::Threshold(threshold) => threshold.prune_decision(seen),
        }
    }

    /// Returns the bracket of a trial and the rungs of that bracket; `None` if the pruner has no rungs.
    pub(super) fn rungs(&self, trial: u64) -> Option<(u32, Asha)> {
        match self {
            Self::None | Self::Median(_) | Self::Threshold(_) => None,
            Self::Asha(asha) => Some((0, *asha)),
            Self::Hyperband(hyperband) => {
                let bracket = hyperband.bracket(trial);
                Some((bracket, hyperband.asha(bracket)))
            }
        }
    }
}

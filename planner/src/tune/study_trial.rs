//! State of one trial of a study: values, reports, phase and the pruner's decision.

use super::event::{ProposalSource, PruneDecision};
use super::outcome::{TrialFailure, TrialOutcome};
use super::space::Coordinates;
use super::value::TrialValue;

/// State of one trial of a study.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyTrial {
    /// Values of the trial.
    pub values: Vec<TrialValue>,
    /// Coordinates of the values; `None` where they are not in the space.
    pub place: Option<Coordinates>,
    /// Reason for trying these values.
    pub source: ProposalSource,
    /// Training done and objective value of each report, in order; infinite where it was not finite.
    pub reports: Vec<(u64, f64)>,
    /// Phase of the trial: running, paused or ended.
    pub status: TrialPhase,
    /// Decision after the newest report; it holds until the trial is resumed.
    pub decision: PruneDecision,
    /// Number of rungs the trial has reached.
    pub rungs: u32,
}

/// Phase of a trial.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialPhase {
    /// It runs.
    Running,
    /// It is paused and can be resumed.
    Paused,
    /// It ended.
    Ended(TrialOutcome),
}

impl StudyTrial {
    /// Returns the value reported after `at` units of training; `None` when it has not trained that long.
    pub fn value_at(&self, at: u64) -> Option<f64> {
        let after = self.reports.partition_point(|(done, _)| *done <= at);
        let has_trained = self.reports.last().is_some_and(|(done, _)| *done >= at);
        has_trained.then(|| Some(self.reports[after.checked_sub(1)?].1)).flatten()
    }

    /// Returns `true` if its machines failed: its values are tried again, as another trial.
    pub fn is_lost(&self) -> bool {
        matches!(self.status, TrialPhase::Ended(TrialOutcome::Failed { reason: TrialFailure::Lost }))
    }
}

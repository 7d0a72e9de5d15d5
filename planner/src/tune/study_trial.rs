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
    /// Origin of the values.
    pub source: ProposalSource,
    /// Training done and objective value at each report, in order; the value is infinite where it was not
    /// finite.
    pub reports: Vec<(u64, f64)>,
    /// Phase that the trial is in.
    pub status: TrialPhase,
    /// Decision of the pruner after the newest report; it holds until the trial is resumed.
    pub decision: PruneDecision,
    /// Number of rungs that the trial has reached.
    pub rungs: u32,
}

/// Phase that a trial is in.
#[derive(Clone, Debug, PartialEq)]
pub enum TrialPhase {
    /// The trial is running.
    Running,
    /// The trial is paused and can be resumed.
    Paused,
    /// The trial has ended with the given result.
    Ended(TrialOutcome),
}

impl StudyTrial {
    /// Returns the value that the trial had reported after `at` units of training; `None` when it has not
    /// trained that long.
    pub fn value_at(&self, at: u64) -> Option<f64> {
        let after = self.reports.partition_point(|(done, _)| *done <= at);
        let has_trained = self.reports.last().is_some_and(|(done, _)| *done >= at);
        has_trained.then(|| Some(self.reports[after.checked_sub(1)?].1)).flatten()
    }

    /// Returns `true` if the machines of the trial failed, so that its values are tried again as another
    /// trial.
    pub fn is_lost(&self) -> bool {
        matches!(self.status, TrialPhase::Ended(TrialOutcome::Failed { reason: TrialFailure::Lost }))
    }
}

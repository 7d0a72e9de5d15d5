//! Results of trials: completed, failed or pruned.

use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// Result of a trial. A failed trial is a result too, never an error, since the study learns from it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
    /// The trial ran to its end.
    Done {
        /// Final objective value, to be minimized; finite.
        value: f64,
    },
    /// The trial failed and has no value.
    Failed {
        /// Cause of the failure.
        reason: TrialFailure,
    },
    /// The trial was stopped early because others did better.
    Pruned {
        /// Last objective value, to be minimized; finite.
        value: f64,
    },
}

impl TrialOutcome {
    /// Returns the result of a trial that ended with `value`; one whose value is not finite has diverged.
    pub fn done(value: f64) -> Self {
        if value.is_finite() { Self::Done { value } } else { Self::Failed { reason: TrialFailure::Diverged } }
    }
}

/// Cause for which a trial failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialFailure {
    /// The trial ran out of memory.
    OutOfMemory,
    /// The loss of the trial was not finite.
    Diverged,
    /// The planner has no candidate for these values.
    Rejected,
    /// The program of the trial crashed.
    Crashed,
    /// The trial ended without measuring the metric.
    Unmeasured,
    /// The machines of the trial failed, which tells nothing about its values.
    Lost,
}

impl TrialFailure {
    /// Returns `true` if the values of the trial caused the failure, so that similar values would fail too.
    pub fn depends_on_values(self) -> bool {
        match self {
            Self::OutOfMemory | Self::Diverged | Self::Rejected | Self::Crashed | Self::Unmeasured => true,
            Self::Lost => false,
        }
    }
}

/// A trial that has ended: its values and its result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// Values of the trial, one for each dimension of the space.
    pub values: Vec<TrialValue>,
    /// Result of the trial.
    pub outcome: TrialOutcome,
}

impl TrialResult {
    /// Returns the objective value of the trial if it ran to its end.
    pub fn value(&self) -> Option<f64> {
        match self.outcome {
            TrialOutcome::Done { value } => Some(value).filter(|value| value.is_finite()),
            TrialOutcome::Failed { .. } | TrialOutcome::Pruned { .. } => None,
        }
    }
}

/// Returns the median of `values`: the upper of the two middle values if their count is even; `None` if there
/// are none.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_kept_as_words() {
        let text = |outcome: TrialOutcome| serde_json::to_string(&outcome).expect("outcomes are plain");
        assert_eq!(text(TrialOutcome::done(2.5)), r#"{"done":{"value":2.5}}"#);
        assert_eq!(text(TrialOutcome::done(f64::INFINITY)), r#"{"failed":{"reason":"diverged"}}"#);
    }
}

//! How trials ended, as what a study learns from.

use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// How a trial ended. A trial that failed has taught something: it is an outcome, never an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialOutcome {
    /// It ran to its end.
    Done {
        /// What is to be made small, finite.
        value: f64,
    },
    /// It has no value.
    Failed {
        /// Why.
        reason: TrialFailure,
    },
    /// It was stopped because others did better.
    Pruned {
        /// What was to be made small when it was stopped, finite.
        value: f64,
    },
}

impl TrialOutcome {
    /// A trial that ran to its end with `value`; one whose value is no number has diverged.
    pub fn done(value: f64) -> Self {
        if value.is_finite() { Self::Done { value } } else { Self::Failed { reason: TrialFailure::Diverged } }
    }
}

/// Why a trial has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrialFailure {
    /// It needed more memory than there is.
    OutOfMemory,
    /// Its loss was no longer a number.
    Diverged,
    /// No candidate with these values can be trained.
    Rejected,
    /// The program failed.
    Crashed,
    /// It ended, and the metric was never measured.
    Unmeasured,
    /// The machines failed; says nothing about the values.
    Lost,
}

impl TrialFailure {
    /// Whether the values are to blame, so that those near them would fail too.
    pub fn depends_on_values(self) -> bool {
        match self {
            Self::OutOfMemory | Self::Diverged | Self::Rejected | Self::Crashed | Self::Unmeasured => true,
            Self::Lost => false,
        }
    }
}

/// A trial that ended: what it tried and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialResult {
    /// A value for every dimension of the space.
    pub values: Vec<TrialValue>,
    /// What came of it.
    pub outcome: TrialOutcome,
}

impl TrialResult {
    /// What is to be made small, of a trial that ran to its end.
    pub fn value(&self) -> Option<f64> {
        match self.outcome {
            TrialOutcome::Done { value } => Some(value).filter(|value| value.is_finite()),
            TrialOutcome::Failed { .. } | TrialOutcome::Pruned { .. } => None,
        }
    }
}

/// The middle value, the upper one of two; `None` of nothing.
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

//! The objective of a training: its metric, and its stop conditions.

use crate::keyword_enum::keyword_enum;
use crate::units::{Samples, Seconds, Tokens};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The metric to optimise, and the stop conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Metric to optimise.
    pub metric: Metric,
    /// Direction of a metric that a program reports; [`Objective::goal()`] returns that of every metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// Stop conditions; training ends when the first one holds. At least one of `steps`, `samples`, `tokens`,
    /// `epochs` or `time` is set, except for a foreign command, which ends by itself.
    pub stop: StopConditions,
}

/// A metric that training optimises.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Metric {
    /// `valid.loss`: mean cross-entropy over the validation samples, in nats; lower is better.
    ValidLoss,
    /// `valid.accuracy`: share of validation samples classified right; higher is better.
    ValidAccuracy,
    /// A metric that a program reports under this name.
    Named(String),
}

keyword_enum! {
    /// The direction in which a metric improves.
    pub enum Goal {
        /// Lower is better.
        Min = "min",
        /// Higher is better.
        Max = "max",
    }
}

impl Metric {
    /// Returns the name in recipes and in the history.
    pub fn name(&self) -> &str {
        match self {
            Self::ValidLoss => "valid.loss",
            Self::ValidAccuracy => "valid.accuracy",
            Self::Named(name) => name,
        }
    }
}

impl From<String> for Metric {
    fn from(name: String) -> Self {
        match name.as_str() {
            "valid.loss" => Self::ValidLoss,
            "valid.accuracy" => Self::ValidAccuracy,
            // Any other name is a metric that a program reports.
            _ => Self::Named(name),
        }
    }
}

impl From<Metric> for String {
    fn from(metric: Metric) -> Self {
        metric.name().to_owned()
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Goal {
    /// Returns a value with its sign changed if needed, so that lower is better.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            Self::Min => value,
            Self::Max => -value,
        }
    }

    /// Returns `true` if a value is at least as good as the target.
    pub fn is_reached(self, value: f64, target: f64) -> bool {
        match self {
            Self::Min => value <= target,
            Self::Max => value >= target,
        }
    }
}

impl Objective {
    /// Returns the direction in which the metric improves.
    pub fn goal(&self) -> Goal {
        match self.metric {
            Metric::ValidLoss => Goal::Min,
            Metric::ValidAccuracy => Goal::Max,
            Metric::Named(_) => self.goal.unwrap_or(Goal::Min),
        }
    }
}

/// Conditions that end training.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Optimizer steps.
    pub steps: Option<u64>,
    /// Samples.
    pub samples: Option<Samples>,
    /// Tokens.
    pub tokens: Option<Tokens>,
    /// Passes over the training data.
    pub epochs: Option<f64>,
    /// Training time, summed over all attempts.
    pub time: Option<Seconds>,
    /// Value of the metric.
    pub target: Option<f64>,
}

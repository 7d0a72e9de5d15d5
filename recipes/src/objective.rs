//! The objective of a training: the metric to optimize, and the stop conditions.

use crate::keyword_enum::keyword_enum;
use crate::units::{Samples, Seconds, Tokens};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The objective of a training: the metric to optimize, and the stop conditions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Metric that training optimizes.
    pub metric: Metric,
    /// Direction in which a metric that a program reports improves; `None` for dtrain's own metrics. To read
    /// it, use [`Objective::goal()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// Stop conditions; training ends when the first one holds. At least one of `steps`, `samples`, `tokens`,
    /// `epochs` or `time` is set, except for a foreign command, which ends by itself.
    pub stop: StopConditions,
}

/// A metric that training optimizes.
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
    /// Returns the name of the metric in recipes and in the history.
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
    /// Returns `value` as a cost, of which lower is better: with its sign changed if higher is better.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            Self::Min => value,
            Self::Max => -value,
        }
    }

    /// Returns `true` if `value` is at least as good as `target`.
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

/// The conditions that end training; each is `None` if it is not set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopConditions {
    /// Number of optimizer steps after which training ends.
    pub steps: Option<u64>,
    /// Number of training samples after which training ends.
    pub samples: Option<Samples>,
    /// Number of tokens after which training ends.
    pub tokens: Option<Tokens>,
    /// Number of passes over the training data after which training ends.
    pub epochs: Option<f64>,
    /// Training time, summed over all attempts, after which training ends.
    pub time: Option<Seconds>,
    /// Target value of the metric, which ends training when it is reached.
    pub target: Option<f64>,
}

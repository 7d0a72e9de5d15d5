//! What "better" means, and when to stop.

use crate::keyword_enum::keyword_enum;
use crate::units::{Samples, Seconds, Tokens};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is to be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Metric to optimise.
    pub metric: Metric,
    /// Which way it is better, as the recipe says; [`Objective::goal`] knows it of every metric.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// When training ends; the first condition that holds. At least one of `steps`, `samples`,
    /// `tokens`, `epochs` or `time` is set, but for a foreign command, which ends by itself.
    pub stop: StopConditions,
}

/// A figure of merit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Metric {
    /// `valid.loss`: mean cross-entropy over the validation samples, in nats; lower is better.
    ValidLoss,
    /// `valid.accuracy`: share of validation samples classified right; higher is better.
    ValidAccuracy,
    /// One that a program reports under this name.
    Named(String),
}

keyword_enum! {
    /// Which way a metric is better.
    pub enum Goal {
        /// Lower is better.
        Min = "min",
        /// Higher is better.
        Max = "max",
    }
}

impl Metric {
    /// As recipes and the history call it.
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
            // Programs report metrics under names of their own.
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
    /// A value turned so that smaller is better.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            Self::Min => value,
            Self::Max => -value,
        }
    }

    /// Whether a value is at least as good as another.
    pub fn is_reached(self, value: f64, target: f64) -> bool {
        match self {
            Self::Min => value <= target,
            Self::Max => value >= target,
        }
    }
}

impl Objective {
    /// Which way the metric is better.
    pub fn goal(&self) -> Goal {
        match self.metric {
            Metric::ValidLoss => Goal::Min,
            Metric::ValidAccuracy => Goal::Max,
            Metric::Named(_) => self.goal.unwrap_or(Goal::Min),
        }
    }
}

/// When training ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StopConditions {
    /// After this many optimizer steps.
    pub steps: Option<u64>,
    /// After this many samples.
    pub samples: Option<Samples>,
    /// After this many tokens.
    pub tokens: Option<Tokens>,
    /// After this many passes over the training data.
    pub epochs: Option<f64>,
    /// After this long, counted over all attempts.
    pub time: Option<Seconds>,
    /// When the metric reaches this value.
    pub target: Option<f64>,
}

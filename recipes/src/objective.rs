//! What "better" means, and when to stop.

use crate::units::{Samples, Seconds, Tokens};
use serde::{Deserialize, Serialize};

/// What is to be reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    /// Metric to optimise.
    pub metric: Metric,
    /// When training ends; the first condition that holds. At least one of `steps`, `samples`,
    /// `tokens`, `epochs` or `time` is set, but for a foreign command, which ends by itself.
    pub stop: Stop,
}

/// A figure of merit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Metric {
    /// Mean cross-entropy over the validation samples, in nats; lower is better.
    #[serde(rename = "valid.loss")]
    ValidLoss,
    /// Share of validation samples classified right; higher is better.
    #[serde(rename = "valid.accuracy")]
    ValidAccuracy,
}

/// When training ends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stop {
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

//! Inputs of the cost model: model, optimizer, host, engine and measured rates.

use crate::engine::Engine;
use crate::rates::calibrate::Factors;
use dtrain_protocol::{HostFacts, Rates};
use dtrain_recipes::{Model, Optimizer};

/// Inputs of the cost model: all that a price depends on, except the candidate.
#[derive(Clone, Copy, Debug)]
pub struct CostInputs<'a> {
    /// Model to train.
    pub model: &'a Model,
    /// Optimizer of the training.
    pub optimizer: &'a Optimizer,
    /// Facts about the hosts that train.
    pub host: &'a HostFacts,
    /// Another engine for which the plan will be emitted; `None` for dtrain's own worker.
    pub engine: Option<&'static dyn Engine>,
    /// Measured speeds of the host; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Calibration factors for predicted times, from earlier trials.
    pub factors: Factors,
}

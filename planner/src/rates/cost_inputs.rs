//! Inputs of the cost model: model, optimizer, host, engine and measured rates.

use crate::engine::Engine;
use crate::rates::calibrate::Factors;
use dtrain_protocol::{HostFacts, Rates};
use dtrain_recipes::{Model, Optimizer};

/// Inputs of the cost model: everything but the layout.
#[derive(Clone, Copy, Debug)]
pub struct CostInputs<'a> {
    /// The model.
    pub model: &'a Model,
    /// The optimizer.
    pub optimizer: &'a Optimizer,
    /// Facts about the host that trains.
    pub host: &'a HostFacts,
    /// Another engine for which the plan will be emitted.
    pub engine: Option<&'static dyn Engine>,
    /// Measured speeds; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Correction factors from earlier trials.
    pub factors: Factors,
}

//! Inputs of the cost model: model, optimizer, host, engine and measured rates.

use crate::engine::Engine;
use crate::hardware::{HostGroup, Machine};
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
    /// Data sheets of the hosts; `None` for those that the names of the GPUs in `host` lead to.
    pub group: Option<HostGroup>,
    /// Another engine for which the plan will be emitted; `None` for dtrain's own worker.
    pub engine: Option<&'static dyn Engine>,
    /// Measured speeds of the host; `None` falls back to the data sheet.
    pub rates: Option<&'a Rates>,
    /// Calibration factors for predicted times, from earlier trials.
    pub factors: Factors,
}

impl CostInputs<'_> {
    /// Returns the data sheets of the hosts; `None` if they have no GPU.
    pub(crate) fn host_group(&self) -> Option<HostGroup> {
        self.group.or_else(|| Machine::of_host(self.host).map(|machine| machine.groups[0]))
    }
}

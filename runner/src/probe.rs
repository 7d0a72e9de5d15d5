//! Measures how fast this host trains a model: for each number of ranks, as many worker processes side by side.

use crate::agent::Program;
use dtrain_protocol::{Gpu, HostFacts, Rates};
use dtrain_recipes::Model;

/// What is to be measured.
pub struct Probe<'a> {
    /// The program of a rank that measures: reads a `ProbeRequest`, answers `RankRates`.
    pub worker: Program,
    /// What is to be trained.
    pub model: &'a Model,
    /// Digest of the model.
    pub model_digest: &'a str,
    /// The host, from [`host_facts`].
    pub host: HostFacts,
    /// Micro-batches to measure, ascending.
    pub micro_batches: Vec<u32>,
    /// Seconds all measurements together may take.
    pub budget_seconds: f64,
}

/// Measures one number of ranks after the other; `progress` is told ranks and threads of each before it begins.
pub fn rates(probe: &Probe<'_>, progress: &mut dyn FnMut(u32, u32)) -> Result<Rates, ProbeError> {
    let _ = (probe, progress);
    todo!()
}

/// What the planner must know of this host. `gpus` are those that the worker can use.
pub fn host_facts(gpus: Vec<Gpu>) -> HostFacts {
    let _ = gpus;
    todo!()
}

/// The host could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// A worker could not be started, or said nothing that can be used.
    #[error("cannot measure {ranks} ranks: {reason}")]
    Worker {
        /// Ranks that ran side by side.
        ranks: u32,
        /// What went wrong.
        reason: String,
    },
}

//! The samplers, one in each file.

pub(super) mod auto;
pub(super) mod cma_es;
pub(super) mod evolution;
pub(super) mod gaussian;
pub(super) mod grid;
mod parzen;
pub(super) mod random;
pub(super) mod sobol;
pub(super) mod swarm;
pub(super) mod tpe;

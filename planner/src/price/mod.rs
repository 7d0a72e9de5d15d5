//! Seconds and bytes of a step of dtrain's own worker, from its rates.

pub mod estimate;
pub mod cost_model;
pub mod memory;
pub mod estimator;
pub mod timing;

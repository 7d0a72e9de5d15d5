//! Seconds and bytes of a step of dtrain's own worker, from its rates.

pub mod cost_model;
pub mod estimate;
pub mod estimator;
pub mod memory;
pub mod timing;

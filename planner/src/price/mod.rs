//! Seconds and bytes of a step of dtrain's own worker, from its rates.

pub mod estimate;
pub mod judge;
pub mod memory;
pub mod pricing;
pub mod timing;

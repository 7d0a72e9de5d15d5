//! Price of a candidate: seconds and bytes of a step of dtrain's own worker, from its rates.

pub mod candidate_cost;
pub mod cost_model;
pub mod estimate;
pub mod memory;
pub mod step_profile;
pub mod timing;

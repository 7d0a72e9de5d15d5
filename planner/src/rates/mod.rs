//! Speeds of ranks and links: measured, extrapolated from a measurement, or from the data sheet.

pub mod all_reduce;
pub mod calibrate;
pub mod compute;
pub mod cost_inputs;
pub(crate) mod custom_model;

pub mod forward_work;
pub mod measured_precision;
pub(crate) mod members_on_host;
pub mod speeds;

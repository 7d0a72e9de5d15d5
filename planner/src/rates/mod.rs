//! Speeds of ranks and links: measured, extrapolated from a measurement, or from the data sheet.

pub mod calibrate;
pub mod compute;
pub mod cost_inputs;
pub(crate) mod custom_model;
pub mod drift;
pub mod forward_work;
pub mod hardware;
pub mod network;
pub mod probing;
pub mod speeds;

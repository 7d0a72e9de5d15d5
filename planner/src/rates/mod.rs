//! Speeds of ranks and links: measured, extrapolated from a measurement, or from the data sheet.

pub mod calibrate;
pub mod compute;
pub(crate) mod custom_model;
pub mod drift;
pub mod hardware;
pub mod network;
pub mod probing;
pub mod speeds;

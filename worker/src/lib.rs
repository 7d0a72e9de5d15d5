//! The worker: trains one rank. It is the only crate that uses burn.
//!
//! It follows its [`dtrain_protocol::Assignment`] exactly, and decides nothing. [`run`], [`probe()`],
//! [`examine()`], [`sample()`], [`predict()`] and [`evaluate()`] are the hidden subcommands `dtrain worker`,
//! and its `probe`, `device`, `sample`, `predict` and `evaluate`: all of them exchange frames on standard
//! input and output, see [`dtrain_protocol::frame`].

pub mod checkpoint;
pub mod comm;
pub mod data;
pub mod device;
mod device_check;
pub mod generate;
pub mod gradient_accumulation;
pub mod hub;
pub mod inference;
pub mod mesh;
mod model;
pub mod network;
mod ops;
pub mod optimizer;
pub mod parallel;
pub mod pretrained;
pub mod probe;
pub mod session;
pub mod stage;

pub mod engine_rank;
mod entry_points;
mod files;
mod loss_scale;
mod median;
mod memory;
mod out_of_memory;
mod panic_failure;
mod snapshot;
mod step_timer;
mod train_step;
pub mod zero;

/// The library that networks are built with; see [`network`].
pub use burn;
pub use entry_points::{evaluate, examine, predict, probe, run, sample};
pub use step_timer::Slowdown;

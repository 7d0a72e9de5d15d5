//! Parallelism: one module for each way to divide a step among ranks.
//!
//! What ranks divide inside of a pass is below: `network/tensor_parallel.rs` cuts matrices, and in sequence
//! mode sequences, `network/context_parallel.rs` sequences, `ops/token_routes.rs` sends tokens to their
//! experts and back, and `stage/sharded.rs` gathers the weights of ZeRO 3.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `all_reduce_buckets` | samples among replicas | in backward, in rank order |
//! | `reduce_scatter` | state in a shard group (ZeRO) | in backward, after the update |
//! | `sync` | nothing: replicas are only nearly equal | fewer values, or not in every step |
//! | `pipeline` | blocks among stages, in chunks | between passes, by `Exchange` actions |
//! | `sequence_parallel` | sequences between cut layers | gradients, once a step |
//! | `clip_grad_norm`, `step_totals` | nothing | once a step: norms, losses, time, stops |
//!
//! `device_all_reduce` is `all_reduce_buckets` on a device, `weight_update` updates sharded weights, and
//! `gradient_noise` estimates the noise scale.

mod all_reduce_buckets;
mod clip_grad_norm;
mod device_all_reduce;
mod gradient_noise;
mod gradient_reduction;
pub(crate) mod pipeline;
mod reduce_scatter;
pub(crate) mod sequence_parallel;
pub mod step_totals;
pub mod sync;
mod weight_update;

pub use all_reduce_buckets::{ELEMENTS, GradientBuckets};
pub use clip_grad_norm::{clip_factor, grad_norm_squared};
pub use device_all_reduce::DeviceGradientBuckets;
pub use gradient_noise::NoiseGauge;
pub use gradient_reduction::GradientReduction;
pub use step_totals::StepTotals;
pub(crate) use weight_update::update;

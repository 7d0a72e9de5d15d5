//! Parallelism: one module for each way to divide a step among ranks.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `gradient_buckets` | samples among replicas | in backward, in rank order |
//! | `zero`, `reduce_scatter` | state in a shard group (ZeRO) | in backward, after the update |
//! | `sync` | nothing: replicas are only nearly equal | fewer values, or not in every step |
//! | `pipeline` | blocks among stages, in chunks | between passes, by `Exchange` actions |
//! | `tensor` | matrices; in sequence mode sequences | entering and leaving cut layers |
//! | `context` | sequences: an early and a late piece | keys and values, around a ring |
//! | `expert` | experts; ranks read their own samples | tokens to their experts and back |
//! | `grad_norm`, `step_totals` | nothing | once a step: norms, losses, time, stops |
//!
//! `device_gradient_buckets` is `gradient_buckets` on a device, `weight_update` updates sharded weights, and
//! `gradient_noise` estimates the noise scale.

pub(crate) mod context;
mod device_gradient_buckets;
mod expert;
mod grad_norm;
mod gradient_buckets;
mod gradient_noise;
mod gradient_reduction;
pub(crate) mod pipeline;
mod reduce_scatter;
pub mod step_totals;
pub mod sync;
pub(crate) mod tensor;
mod weight_update;
mod zero;

pub use device_gradient_buckets::DeviceGradientBuckets;
pub(crate) use expert::TokenRoutes;
pub use grad_norm::grad_norm_squared;
pub use gradient_buckets::{ELEMENTS, GradientBuckets};
pub use gradient_noise::NoiseGauge;
pub use gradient_reduction::GradientReduction;
pub use step_totals::StepTotals;
pub(crate) use weight_update::update;
pub use zero::{ParameterBucket, ZeroShards};

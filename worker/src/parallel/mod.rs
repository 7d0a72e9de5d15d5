//! Parallelism: one module for each way to divide a step among ranks.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `gradient_buckets` | samples among replicas | in backward, in rank order |
//! | `zero`, `reduce_scatter` | state in a shard group (ZeRO) | in backward, after the update |
//! | `sync` | nothing: replicas are only nearly equal | fewer values, or not in every step |
//! | `all_gather_queue` | weights of ZeRO 3 | weights, while the unit before computes |
//! | `pipeline` | blocks among stages, in chunks | between passes, by `Exchange` actions |
//! | `tensor` | matrices; in sequence mode sequences | entering and leaving cut layers |
//! | `context` | sequences: an early and a late piece | keys and values, around a ring |
//! | `expert` | experts; ranks read their own samples | tokens to their experts and back |
//! | `grad_norm`, `step_totals` | nothing | once a step: norms, losses, time, stops |
//!
//! `device_gradient_buckets` is `gradient_buckets` on a device, `comm_queue` runs collectives beside the
//! computation, `weight_update` updates sharded weights, and `gradient_noise` estimates the noise scale.
//! `model_parallel_groups` holds the groups of `tensor`, `context` and `expert`, which communicate in the
//! middle of a pass.

mod all_gather_queue;
mod comm_queue;
pub(crate) mod context;
mod device_gradient_buckets;
mod expert;
mod grad_norm;
mod gradient_buckets;
mod gradient_noise;
mod gradient_reduction;
mod mesh;
mod model_parallel_groups;
pub(crate) mod pipeline;
mod reduce_scatter;
pub mod step_totals;
pub mod sync;
pub(crate) mod tensor;
mod weight_update;
mod zero;

pub use all_gather_queue::AllGatherQueue;
pub use comm_queue::CommQueue;
pub use device_gradient_buckets::DeviceGradientBuckets;
pub(crate) use expert::TokenRoutes;
pub use grad_norm::grad_norm_squared;
pub use gradient_buckets::{ELEMENTS, GradientBuckets};
pub use gradient_noise::NoiseGauge;
pub use gradient_reduction::GradientReduction;
pub use mesh::{Mesh, ShardGroups};
pub use model_parallel_groups::{ModelParallelGroups, Peers};
pub use step_totals::StepTotals;
pub(crate) use weight_update::update;
pub use zero::{ParameterBucket, ZeroShards};

//! How ranks work together on one step: one module for each way to divide the work.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `gradient_buckets`, `device_gradient_buckets`, `comm_queue` | samples among replicas | during backward, in rank order |
//! | `zero`, `reduce_scatter`, `weight_update` | state among a shard group (ZeRO 1, 2, 3) | during backward, and after the update |
//! | `sync` | nothing: replicas that are equal only approximately | less than all gradients, or not in every step |
//! | `all_gather_queue` | weights of ZeRO 3, present while their unit computes | while the unit before computes |
//! | `pipeline` | blocks among stages, in one or several chunks | between passes, by `Exchange` actions |
//! | `tensor` | matrices, and in sequence mode the sequence between them | when entering and leaving layers that are cut |
//! | `context` | sequences: an early and a late piece for each rank | keys and values travel around a ring |
//! | `expert` | experts; each rank reads its own samples | tokens to their experts and back |
//! | `grad_norm`, `gradient_noise`, `step_totals` | nothing | once a step: norms, noise scale, losses, the time, and whether to stop |
//!
//! `model_parallel_groups` holds the groups of `tensor`, `context` and `expert`, which communicate in the middle of a pass.

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

//! How ranks work together on one step: one module for each way to divide the work.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `bucket`, `device_bucket`, `comm_queue` | samples among replicas | during backward, in rank order |
//! | `shard`, `reduce_scatter`, `update` | state among a shard group (ZeRO 1, 2, 3) | during backward, and after the update |
//! | `sync` | nothing: replicas that are equal only approximately | less than all gradients, or not in every step |
//! | `gatherer` | weights of ZeRO 3, present while their unit computes | while the unit before computes |
//! | `pipeline` | blocks among stages, in one or several chunks | between passes, by `Exchange` actions |
//! | `tensor` | matrices, and in sequence mode the sequence between them | when entering and leaving layers that are cut |
//! | `context` | sequences: an early and a late piece for each rank | keys and values travel around a ring |
//! | `expert` | experts; each rank reads its own samples | tokens to their experts and back |
//! | `norm`, `noise`, `step_totals` | nothing | once a step: norms, noise scale, losses, the time, and whether to stop |
//!
//! `partners` holds the groups of `tensor`, `context` and `expert`, which communicate in the middle of a pass.

mod bucket;
mod comm_queue;
pub(crate) mod context;
mod device_bucket;
mod expert;
mod gatherer;
mod mesh;
mod noise;
mod norm;
mod partners;
pub(crate) mod pipeline;
mod reduce_scatter;
mod reduction;
mod shard;
pub mod step_totals;
pub mod sync;
pub(crate) mod tensor;
mod update;

pub use bucket::{Buckets, ELEMENTS};
pub use comm_queue::CommQueue;
pub use device_bucket::DeviceBuckets;
pub(crate) use expert::Routes;
pub use gatherer::Gatherer;
pub use mesh::{Mesh, Sharding};
pub use noise::NoiseGauge;
pub use norm::norm_squared;
pub use partners::{Partners, Peers};
pub use reduction::Reduction;
pub use shard::{Pack, Shards};
pub use step_totals::StepTotals;
pub(crate) use update::update;

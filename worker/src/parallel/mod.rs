//! How ranks work together on one step: one module for each way to divide the work.
//!
//! | module | divides | communicates |
//! |---|---|---|
//! | `bucket`, `courier` | samples among replicas | during backward, in rank order |
//! | `shard`, `scatter`, `update` | state among a shard group (ZeRO 1, 2, 3) | during backward, and after the update |
//! | `sync` | nothing: replicas that are equal only approximately | less than all gradients, or not in every step |
//! | `gatherer` | weights of ZeRO 3, present while their unit computes | while the unit before computes |
//! | `pipeline` | blocks among stages, in one or several chunks | between passes, by `Exchange` actions |
//! | `tensor` | matrices, and in sequence mode the sequence between them | when entering and leaving split layers |
//! | `context` | sequences: an early and a late piece for each rank | keys and values travel around a ring |
//! | `expert` | experts; each rank reads its own samples | tokens to their experts and back |
//! | `norm`, `noise`, `tally` | nothing | once a step: norms, noise scale, losses, the time, and whether to stop |
//!
//! `partners` holds the groups of `tensor`, `context` and `expert`, which communicate in the middle of a pass.

mod bucket;
pub(crate) mod context;
mod courier;
mod expert;
mod gatherer;
mod mesh;
mod noise;
mod norm;
mod partners;
pub(crate) mod pipeline;
mod reduction;
mod scatter;
mod shard;
pub mod sync;
pub mod tally;
pub(crate) mod tensor;
mod update;

pub use bucket::{Buckets, ELEMENTS};
pub use courier::Courier;
pub(crate) use expert::Routes;
pub use gatherer::Gatherer;
pub use mesh::{Mesh, Sharding};
pub use noise::NoiseGauge;
pub use norm::norm_squared;
pub use partners::{Partners, Peers};
pub use reduction::Reduction;
pub use shard::{Pack, Shards};
pub use tally::{Ballot, Tally};
pub(crate) use update::update;

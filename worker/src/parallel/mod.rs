//! How ranks work together on one step: each way of cutting work is one room.

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

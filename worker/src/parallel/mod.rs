//! How ranks work together on one step: each way of cutting work is one room.

mod bucket;
mod courier;
mod mesh;
mod norm;
mod partners;
pub(crate) mod pipeline;
pub mod tally;

pub use bucket::{Buckets, ELEMENTS};
pub use courier::Courier;
pub use mesh::Mesh;
pub use norm::norm_squared;
pub use partners::{Partners, Peers};
pub use tally::{Ballot, Tally};

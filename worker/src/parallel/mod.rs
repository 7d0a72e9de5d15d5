//! How gradients meet those of the other replicas.

pub mod bucket;
pub mod courier;
pub mod tally;

pub use bucket::Buckets;
pub use courier::Courier;
pub use tally::{Ballot, Tally};

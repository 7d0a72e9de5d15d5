//! Replicas that are kept alike approximately, for less communication: each way is one room.

mod half;
mod largest;
mod low_rank;
mod outer;
mod wire;

pub use half::Half;
pub(super) use half::sum;
pub use largest::Largest;
pub use low_rank::LowRank;
pub use outer::{Outer, norms_squared, put};
pub use wire::Wire;

//! Approximate synchronization: replicas that are equal only approximately, for less communication. One
//! module for each method.
//!
//! The planner never chooses this by itself. Sums are rounded to 16 bits, or only the largest values are
//! sent, or two factors of low rank; the rest is added in the next step (error feedback). With `every`
//! above 1 each replica updates its own weights, and the mean of their changes makes an outer step with
//! momentum. The error feedback, the own weights and the outer moments of a replica belong to the
//! checkpoint, by the number of the replica; another number of replicas resets them, with a notice. All of
//! it is deterministic. Error feedback is unscaled, and free of batches that overflowed
//! (`error_feedback_rollback`).

mod compression;
mod error_feedback_rollback;
mod outer_optimizer;
mod power_sgd;
mod top_k;

pub use compression::VectorCompressor;
pub use outer_optimizer::{OuterOptimizer, norms_squared, put};
pub use power_sgd::PowerSgdCompressor;
pub use top_k::TopKCompressor;

//! Rejections: reasons why a candidate cannot be used.

use dtrain_recipes::Bytes;
use serde::{Deserialize, Serialize};

/// Reason why a candidate cannot be used, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The global batch does not split evenly into micro-batches on all replicas.
    #[error("a batch of {batch} cannot be split into micro-batches of {micro} on {replicas} replicas")]
    BatchDoesNotDivide {
        /// Samples of one step, over all replicas.
        batch: u64,
        /// Samples of one forward pass on one replica.
        micro: u32,
        /// Number of replicas that share the batch.
        replicas: u32,
    },
    /// The candidate needs more memory than a rank may use.
    #[error("it needs {needed} on each rank; {available} are available")]
    TooMuchMemory {
        /// Peak memory of one rank with the candidate.
        needed: Bytes,
        /// Memory that one rank may use.
        available: Bytes,
    },
    /// One tensor is larger than the device allows, even with enough free memory.
    #[error("{tensor} would be one tensor of {needed}; a GPU here gives at most {limit} to one")]
    TooLargeTensor {
        /// Description of the tensor in words.
        tensor: String,
        /// Size of the tensor on one rank.
        needed: Bytes,
        /// Size of the largest tensor that the device allows.
        limit: Bytes,
    },
    /// A dimension of the model is not divisible by a degree of the layout.
    #[error("{dimension} = {size} cannot be split {degree} ways")]
    DoesNotDivide {
        /// Key of the dimension in the recipe, such as `model.heads`.
        dimension: String,
        /// Size of the dimension in the model.
        size: u32,
        /// Degree of parallelism that would split the dimension.
        degree: u32,
    },
    /// The worker does not support the candidate; the text says why.
    #[error("{0}")]
    CannotRun(String),
    /// The engine for which the plan is emitted does not support the candidate; the text says why.
    #[error("{0}")]
    EngineCannot(String),
}

impl Rejection {
    /// Returns the heading under which rejections with this reason are counted.
    pub fn heading(&self) -> String {
        match self {
            Self::BatchDoesNotDivide { batch, .. } => {
                format!("a batch of {batch} does not split evenly over the replicas")
            }
            Self::TooMuchMemory { available, .. } => {
                format!("more memory than the {available} a rank may use")
            }
            Self::TooLargeTensor { limit, .. } => {
                format!("more memory than a rank may use, or one tensor of more than {limit}")
            }
            Self::DoesNotDivide { dimension, size, .. } => format!("{dimension} = {size} does not divide"),
            Self::EngineCannot(reason) => reason.clone(),
            // `… not tensor 2` and `… not tensor 4` are one reason.
            Self::CannotRun(reason) => {
                reason.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ').to_string()
            }
        }
    }
}

/// Candidates rejected for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedGroup {
    /// Heading that names the reason.
    pub heading: String,
    /// Number of candidates rejected for the reason.
    pub count: u64,
    /// Description of the rejected candidate that came nearest to fitting.
    pub nearest: String,
    /// Rejection of the candidate that came nearest to fitting.
    pub rejection: Rejection,
}

//! Rejections: reasons why a candidate cannot be used.

use dtrain_recipes::Bytes;
use serde::{Deserialize, Serialize};

/// Reason why a candidate cannot be used, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The batch does not split evenly.
    #[error("a batch of {batch} cannot be split into micro-batches of {micro} on {replicas} replicas")]
    BatchDoesNotDivide {
        /// Samples of one step.
        batch: u64,
        /// Samples of one forward pass.
        micro: u32,
        /// Number of replicas.
        replicas: u32,
    },
    /// It needs more memory than a rank has.
    #[error("it needs {needed} on each rank; {available} are available")]
    TooMuchMemory {
        /// Peak memory of one rank.
        needed: Bytes,
        /// Memory that one rank may use.
        available: Bytes,
    },
    /// One tensor is larger than a device allows, even with enough free memory.
    #[error("{tensor} would be one tensor of {needed}; a GPU here gives at most {limit} to one")]
    TooLargeTensor {
        /// Description of the tensor.
        tensor: String,
        /// Size of the tensor.
        needed: Bytes,
        /// Largest tensor that the device allows.
        limit: Bytes,
    },
    /// A dimension of the model is not divisible by a degree of the layout.
    #[error("{dimension} = {size} cannot be split {degree} ways")]
    DoesNotDivide {
        /// Key of the dimension in the recipe.
        dimension: String,
        /// Size of the dimension.
        size: u32,
        /// Degree of parallelism that splits it.
        degree: u32,
    },
    /// The worker does not support it; the text says why.
    #[error("{0}")]
    CannotRun(String),
    /// The engine for which the plan is emitted does not support it; the text says why.
    #[error("{0}")]
    EngineCannot(String),
}

impl Rejection {
    /// Returns the heading under which rejections of this kind are counted.
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
    /// Heading of the reason.
    pub heading: String,
    /// Number of candidates.
    pub count: u64,
    /// Description of the candidate that came nearest to fitting.
    pub nearest: String,
    /// Rejection of that candidate.
    pub rejection: Rejection,
}

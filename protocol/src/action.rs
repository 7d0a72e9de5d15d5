//! Actions of a rank within one optimizer step.

use serde::{Deserialize, Serialize};

/// One micro-batch passing through one chunk of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// Index of the micro-batch.
    pub micro: u32,
    /// Index of the chunk among the model chunks of this rank.
    pub chunk: u32,
}

/// A pipeline neighbour. The stages form a ring: with several chunks per rank, the last stage sends to the
/// first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Neighbor {
    /// The previous stage: receives gradients and sends activations.
    Previous,
    /// The next stage: receives activations and sends gradients.
    Next,
}

/// One action of a rank within an optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Forward pass of a micro-batch through a chunk.
    Forward(Pass),
    /// Backward pass of a micro-batch through a chunk.
    Backward(Pass),
    /// First half of a split backward pass: the gradient of the chunk's input, for which the previous stage
    /// waits.
    BackwardInput(Pass),
    /// Second half of a split backward pass: the weight gradients that [`Action::BackwardInput`] deferred.
    BackwardWeights(Pass),
    /// Sends to and receives from a neighbour. Both operations start before the rank waits for either, so
    /// that two neighbours cannot deadlock. Passes are numbered as on this rank: the one whose result is
    /// sent, and the one that reads the received data.
    Exchange {
        /// The neighbour.
        with: Neighbor,
        /// The pass whose activation (to the next) or input gradient (to the previous) is sent.
        send: Option<Pass>,
        /// The pass that reads the activation (from the previous) or the gradient (from the next).
        recv: Option<Pass>,
    },
    /// Waits for the gradient all-reduce, which starts within the last backward pass.
    ReduceGradients,
    /// Clips the gradients and applies the optimizer.
    UpdateWeights,
}

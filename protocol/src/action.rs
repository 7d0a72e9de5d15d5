//! The actions of a rank within one optimizer step.

use serde::{Deserialize, Serialize};

/// A pass of one micro-batch through one model chunk of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// Index of the micro-batch.
    pub micro: u32,
    /// Index of the chunk among the model chunks of this rank.
    pub chunk: u32,
}

/// A neighbor of a rank in the pipeline. The stages form a ring: with several chunks per rank, the last stage
/// sends to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Neighbor {
    /// The previous stage, which sends activations to this rank and receives gradients from it.
    Previous,
    /// The next stage, which receives activations from this rank and sends gradients to it.
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
    /// Exchanges data with a neighbor: sends, receives, or both. Both operations start before the rank waits
    /// for either, so that two neighbors cannot deadlock. Passes are numbered as on this rank: the one whose
    /// result is sent, and the one that reads the received data.
    Exchange {
        /// Neighbor to exchange data with.
        with: Neighbor,
        /// Pass whose activation (to the next stage) or input gradient (to the previous one) is sent; `None`
        /// to send nothing.
        send: Option<Pass>,
        /// Pass that reads the received activation (from the previous stage) or gradient (from the next one);
        /// `None` to receive nothing.
        recv: Option<Pass>,
    },
    /// Waits for the gradient all-reduce, which starts during the last backward pass.
    ReduceGradients,
    /// Clips the gradients and applies the optimizer.
    UpdateWeights,
}

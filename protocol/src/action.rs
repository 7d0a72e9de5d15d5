//! What a rank does within one optimizer step.

use serde::{Deserialize, Serialize};

/// One micro-batch on its way through one chunk of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Pass {
    /// The micro-batch.
    pub micro: u32,
    /// The chunk: index among the runs of blocks that this rank holds.
    pub chunk: u32,
}

/// A pipeline neighbour. The stages form a ring: with several chunks a rank, the last stage hands on to the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Neighbor {
    /// The stage before: it gets gradients and gives activations.
    Previous,
    /// The stage after: it gets activations and gives gradients.
    Next,
}

/// One thing a rank does within one optimizer step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Forward of a micro-batch through a chunk.
    Forward(Pass),
    /// Backward of a micro-batch through a chunk.
    Backward(Pass),
    /// The part of backward that the stage before waits for: the gradient of the chunk's input.
    BackwardInput(Pass),
    /// The rest of backward: the gradients of weights that [`Action::BackwardInput`] left.
    BackwardWeights(Pass),
    /// Posts both halves before waiting for either, so that two neighbours that each owe the other a
    /// message cannot wait on each other forever. A pass is named as this rank numbers it: the one whose result is
    /// sent, and the one that reads what is received.
    Exchange {
        /// The neighbour.
        with: Neighbor,
        /// The pass whose activation (to the next) or input gradient (to the previous) is sent.
        send: Option<Pass>,
        /// The pass that reads the activation (from the previous) or the gradient (from the next).
        recv: Option<Pass>,
    },
    /// Waits until the gradients of all replicas are summed (the reductions begin inside the last backward).
    ReduceGradients,
    /// Clips, then applies the optimizer.
    UpdateWeights,
}

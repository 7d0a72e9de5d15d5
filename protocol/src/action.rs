//! What a rank does within one optimizer step.

use serde::{Deserialize, Serialize};

/// A pipeline neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Toward {
    /// The stage before.
    Previous,
    /// The stage after.
    Next,
}

/// One thing a rank does within one optimizer step; `u32` is the index of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Forward of a micro-batch through this rank's blocks.
    Forward(u32),
    /// Backward of a micro-batch through this rank's blocks.
    Backward(u32),
    /// Posts both halves before waiting for either, so that two neighbours that each owe the other a
    /// message cannot wait on each other forever. Activations go to the next stage, gradients to the previous.
    Exchange {
        /// The neighbour.
        with: Toward,
        /// The micro-batch sent.
        send: Option<u32>,
        /// The micro-batch received.
        recv: Option<u32>,
    },
    /// Waits until the gradients of all replicas are summed (the reductions begin inside the last backward).
    ReduceGradients,
    /// Clips, then applies the optimizer.
    UpdateWeights,
}

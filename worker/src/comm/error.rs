//! What can go wrong between ranks.

use crate::out_of_memory;
use dtrain_protocol::{Failure, Rank};
use dtrain_recipes::Seconds;

/// Why a collective did not complete, or the ranks did not come together. Ranks are those of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// A peer is gone.
    #[error("lost rank {peer} during {operation}: {detail}")]
    PeerLost {
        /// Which.
        peer: Rank,
        /// During which operation.
        operation: &'static str,
        /// What was seen.
        detail: String,
    },
    /// The heart of a peer stands still: its process or its host is frozen, or cut off without a word.
    #[error("rank {peer} sent no heartbeat for {} during {operation}", Seconds(*.seconds))]
    Silent {
        /// Which.
        peer: Rank,
        /// How long was waited.
        seconds: f64,
        /// During which operation.
        operation: &'static str,
    },
    /// The heart of a peer beats, but for too long neither it nor any rank it waits for got anything done.
    #[error(
        "rank {peer} is alive but has not joined the {operation} for {}{}", Seconds(*.seconds), expected(*.step_seconds)
    )]
    Idle {
        /// Which.
        peer: Rank,
        /// How long was waited.
        seconds: f64,
        /// In which operation.
        operation: &'static str,
        /// Seconds of a step in the plan.
        step_seconds: Option<f64>,
    },
    /// A peer sends something other than what is due: the ranks do not agree on where they are.
    #[error("rank {peer} is out of step in {operation}: {detail}")]
    OutOfStep {
        /// Which.
        peer: Rank,
        /// During which operation.
        operation: &'static str,
        /// What was due and what came.
        detail: String,
    },
    /// A peer could not prove that it is the rank it claims to be, or refused this one.
    #[error("the connection with {peer} was refused: {detail}")]
    Refused {
        /// Which, in words.
        peer: String,
        /// Why.
        detail: String,
    },
    /// NCCL, or the GPU for it, failed.
    #[error("NCCL failed in {operation}: {detail}")]
    Nccl {
        /// In which operation.
        operation: &'static str,
        /// What it said.
        detail: String,
        /// Whether another rank is the cause: it is gone, or does not come.
        is_of_peer: bool,
    },
    /// The link itself cannot be used.
    #[error("the link between ranks cannot be used: {0}")]
    Link(String),
}

impl CommError {
    /// The same as the last words of a rank.
    pub fn failure(&self) -> Failure {
        let peer = match self {
            Self::PeerLost { peer, .. } | Self::Silent { peer, .. } => Some(*peer),
            Self::Idle { peer, .. } | Self::OutOfStep { peer, .. } => {
                return Failure::Stuck { peer: *peer, detail: self.to_string() };
            }
            Self::Refused { .. } | Self::Nccl { is_of_peer: true, .. } => None,
            // The GPU may have had no memory for what was to be sent.
            Self::Link(_) | Self::Nccl { .. } => return out_of_memory::runtime_failure(self.to_string()),
        };
        Failure::PeerLost { peer, detail: self.to_string() }
    }
}

/// What the plan says about the time, to follow a time that was waited.
fn expected(step_seconds: Option<f64>) -> String {
    step_seconds
        .map_or_else(String::new, |seconds| format!("; the plan expects a step of {}", Seconds(seconds)))
}

//! Errors from collectives and from connecting ranks.

use crate::out_of_memory;
use dtrain_protocol::{Failure, Rank};
use dtrain_recipes::Seconds;

/// The reason why a collective did not complete, or why the ranks could not connect. Peers are numbered as
/// ranks of the attempt.
#[derive(Debug, thiserror::Error)]
pub enum CommError {
    /// A peer's process or connection has ended.
    #[error("lost rank {peer} during {operation}: {detail}")]
    PeerLost {
        /// Rank of the lost peer.
        peer: Rank,
        /// Name of the operation that was in progress.
        operation: &'static str,
        /// Cause of the loss, as it was observed.
        detail: String,
    },
    /// A peer sends no heartbeats: its process or its host is frozen, or the network is cut.
    #[error("rank {peer} sent no heartbeat for {} during {operation}", Seconds(*.seconds))]
    Silent {
        /// Rank of the silent peer.
        peer: Rank,
        /// Seconds without a heartbeat.
        seconds: f64,
        /// Name of the operation that was in progress.
        operation: &'static str,
    },
    /// A peer sends heartbeats, but for too long neither it nor any rank that it waits for made progress.
    #[error(
        "rank {peer} is alive but has not joined the {operation} for {}{}", Seconds(*.seconds), expected(*.step_seconds)
    )]
    Idle {
        /// Rank of the idle peer.
        peer: Rank,
        /// Seconds without progress.
        seconds: f64,
        /// Name of the operation that was in progress.
        operation: &'static str,
        /// Planned seconds of a step; `None` if the plan predicts none.
        step_seconds: Option<f64>,
    },
    /// A peer sent another message than the expected one: the ranks have diverged.
    #[error("rank {peer} is out of step in {operation}: {detail}")]
    OutOfStep {
        /// Rank of the peer that sent the message.
        peer: Rank,
        /// Name of the operation that was in progress.
        operation: &'static str,
        /// The expected message and the received one.
        detail: String,
    },
    /// A peer could not prove that it is the rank it claims to be, or refused this rank.
    #[error("the connection with {peer} was refused: {detail}")]
    Refused {
        /// Rank or address of the peer.
        peer: String,
        /// Reason for the refusal.
        detail: String,
    },
    /// NCCL failed, or a GPU failed while NCCL used it.
    #[error("NCCL failed in {operation}: {detail}")]
    Nccl {
        /// Name of the operation that was in progress.
        operation: &'static str,
        /// Error text of NCCL.
        detail: String,
        /// True if another rank is the cause, because it is gone or did not join.
        is_of_peer: bool,
    },
    /// The transport itself cannot be used, for this reason.
    #[error("the link between ranks cannot be used: {0}")]
    Link(String),
}

impl CommError {
    /// Returns the failure that the rank reports to its agent for this error.
    pub fn failure(&self) -> Failure {
        let peer = match self {
            Self::PeerLost { peer, .. } | Self::Silent { peer, .. } => Some(*peer),
            Self::Idle { peer, .. } | Self::OutOfStep { peer, .. } => {
                return Failure::Stuck { peer: *peer, detail: self.to_string() };
            }
            Self::Refused { .. } | Self::Nccl { is_of_peer: true, .. } => None,
            // The GPU may have had no memory for the values to be sent.
            Self::Link(_) | Self::Nccl { .. } => return out_of_memory::runtime_failure(self.to_string()),
        };
        Failure::PeerLost { peer, detail: self.to_string() }
    }
}

/// Returns the planned step time as text, to be appended to the time that was waited.
fn expected(step_seconds: Option<f64>) -> String {
    step_seconds
        .map_or_else(String::new, |seconds| format!("; the plan expects a step of {}", Seconds(seconds)))
}

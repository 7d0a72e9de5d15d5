//! What can go wrong between ranks.

use dtrain_protocol::{Failure, Rank};

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
    /// A peer is there but silent.
    #[error("rank {peer} sent nothing for {seconds:.1} s during {operation}")]
    TimedOut {
        /// Which.
        peer: Rank,
        /// How long was waited.
        seconds: f64,
        /// During which operation.
        operation: &'static str,
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
    /// The link itself cannot be used.
    #[error("the link between ranks cannot be used: {0}")]
    Link(String),
}

impl CommError {
    /// The same as the last words of a rank.
    pub fn failure(&self) -> Failure {
        let peer = match self {
            Self::PeerLost { peer, .. } | Self::TimedOut { peer, .. } | Self::OutOfStep { peer, .. } => {
                Some(*peer)
            }
            Self::Refused { .. } => None,
            Self::Link(_) => return Failure::Other(self.to_string()),
        };
        Failure::PeerLost { peer, detail: self.to_string() }
    }
}

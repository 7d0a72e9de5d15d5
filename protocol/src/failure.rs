//! Failures of ranks and hosts, and their messages.

use crate::{Rank, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A failure that ends an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Out of memory.
    OutOfMemory {
        /// The failed request, in words.
        detail: String,
    },
    /// The loss or a gradient is not finite: training diverged.
    NotFinite {
        /// Step at which it happened.
        step: StepId,
        /// Name of the figure.
        figure: String,
    },
    /// A peer disconnected or stopped sending heartbeats.
    PeerLost {
        /// The lost rank, if known.
        peer: Option<Rank>,
        /// The observation, in words.
        detail: String,
    },
    /// A host is unreachable, with all its ranks.
    HostLost {
        /// Name of the host.
        host: String,
        /// The observation, in words.
        detail: String,
    },
    /// A failure of a machine or the network, not of training: a lost agent, too few reachable hosts, or
    /// ranks that cannot start.
    Infrastructure {
        /// The failed host, if known.
        host: Option<String>,
        /// The observation, in words.
        detail: String,
    },
    /// A peer is alive but does not join a collective: it hangs, or does something else.
    Stuck {
        /// The stuck rank.
        peer: Rank,
        /// The observation, in words.
        detail: String,
    },
    /// A checkpoint is corrupt.
    CorruptCheckpoint {
        /// Folder of the checkpoint.
        folder: PathBuf,
        /// Tensor, file and offset.
        detail: String,
    },
    /// An intact checkpoint of a training on other data.
    OtherTraining {
        /// Folder of the checkpoint.
        folder: PathBuf,
        /// The difference and the suggested fix.
        detail: String,
    },
    /// The data cannot be used, with the reason.
    Data(String),
    /// The data cannot be used on one of several hosts; it may be usable on others.
    DataOn {
        /// Name of the host; `None` if unknown, since the leader does not know its own name.
        host: Option<String>,
        /// The reason.
        detail: String,
    },
    /// The process exited without reporting a failure.
    Exited {
        /// Exit code, if it exited.
        code: Option<i32>,
        /// Signal, if it was killed.
        signal: Option<i32>,
    },
    /// A foreign program ended before its work was done.
    Command {
        /// Exit code, if it exited.
        code: Option<i32>,
        /// Signal, if it was killed.
        signal: Option<i32>,
        /// Last lines of its output.
        last: Vec<String>,
    },
    /// Training is over, but the rank was stopped before the state could be saved.
    Unsaved {
        /// Steps completed.
        step: StepId,
        /// Reason why saving failed.
        reason: String,
    },
    /// Any other failure, in words.
    Other(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory { detail } => write!(f, "out of memory: {detail}"),
            Self::NotFinite { step, figure } => write!(f, "{figure} is not finite at step {step}"),
            Self::PeerLost { peer: Some(peer), detail } => write!(f, "lost rank {peer}: {detail}"),
            Self::PeerLost { peer: None, detail } => write!(f, "lost a peer: {detail}"),
            Self::HostLost { host, detail } => write!(f, "lost host {host}: {detail}"),
            Self::Infrastructure { detail, .. } => f.write_str(detail),
            Self::Stuck { peer, detail } => write!(f, "stuck on rank {peer}: {detail}"),
            Self::CorruptCheckpoint { folder, detail } => {
                write!(f, "checkpoint {} is corrupt: {detail}", folder.display())
            }
            Self::OtherTraining { folder, detail } => {
                write!(f, "checkpoint {} belongs to another run: {detail}", folder.display())
            }
            Self::Data(detail) | Self::DataOn { host: None, detail } => write!(f, "data: {detail}"),
            Self::DataOn { host: Some(host), detail } => write!(f, "data on {host}: {detail}"),
            Self::Exited { signal: Some(signal), .. } => {
                write!(f, "killed by signal {signal}{}", limit_behind(*signal))
            }
            Self::Exited { code: Some(code), .. } => write!(
                f,
                "exited with code {code} and no error \
            message"
            ),
            Self::Exited { .. } => f.write_str("exited without an error message"),
            Self::Command { code, signal, last } => {
                match (code, signal) {
                    (_, Some(signal)) => write!(f, "killed by signal {signal}{}", limit_behind(*signal))?,
                    (Some(code), None) => write!(f, "exited with {code}")?,
                    (None, None) => f.write_str("ended")?,
                }
                last.last().map_or(Ok(()), |line| write!(f, "; last output: {line}"))
            }
            Self::Unsaved { step, reason } => {
                write!(f, "the state after step {step} was not saved: {reason}")
            }
            Self::Other(detail) => f.write_str(detail),
        }
    }
}

/// Returns the kernel limit behind a Linux signal, in parentheses; empty for other signals.
fn limit_behind(signal: i32) -> &'static str {
    match signal {
        24 => " (SIGXCPU: the limit of processor time, `ulimit -t`)",
        25 => " (SIGXFSZ: the file size limit, `ulimit -f`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_enforces_a_limit_is_told_with_the_limit() {
        let exited = |signal| Failure::Exited { code: None, signal: Some(signal) }.to_string();
        assert!(exited(24).contains("ulimit -t") && exited(25).contains("ulimit -f"));
        assert_eq!(exited(9), "killed by signal 9");
    }
}

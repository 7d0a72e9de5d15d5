//! Why a rank cannot go on, and in which words.

use crate::{Rank, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Why a rank cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// Memory ran out.
    OutOfMemory {
        /// What was asked for, in words.
        detail: String,
    },
    /// Loss or gradient is not finite.
    NotFinite {
        /// The step.
        step: StepId,
        /// Which figure.
        figure: String,
    },
    /// A peer is gone or silent.
    PeerLost {
        /// Which, when known.
        peer: Option<Rank>,
        /// What was seen.
        detail: String,
    },
    /// A host is gone or silent, and all its ranks with it.
    HostLost {
        /// What people call it.
        host: String,
        /// What was seen.
        detail: String,
    },
    /// A machine or the network failed, not the training on it: an agent is gone, too few hosts answer, a host cannot start its ranks.
    Infrastructure {
        /// The host to blame, where it is known.
        host: Option<String>,
        /// What was seen.
        detail: String,
    },
    /// A peer lives, and does not do what is due: it hangs, or does something else.
    Stuck {
        /// Which.
        peer: Rank,
        /// What was seen.
        detail: String,
    },
    /// A checkpoint cannot be read as it was written.
    CorruptCheckpoint {
        /// The folder.
        folder: PathBuf,
        /// Tensor, file and offset.
        detail: String,
    },
    /// A checkpoint is whole, but of a training that reads other samples.
    OtherTraining {
        /// The folder.
        folder: PathBuf,
        /// What differs, and what to do.
        detail: String,
    },
    /// The data cannot be used.
    Data(String),
    /// The data cannot be used on one of several hosts; on others it may be.
    DataOn {
        /// The host, where it is known: the leader does not know what it is called itself.
        host: Option<String>,
        /// What was seen.
        detail: String,
    },
    /// The process ended without a word.
    Exited {
        /// Exit code, when there is one.
        code: Option<i32>,
        /// Signal, when it was killed.
        signal: Option<i32>,
    },
    /// A foreign program ended before its work was done.
    Command {
        /// Exit code, when there is one.
        code: Option<i32>,
        /// Signal, when it was killed.
        signal: Option<i32>,
        /// The last lines that it printed.
        last: Vec<String>,
    },
    /// Training is over, and the state could not be saved before the rank was told to stop.
    Unsaved {
        /// Steps completed.
        step: StepId,
        /// Why it could not be saved.
        reason: String,
    },
    /// Anything else.
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

/// The limit that the kernel enforces by a signal of Linux, in parentheses; empty for signals that mean something else.
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

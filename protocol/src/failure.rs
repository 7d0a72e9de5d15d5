//! Failures of ranks and hosts, and their messages.

use crate::{Rank, StepId};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A failure that ends an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// A rank ran out of memory.
    OutOfMemory {
        /// Description of the request for memory that failed.
        detail: String,
    },
    /// The loss or a gradient is not finite: training diverged.
    NotFinite {
        /// Step in which the value was not finite.
        step: StepId,
        /// Name of the figure that is not finite.
        figure: String,
    },
    /// A peer disconnected or stopped sending heartbeats.
    PeerLost {
        /// The lost rank; `None` if unknown.
        peer: Option<Rank>,
        /// Description of what was observed.
        detail: String,
    },
    /// A host is unreachable, with all its ranks.
    HostLost {
        /// Name of the unreachable host.
        host: String,
        /// Description of what was observed.
        detail: String,
    },
    /// A host left, such as before a reboot or a preemption. Its ranks finished their step and saved, if they had the
    /// time.
    HostLeft {
        /// Name of the host; `None` for the leader's, which does not know its own name.
        host: Option<String>,
        /// Why it left.
        #[serde(default, skip_serializing_if = "LeaveCause::is_termination")]
        cause: LeaveCause,
    },
    /// The controller ended the attempt, so that the next one runs on other hosts. All ranks finished their step and
    /// saved.
    Regrouped,
    /// One of several hosts cannot save checkpoints, because its disk is full or fails.
    Storage {
        /// Name of the host; `None` for the leader's, which does not know its own name.
        host: Option<String>,
        /// Error of the last try to save.
        detail: String,
    },
    /// A machine or the network failed, not training: an agent is lost, too few hosts are reachable, or ranks
    /// cannot start.
    Infrastructure {
        /// The failed host; `None` if unknown.
        host: Option<String>,
        /// Description of what was observed.
        detail: String,
    },
    /// A peer is alive but does not join a collective: it hangs, or does something else.
    Stuck {
        /// The stuck rank.
        peer: Rank,
        /// Description of what was observed.
        detail: String,
    },
    /// A checkpoint is corrupt.
    CorruptCheckpoint {
        /// Path of the checkpoint's folder.
        folder: PathBuf,
        /// Tensor, file and offset of the corruption, in words.
        detail: String,
    },
    /// A checkpoint is intact, but belongs to a training on other data.
    OtherTraining {
        /// Path of the checkpoint's folder.
        folder: PathBuf,
        /// The difference and the suggested fix.
        detail: String,
    },
    /// The data cannot be used, for this reason.
    Data(String),
    /// The data cannot be used on one of several hosts; it may be usable on others.
    DataOn {
        /// Name of the host with the unusable data; `None` if unknown, since the leader does not know its own
        /// name.
        host: Option<String>,
        /// Reason why the data cannot be used.
        detail: String,
    },
    /// The process of a rank exited without reporting a failure.
    Exited {
        /// Exit code of the process; `None` if a signal killed it.
        code: Option<i32>,
        /// Signal that killed the process; `None` if it exited.
        signal: Option<i32>,
    },
    /// A foreign program ended before its work was done.
    Command {
        /// Exit code of the process; `None` if a signal killed it.
        code: Option<i32>,
        /// Signal that killed the process; `None` if it exited.
        signal: Option<i32>,
        /// Last lines of the program's output.
        last: Vec<String>,
    },
    /// Training is over, but the rank was stopped before the state could be saved.
    Unsaved {
        /// Number of steps completed.
        step: StepId,
        /// Reason why the state could not be saved.
        reason: String,
    },
    /// Any other failure, described in words.
    Other(String),
}

/// Why a host leaves an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveCause {
    /// The system asked its agent to end.
    #[default]
    Termination,
    /// The machine gave notice that it will be taken away.
    Notice,
}

impl LeaveCause {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
    fn is_termination(&self) -> bool {
        *self == Self::Termination
    }
}

impl std::fmt::Display for LeaveCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Termination => "its agent was asked to end (SIGTERM)",
            Self::Notice => "it gave notice that it will be taken away",
        })
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OutOfMemory { detail } => write!(f, "out of memory: {detail}"),
            Self::NotFinite { step, figure } => write!(f, "{figure} is not finite at step {step}"),
            Self::PeerLost { peer: Some(peer), detail } => write!(f, "lost rank {peer}: {detail}"),
            Self::PeerLost { peer: None, detail } => write!(f, "lost a peer: {detail}"),
            Self::HostLost { host, detail } => write!(f, "lost host {host}: {detail}"),
            Self::HostLeft { host, cause } => {
                let host = host.as_deref().unwrap_or("the host of the leader");
                write!(f, "{host} leaves: {cause}")
            }
            Self::Regrouped => f.write_str("the trial continues on other hosts"),
            Self::Storage { host, detail } => {
                let host = host.as_deref().unwrap_or("the host of the leader");
                write!(f, "{host} cannot save checkpoints: {detail}")
            }
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

/// Returns the resource limit whose excess a Linux signal reports, in parentheses; empty for other signals.
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

    #[test]
    fn a_host_that_left_before_causes_were_recorded_was_asked_to_end() {
        let old = r#"{"host_left":{"host":"a"}}"#;
        let left = |cause| Failure::HostLeft { host: Some("a".to_owned()), cause };
        let read: Failure = serde_json::from_str(old).expect("a failure");
        assert_eq!(read, left(LeaveCause::Termination));
        assert_eq!(serde_json::to_string(&read).expect("JSON"), old);
        let noticed = serde_json::to_string(&left(LeaveCause::Notice)).expect("JSON");
        assert_eq!(serde_json::from_str::<Failure>(&noticed).expect("a failure"), left(LeaveCause::Notice));
        assert_eq!(
            left(LeaveCause::Notice).to_string(),
            "a leaves: it gave notice that it will be taken away"
        );
    }
}

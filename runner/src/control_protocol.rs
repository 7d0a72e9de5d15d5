//! The protocol between a controller and an agent.

use crate::process::Process;
use dtrain_protocol::{Assignment, AttemptId, TlsIdentity, TrialId};
use dtrain_recipes::NoticePoll;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

/// Time that ranks have to stop before they are killed: always for a foreign program, otherwise if the system
/// ends an agent.
pub const STOP_GRACE_PERIOD: Duration = Duration::from_millis(STOP_GRACE_MS);
pub(crate) const STOP_GRACE_MS: u64 = 30_000;

/// A program to start, with its leading arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Path of the executable.
    pub path: PathBuf,
    /// Arguments that come before all others.
    pub arguments: Vec<String>,
}

impl Program {
    /// Creates a program with the leading arguments `arguments`.
    pub fn new<'a>(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }
}

/// The task of an agent: the only frame on its standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentTask {
    /// Lead an attempt.
    Lead(AgentOrder),
    /// Hold the ranks of one host for the leader of an attempt.
    Follow(FollowerOrder),
}

/// Everything that the leader of an attempt needs to know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentOrder {
    /// Id of the trial.
    pub trial: TrialId,
    /// Number of the attempt.
    pub attempt: AttemptId,
    /// Folder of the trial.
    pub folder: PathBuf,
    /// The program of each rank; its first frame on standard input is the rank's assignment.
    pub worker: Program,
    /// One assignment for each rank, in order. If all ranks are on this host, their links come from
    /// [`AgentOrder::link`]; otherwise those of this host have certificates, and the rest is in the
    /// [`FollowerOrder`] of each host.
    pub assignments: Vec<Assignment>,
    /// Link between the ranks of the attempt; a single rank has none.
    pub link: LinkChoice,
    /// Number of committed checkpoints to keep, the newest ones; at least 2.
    pub keep: u32,
    /// Identity of the leader to other hosts; `None` if all ranks are on this host.
    #[serde(default)]
    pub seat: Option<AgentIdentity>,
    /// The other hosts, in the order of their ranks, which follow those of this host.
    #[serde(default)]
    pub others: Vec<OtherHost>,
    /// How each host learns that its machine will be taken away; `None` if it does not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<NoticePoll>,
}

/// Identity and address of an agent within its attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentIdentity {
    /// Index of the agent's host in the attempt; 0 for the leader's.
    pub host: u32,
    /// Address to bind, without a port: the one under which other hosts reach this one.
    pub bind: String,
    /// Certificate and key of the agent.
    pub identity: TlsIdentity,
    /// True if all hosts share the folder of the trial's checkpoints.
    #[serde(default)]
    pub is_shared: bool,
}

/// Host and address of an agent's listener.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Index of the agent's host in the attempt.
    pub host: u32,
    /// Name of the host in messages.
    pub name: String,
    /// Address and port of the listener.
    pub address: String,
}

/// Another host of an attempt, with a follower that listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherHost {
    /// Host and address of the follower's listener.
    pub peer: PeerAddress,
    /// Ranks of the host; empty on a host that only lends its checkpoint files until every host of the
    /// attempt has them.
    pub ranks: Range<u32>,
}

impl OtherHost {
    /// Returns `true` if the host has no ranks.
    pub(crate) fn only_lends(&self) -> bool {
        self.ranks.is_empty()
    }
}

/// Everything that a follower needs to know about its attempt.
///
/// It comes from the controller and determines what runs on the host. The leader only decides when: it cannot
/// name a program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowerOrder {
    /// Id of the trial.
    pub trial: TrialId,
    /// Number of the attempt.
    pub attempt: AttemptId,
    /// Folder of the trial on this host.
    pub folder: PathBuf,
    /// The program of each rank.
    pub worker: Program,
    /// Identity of the follower within the attempt.
    pub seat: AgentIdentity,
    /// One assignment for each rank of this host, in order, with its certificate; empty on a host that only
    /// lends checkpoint files. Folders and addresses in them are replaced by those of this host.
    pub assignments: Vec<Assignment>,
    /// How this host learns that its machine will be taken away; `None` if it does not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<NoticePoll>,
}

/// The kind of link between the ranks of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkChoice {
    /// Shared memory, inherited as an open file.
    #[default]
    SharedMemory,
    /// Mutual TLS, with certificates made for the attempt.
    Tls {
        /// Address to bind, without a port, such as `127.0.0.1`.
        bind: String,
    },
}

/// An agent's answer to the process that started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentReply {
    /// The ranks are started and the control socket is bound.
    Running(AgentCard),
    /// The launch is in progress; its answer follows.
    Launching,
    /// The follower was started and waits for its leader.
    Listening {
        /// Address and port on which the follower listens.
        address: String,
    },
    /// The launch was refused: nothing was started.
    Refused {
        /// The reason why nothing was started.
        reason: String,
        /// True if the checkpoint to resume from is to blame.
        #[serde(default)]
        is_of_checkpoint: bool,
        /// The host that is to blame, if it is one of several; `None` otherwise.
        #[serde(default)]
        host: Option<String>,
    },
}

/// The reason why an attempt was not launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// The checkpoint to resume from is missing or damaged.
    Checkpoint(String),
    /// Any other failure, without a host to blame.
    Other(String),
    /// A launch failed because of one of several hosts.
    OnHost {
        /// Name of the host to blame.
        host: String,
        /// The reason for the failure.
        reason: String,
    },
    /// The launch was requested and its answer was lost: the attempt may be alive. The next contact finds
    /// out.
    Unknown(String),
}

impl LaunchError {
    /// Creates a failure of `host`; removes its name from the start of the reason.
    pub(crate) fn because_of(host: &str, reason: &str) -> Self {
        let reason = reason.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason);
        Self::OnHost { host: host.to_owned(), reason: reason.to_owned() }
    }

    /// Adds the host that reported the failure, unless it names another host.
    pub(crate) fn on(self, host: &str) -> Self {
        match self {
            Self::Checkpoint(reason) => Self::Checkpoint(format!("{host}: {reason}")),
            Self::Other(reason) => Self::OnHost { host: host.into(), reason },
            Self::OnHost { .. } => self,
            Self::Unknown(reason) => Self::Unknown(format!("{host}: {reason}")),
        }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint(reason) | Self::Other(reason) | Self::Unknown(reason) => f.write_str(reason),
            Self::OnHost { host, reason } => write!(f, "{host}: {reason}"),
        }
    }
}

impl From<&str> for LaunchError {
    fn from(reason: &str) -> Self {
        Self::Other(reason.into())
    }
}

impl From<String> for LaunchError {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// Identity and socket of an agent: the content of `agent.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCard {
    /// Number of the attempt.
    pub attempt: AttemptId,
    /// The process of the agent.
    pub agent: Process,
    /// The process of each rank, in order; empty until they are started.
    pub ranks: Vec<Process>,
    /// Path of the control socket; empty for a follower.
    pub socket: PathBuf,
}

/// A controller's request to a running agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRequest {
    /// Send the spool from an offset on, and new records until the attempt is over. The answer is the bytes
    /// of the spool themselves, so an offset means the same on the socket and on disk.
    Follow {
        /// Number of bytes of the spool that the controller already has.
        from: u64,
    },
    /// Finish the current step, save a checkpoint, and end.
    Stop,
    /// Finish the current step, save a checkpoint, and end, so that the next attempt runs on other hosts.
    Regroup,
    /// The controller is there. Agents ignore it; a relay between them ends without any request for a while.
    Heartbeat,
}

//! What a controller and an agent say to each other.

pub use super::peers::{AgentIdentity, PeerAddress};
use crate::fact::AttemptEnd;
use dtrain_protocol::{Assignment, AttemptId, Event, Rank, StampedEvent, StepId, TrialId};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;

/// A program and its leading arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// Arguments.
    pub arguments: Vec<String>,
}

impl Program {
    /// `path` with `arguments`.
    pub fn new<'a>(path: impl Into<PathBuf>, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        Self { path: path.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }
}

/// The one frame an agent reads from its standard input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentTask {
    /// Own an attempt.
    Lead(AgentOrder),
    /// Hold the ranks of one host for the agent that does.
    Follow(FollowerOrder),
}

/// All the agent that owns an attempt must know.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentOrder {
    /// The trial.
    pub trial: TrialId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The trial's folder.
    pub folder: PathBuf,
    /// What is started for each rank; its first frame on standard input is the rank's assignment.
    pub worker: Program,
    /// One for each rank, in order. Where all ranks are here, their links are replaced by what [`AgentOrder::link`] asks for;
    /// otherwise those of this host have their certificates, and the rest is in the [`FollowerOrder`] of its host.
    pub assignments: Vec<Assignment>,
    /// How the ranks reach each other; one rank is always alone.
    pub link: LinkChoice,
    /// Committed checkpoints that are kept, the newest ones; never fewer than 2.
    pub keep: u32,
    /// Who this agent is to those of other hosts; `None` when all ranks are here.
    #[serde(default)]
    pub seat: Option<AgentIdentity>,
    /// The other hosts, in the order of their ranks, which follow those of this host.
    #[serde(default)]
    pub others: Vec<OtherHost>,
}

/// Another host of an attempt, whose agent listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherHost {
    /// Where its agent listens.
    pub peer: PeerAddress,
    /// Its ranks; none on a host that only lends what it has of the checkpoint, until every host of the attempt has it.
    pub ranks: Range<u32>,
}

impl OtherHost {
    /// Whether it has no ranks.
    pub(super) fn only_lends(&self) -> bool {
        self.ranks.is_empty()
    }
}

/// All the agent of a host that does not lead must know.
///
/// It comes from the controller and decides what runs on the host. The leader only says when: it can name no program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FollowerOrder {
    /// The trial.
    pub trial: TrialId,
    /// The attempt.
    pub attempt: AttemptId,
    /// The trial's folder on this host.
    pub folder: PathBuf,
    /// What is started for each rank.
    pub worker: Program,
    /// Who this agent is.
    pub seat: AgentIdentity,
    /// One for each rank of this host, in order, with the certificate of the rank; none on a host that only lends what it has
    /// of a checkpoint. Folders and addresses in them become those of this host.
    pub assignments: Vec<Assignment>,
}

/// How the ranks of a host reach each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkChoice {
    /// Through one mapping, inherited as an open file.
    #[default]
    SharedMemory,
    /// Through mutual TLS on this address, with certificates made for the attempt.
    Tls {
        /// Address to bind, without a port, such as `127.0.0.1`.
        bind: String,
    },
}

/// The agent's answer through its channel to whoever started it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentReply {
    /// The ranks are started and the socket is bound.
    Running(AgentCard),
    /// It is at it; the answer follows.
    Launching,
    /// A follower waits for its leader.
    Listening {
        /// Address and port where it listens.
        address: String,
    },
    /// Nothing was started.
    Refused {
        /// Why not.
        reason: String,
        /// Whether it is because of the checkpoint that was to be gone on from.
        #[serde(default)]
        is_of_checkpoint: bool,
        /// The host of a follower, where that is to blame.
        #[serde(default)]
        host: Option<String>,
    },
}

/// Who an agent is and where it listens: the content of `agent.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentCard {
    /// The attempt.
    pub attempt: AttemptId,
    /// The agent's process.
    pub agent: Process,
    /// The process of each rank, in order; empty until they are started.
    pub ranks: Vec<Process>,
    /// Where the agent listens for controllers; empty for a follower.
    pub socket: PathBuf,
}

/// A process that cannot be mistaken for a later one with the same id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id.
    pub id: u32,
    /// When it started, in clock ticks since the machine started.
    pub started: u64,
}

/// What a controller asks of a running agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentRequest {
    /// Send the spool from this offset on, and what is appended to it until the attempt is over. The answer is
    /// the bytes of the spool themselves, so that an offset means the same on the socket and on disk.
    Follow {
        /// Bytes of the spool that the controller already has.
        from: u64,
    },
    /// Finish the current step, save, and end.
    Stop,
}

/// One record of a spool: what happened to one attempt, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpoolRecord {
    /// The ranks are about to be started. Always the first.
    Began {
        /// The attempt.
        attempt: AttemptId,
        /// Its ranks.
        ranks: u32,
    },
    /// A rank said something, or ended without a word.
    Event(StampedEvent),
    /// All ranks saved, and the checkpoint is durable under its final name.
    Committed {
        /// The attempt.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
        /// The committed folder.
        folder: PathBuf,
    },
    /// All ranks saved, but the checkpoint could not be committed.
    CommitFailed {
        /// The attempt.
        attempt: AttemptId,
        /// Steps completed in it.
        step: StepId,
        /// Why not.
        reason: String,
    },
    /// A foreign program reached its target: its ranks were asked to stop, and have [`STOP_GRACE_PERIOD`](super::STOP_GRACE_PERIOD).
    TargetReached {
        /// The attempt.
        attempt: AttemptId,
    },
    /// Stands for a record that is as it was written, and cannot be understood. Never written.
    Unreadable {
        /// Where it begins, in bytes.
        at: u64,
        /// Why not.
        reason: String,
    },
    /// No process of any rank lives. Always the last.
    Over {
        /// The attempt.
        attempt: AttemptId,
        /// How it ended.
        ended: AttemptEnd,
    },
}

impl SpoolRecord {
    /// Whether the record must be on disk before anything else happens.
    pub fn must_be_durable(&self) -> bool {
        match self {
            Self::Began { .. } | Self::Committed { .. } | Self::Over { .. } => true,
            Self::CommitFailed { .. } | Self::TargetReached { .. } | Self::Unreadable { .. } => false,
            Self::Event(stamped) => match stamped.event {
                Event::Saved { .. } | Event::Finished { .. } | Event::Failed(_) => true,
                Event::Listening(_)
                | Event::Ready { .. }
                | Event::Step(_)
                | Event::Validated { .. }
                | Event::Validating { .. }
                | Event::Metrics { .. }
                | Event::Notice(_)
                | Event::SaveFailed { .. } => false,
            },
        }
    }
}

/// The log of one rank, or of the agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// Whose; `None` for the agents of all attempts.
    pub of: Option<(AttemptId, Rank)>,
    /// The file.
    pub path: PathBuf,
}

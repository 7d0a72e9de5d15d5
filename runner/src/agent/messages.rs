//! The messages between the leader and the agents of all hosts, its own host included.

use super::foreign::Rendezvous;
use crate::control_protocol::{LaunchError, PeerAddress};
use dtrain_protocol::{Event, FileEntry, Order, Rank, StepId};
use dtrain_recipes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A message from the leader to the agent of a host.
///
/// It cannot say what a rank runs: that is in the controller's
/// [`FollowerOrder`](crate::control_protocol::FollowerOrder). A message with an unknown field ends the
/// connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum LeaderMessage {
    /// List the files of a checkpoint that the host has; the answer is [`HostMessage::Listed`].
    ListCheckpoint {
        /// Name of the checkpoint folder.
        folder: String,
    },
    /// Fetch the missing files of a checkpoint from other hosts; the answer is [`HostMessage::Fetched`].
    FetchCheckpoint {
        /// Name of the checkpoint folder; it is created if missing.
        folder: String,
        /// Each file of the checkpoint, with the hosts that have it.
        #[serde(with = "shared")]
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        /// Content of the manifest of a committed checkpoint.
        #[serde(with = "shared")]
        manifest: Arc<str>,
    },
    /// Fetch the missing parts of a checkpoint that this host's ranks read; the answer is
    /// [`HostMessage::Fetched`].
    FetchParts {
        /// Name of the checkpoint folder.
        folder: String,
        /// Each file of the checkpoint, with the hosts that have it.
        #[serde(with = "shared")]
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        /// Content of the checkpoint's manifest.
        #[serde(with = "shared")]
        manifest: Arc<str>,
        /// Names of files to fetch whole and keep, as fewer than two of the hosts with ranks have them.
        keep: Vec<String>,
    },
    /// Find free ports for foreign ranks; the answer is [`HostMessage::Reserved`].
    ReservePorts {
        /// Number of ranks on the host, each of which needs a port.
        ranks: u32,
        /// True if rank 0 is on this host, which needs one more port for the rendezvous.
        is_meeting: bool,
    },
    /// Start the ranks of the host's order; the answer is [`HostMessage::Started`].
    Start {
        /// The rendezvous of foreign ranks.
        rendezvous: Rendezvous,
    },
    /// Forward an order to every rank of the host.
    Order {
        /// The order to forward.
        #[serde(with = "shared")]
        order: Arc<Order>,
    },
    /// Kill a rank and its child processes.
    Kill {
        /// The rank to kill.
        rank: Rank,
    },
    /// Add copies and the manifest to the files of a checkpoint, and make it durable; the answer is
    /// [`HostMessage::Prepared`].
    Prepare {
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// Content of the manifest.
        #[serde(with = "shared")]
        manifest: Arc<str>,
        /// Files of other hosts to keep here too, each with the hosts that have it.
        copies: Vec<(FileEntry, Vec<PeerAddress>)>,
    },
    /// Give a prepared checkpoint its final name; the answer is [`HostMessage::Committed`].
    Commit {
        /// Number of completed steps in the checkpoint.
        step: StepId,
    },
    /// Remove all but the newest checkpoints.
    Retain {
        /// Number of committed checkpoints to keep.
        keep: u32,
    },
    /// Remove the files of a checkpoint that will not be committed.
    Discard {
        /// Number of completed steps in the checkpoint.
        step: StepId,
    },
    /// Append bytes of the leader's spool to the host's mirror.
    Mirror {
        /// Offset of the bytes in the spool.
        from: u64,
        /// The bytes, in base64.
        records: String,
    },
    /// Flush the mirror to disk; the answer is [`HostMessage::MirrorSealed`].
    SealMirror,
    /// The attempt is over: let go of the ranks and end.
    Dismiss,
}

/// A message from the agent of a host to the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HostMessage {
    /// The files of the requested checkpoint that the host has.
    Listed {
        /// Content of the manifest, if it is present and intact.
        #[serde(with = "shared::optional")]
        manifest: Option<Arc<str>>,
        /// Names of the files that are present in full length.
        files: Vec<String>,
    },
    /// The requested files are here, or the fetch failed.
    Fetched {
        /// The amount fetched, or the reason why the fetch failed.
        outcome: Result<FetchSummary, FetchRefusal>,
    },
    /// Free ports of this host, or the reason why there are none.
    Reserved {
        /// Ports as `address:port`, one for each rank, with the rendezvous port first if requested.
        addresses: Result<Vec<String>, String>,
    },
    /// The host's ranks were started, or could not be.
    Started {
        /// `Err` has the reason why a rank could not be started.
        outcome: Result<(), String>,
    },
    /// The system asks the agent of this host to end.
    Terminated,
    /// The machine of this host gave notice that it will be taken away.
    NoticeGiven,
    /// An event of a rank.
    Event {
        /// The rank that sent it.
        rank: Rank,
        /// The event.
        event: Event,
    },
    /// All output of a rank was read.
    OutputClosed {
        /// The rank whose output ended.
        rank: Rank,
        /// The error in its last output, if any.
        garbled: Option<String>,
        /// The last lines of a foreign program's output.
        last: Vec<String>,
    },
    /// The process of a rank ended.
    Exited {
        /// The rank that ended.
        rank: Rank,
        /// The exit code or signal of the rank's process.
        exit: RankExit,
    },
    /// The checkpoint of a step was prepared, or could not be.
    Prepared {
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// `Err` has the reason why the checkpoint could not be prepared.
        outcome: Result<(), String>,
    },
    /// The mirror of the leader's spool is on disk to its end, or could not be flushed.
    MirrorSealed {
        /// `Err` has the reason why the mirror could not be flushed.
        outcome: Result<(), String>,
    },
    /// The checkpoint of a step was given its final name, or could not be committed.
    Committed {
        /// Number of completed steps in the checkpoint.
        step: StepId,
        /// `Err` has the reason why the checkpoint could not be committed.
        outcome: Result<(), String>,
    },
}

/// The amount of checkpoint data that one or more hosts fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FetchSummary {
    /// Bytes received over the network.
    pub(super) bytes: u64,
    /// Bytes that had to be fetched: whole chunks that the host's ranks read, from files that are incomplete
    /// here, and files kept for other hosts.
    pub(super) needed: u64,
    /// Number of hosts that sent data.
    pub(super) hosts: u32,
    /// Duration of the fetch in milliseconds.
    pub(super) milliseconds: u64,
}

impl FetchSummary {
    /// Combines the amounts that two hosts fetched at the same time.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            needed: self.needed + other.needed,
            hosts: self.hosts.max(other.hosts),
            milliseconds: self.milliseconds.max(other.milliseconds),
        }
    }
}

impl fmt::Display for FetchSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, needed, hosts, milliseconds } = *self;
        let hosts = if hosts == 1 { "1 host".to_owned() } else { format!("{hosts} hosts") };
        let seconds = Duration::from_millis(milliseconds).as_secs_f64();
        write!(
            f,
            "fetched {} from {hosts} in {seconds:.1} s, of {} that were needed",
            Bytes(bytes),
            Bytes(needed)
        )
    }
}

/// The reason why a checkpoint could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FetchRefusal {
    /// Text of the reason.
    pub(super) reason: String,
    /// True if the checkpoint is damaged; otherwise it may be intact, but unavailable here now.
    pub(super) is_of_checkpoint: bool,
    /// Name of the other host that is to blame, if one is.
    pub(super) holder: Option<String>,
}

impl From<LaunchError> for FetchRefusal {
    fn from(error: LaunchError) -> Self {
        match error {
            LaunchError::OnHost { host, reason } => {
                Self { reason, is_of_checkpoint: false, holder: Some(host) }
            }
            LaunchError::Checkpoint(reason) => Self { reason, is_of_checkpoint: true, holder: None },
            LaunchError::Other(reason) | LaunchError::Unknown(reason) => {
                Self { reason, is_of_checkpoint: false, holder: None }
            }
        }
    }
}

/// Exit of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankExit {
    /// Exit code of the process; `None` if a signal ended it.
    pub(super) code: Option<i32>,
    /// Signal that ended the process; `None` if it exited by itself.
    pub(super) signal: Option<i32>,
}

impl HostMessage {
    /// Returns the rank that the message is about; `None` if it is about the host.
    pub(super) fn rank(&self) -> Option<Rank> {
        match self {
            Self::Event { rank, .. } | Self::OutputClosed { rank, .. } | Self::Exited { rank, .. } => {
                Some(*rank)
            }
            Self::Listed { .. }
            | Self::Fetched { .. }
            | Self::Reserved { .. }
            | Self::Started { .. }
            | Self::Terminated
            | Self::NoticeGiven
            | Self::Prepared { .. }
            | Self::MirrorSealed { .. }
            | Self::Committed { .. } => None,
        }
    }
}

/// Serialization of values that many messages share.
mod shared {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::borrow::ToOwned;
    use std::sync::Arc;

    pub(super) fn serialize<T, S>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize + ?Sized,
        S: Serializer,
    {
        value.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<Arc<T>, D::Error>
    where
        T: ToOwned<Owned: Deserialize<'de>> + ?Sized,
        D: Deserializer<'de>,
        Arc<T>: From<T::Owned>,
    {
        T::Owned::deserialize(from).map(Arc::from)
    }

    pub(super) mod optional {
        use super::{Arc, Deserialize, Deserializer, Serialize, Serializer};

        pub(in super::super) fn serialize<S: Serializer>(
            value: &Option<Arc<str>>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            value.as_deref().serialize(to)
        }

        pub(in super::super) fn deserialize<'de, D>(from: D) -> Result<Option<Arc<str>>, D::Error>
        where
            D: Deserializer<'de>,
        {
            Ok(Option::<String>::deserialize(from)?.map(Arc::from))
        }
    }
}

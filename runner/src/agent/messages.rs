//! What the leader and the agents of hosts tell each other. The leader speaks so with its own host too.

use super::foreign::Rendezvous;
use super::peers::PeerAddress;
use dtrain_protocol::{Event, FileEntry, Order, Rank, StepId};
use dtrain_recipes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the leader asks of a host.
///
/// It cannot say what a rank runs: that is in the [`super::FollowerOrder`] of the controller. A message with anything unknown in
/// it ends the connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum LeaderMessage {
    /// List what the host has of a checkpoint; the answer is [`HostMessage::Listed`].
    ListCheckpoint {
        /// Name of its folder.
        folder: String,
    },
    /// Fetch files of a checkpoint from other hosts, unless they are there; the answer is [`HostMessage::Fetched`].
    FetchCheckpoint {
        /// Name of the checkpoint's folder; one that does not exist is made.
        folder: String,
        /// Each file with the hosts that have it.
        #[serde(with = "shared")]
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        /// Content of the table of contents, of a committed checkpoint.
        #[serde(with = "shared")]
        manifest: Arc<str>,
    },
    /// Fetch what the ranks of the host read of a checkpoint from other hosts, unless it is there; the answer is
    /// [`HostMessage::Fetched`].
    FetchParts {
        /// Name of the checkpoint's folder.
        folder: String,
        /// Each file with the hosts that have it.
        #[serde(with = "shared")]
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        /// Content of the table of contents.
        #[serde(with = "shared")]
        manifest: Arc<str>,
        /// Names of files that are fetched whole and kept, as fewer than two of the hosts with ranks have them.
        keep: Vec<String>,
    },
    /// Find free ports for foreign ranks; the answer is [`HostMessage::Reserved`].
    ReservePorts {
        /// How many.
        ranks: u32,
        /// Whether the ranks meet at this host, which needs one port more.
        is_meeting: bool,
    },
    /// Start the ranks of the host's order; the answer is [`HostMessage::Started`].
    Start {
        /// Where foreign ranks meet.
        rendezvous: Rendezvous,
    },
    /// Hand an order on to every rank of the host.
    Order {
        /// The order.
        #[serde(with = "shared")]
        order: Arc<Order>,
    },
    /// Kill a rank and what it started.
    Kill {
        /// Which.
        rank: Rank,
    },
    /// Put copies and the table of contents beside the files of a checkpoint, all of it durable; the answer is
    /// [`HostMessage::Prepared`].
    Prepare {
        /// Steps completed in it.
        step: StepId,
        /// Content of the table of contents.
        #[serde(with = "shared")]
        manifest: Arc<str>,
        /// Files of other hosts that are kept here too, each with the hosts that have it.
        copies: Vec<(FileEntry, Vec<PeerAddress>)>,
    },
    /// Give a prepared checkpoint its final name; the answer is [`HostMessage::Committed`].
    Commit {
        /// Steps completed in it.
        step: StepId,
    },
    /// Remove superfluous checkpoints.
    Retain {
        /// How many committed checkpoints are kept.
        keep: u32,
    },
    /// Remove what lies here of a checkpoint that there will not be.
    Discard {
        /// Steps completed in it.
        step: StepId,
    },
    /// Append bytes of the leader's spool to the copy that this host keeps of it.
    Mirror {
        /// Where in the spool they begin.
        from: u64,
        /// The bytes, in base64.
        records: String,
    },
    /// Put that copy on disk; the answer is [`HostMessage::MirrorSealed`].
    SealMirror,
    /// The attempt is over.
    Dismiss,
}

/// What a host tells the leader.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum HostMessage {
    /// What lies here of the checkpoint that was asked for.
    Listed {
        /// Content of the table of contents, when it is there and is what was committed.
        #[serde(with = "shared::optional")]
        manifest: Option<Arc<str>>,
        /// Names of the files that are there in their length.
        files: Vec<String>,
    },
    /// What was to be fetched is here; or why not.
    Fetched {
        /// How it went.
        outcome: Result<FetchSummary, FetchRefusal>,
    },
    /// Ports that are free here; or why there are none.
    Reserved {
        /// As `address:port`: one for each rank, and the one to meet at first, where that was asked for.
        addresses: Result<Vec<String>, String>,
    },
    /// The ranks are started; or why not.
    Started {
        /// How it went.
        outcome: Result<(), String>,
    },
    /// The system wants the agent of this host to end.
    Terminated,
    /// A rank said something.
    Event {
        /// The rank.
        rank: Rank,
        /// What.
        event: Event,
    },
    /// All that a rank said was passed on.
    OutputClosed {
        /// The rank.
        rank: Rank,
        /// What was wrong with the last thing it wrote.
        garbled: Option<String>,
        /// The last lines that a foreign program printed.
        last: Vec<String>,
    },
    /// The process of a rank ended.
    Exited {
        /// The rank.
        rank: Rank,
        /// How.
        exit: RankExit,
    },
    /// The checkpoint of this step is prepared; `Err` says why not.
    Prepared {
        /// Steps completed in it.
        step: StepId,
        /// How it went.
        outcome: Result<(), String>,
    },
    /// The copy of the leader's spool is on disk to its end; `Err` says why not.
    MirrorSealed {
        /// How it went.
        outcome: Result<(), String>,
    },
    /// The checkpoint of this step has its final name; `Err` says why not.
    Committed {
        /// Steps completed in it.
        step: StepId,
        /// How it went.
        outcome: Result<(), String>,
    },
}

/// What was fetched of a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FetchSummary {
    /// Bytes that came over the network.
    pub(super) bytes: u64,
    /// Bytes that were needed: what the ranks of the host read, in whole chunks, of files that the host had not whole; and files
    /// that it keeps for others.
    pub(super) needed: u64,
    /// How many hosts they came from.
    pub(super) hosts: u32,
    /// How long it took.
    pub(super) milliseconds: u64,
}

impl FetchSummary {
    /// What two hosts fetched at the same time.
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

/// Why a checkpoint could not be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FetchRefusal {
    /// In words.
    pub(super) reason: String,
    /// Whether the checkpoint is not as it was committed; otherwise it may well be, and cannot be had here now.
    pub(super) is_of_checkpoint: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankExit {
    /// Its exit code.
    pub(super) code: Option<i32>,
    /// The signal that ended it.
    pub(super) signal: Option<i32>,
}

impl HostMessage {
    /// The rank that it speaks for.
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
            | Self::Prepared { .. }
            | Self::MirrorSealed { .. }
            | Self::Committed { .. } => None,
        }
    }
}

/// What every heartbeat says: how far the loop of the agent and its work on checkpoints have come. A thread that only beats proves
/// nothing; a number that stands still shows that the agent does not work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Heartbeat {
    /// Turns of the agent's loop.
    pub(super) turns: u64,
    /// Pieces of work on checkpoints: chunks fetched, files flushed.
    pub(super) work: u64,
}

/// Values that many messages share are written and read like any other.
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

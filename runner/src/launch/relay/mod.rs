//! A launcher at the other end of a stream: what the controller cannot do on a host itself, this program does there for it.
//!
//! The stream carries requests and replies in turn, as frames. A stream that was connected with an agent belongs to
//! that agent from then on.

mod address;
mod client;
mod push;
mod remote_store;
mod server;
mod spool_remainder;

pub use client::{Connector, RemoteHost};
pub use remote_store::RemoteStore;
pub use server::serve;

pub(super) use client::Disconnect;

use crate::agent::{AgentCard, AgentOrder, FollowerOrder};
use crate::checkpoints::FolderListing;
use dtrain_protocol::{AttemptId, HostFacts, Placement, Rank, TrialId};
use dtrain_recipes::Subnet;
use serde::{Deserialize, Serialize};

/// What is asked of the far end.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// Under which address others reach the host, on this network if it is meant.
    Address { network: Option<Subnet> },
    /// Start the agent that leads. Folders and programs of the order are those of the host.
    Lead(Box<AgentOrder>),
    /// Start an agent that follows.
    Follow(Box<FollowerOrder>),
    /// Connect this stream with an agent that leads.
    Reach { trial: TrialId, attempt: AttemptId, from: u64 },
    /// What an agent that is gone left behind, all of it: it may be far more than the near end keeps at once.
    Leftover {
        trial: TrialId,
        attempt: AttemptId,
        from: u64,
        /// Whether what the host mirrored of another host's record is meant.
        #[serde(default)]
        is_mirror: bool,
    },
    /// What the planner must know of the host.
    Facts,
    /// Start a rank that measures on such a device; this stream is its standard input and output from then on.
    Measure { placement: Placement },
    /// Whose logs of a trial there are: of a rank in an attempt, or of the agents.
    Logs { trial: TrialId },
    /// What one of them says.
    Log { trial: TrialId, of: Option<(AttemptId, Rank)>, from: u64 },
    /// The folders of a trial's checkpoints.
    Checkpoints { trial: TrialId },
    /// Bytes of a file of a checkpoint.
    Piece { trial: TrialId, folder: String, file: String, from: u64 },
    /// The hashes of chunks of a file of a checkpoint.
    Hashes { trial: TrialId, folder: String, file: String, first: u64, count: u64 },
    /// Write bytes, in base64, into a file of a checkpoint that is not committed yet.
    Put { trial: TrialId, folder: String, file: String, from: u64, bytes: String },
    /// Verify a checkpoint that was put here, and commit it with this table of contents.
    CommitPut { trial: TrialId, folder: String, manifest: String },
    /// Whether the agent of an attempt lives.
    IsAlive { trial: TrialId, attempt: AttemptId },
    /// Kill what lives of attempts before this one, and let none of it live again.
    Fence { trial: TrialId, attempt: AttemptId },
    /// Remove what is there of a trial that does not run.
    Remove { trial: TrialId },
    /// Kill what lives of an attempt, and let none of it live again.
    Kill { trial: TrialId, attempt: AttemptId },
}

/// What the far end answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Address(String),
    /// The launch goes on; its answer follows.
    Launching,
    Leading(AgentCard),
    Following {
        address: String,
    },
    /// The stream is the agent's from here on.
    Connected(AgentCard),
    Silent,
    Gone,
    /// So many bytes follow.
    Bytes {
        bytes: u64,
    },
    Logs(Vec<Option<(AttemptId, Rank)>>),
    Checkpoints(Vec<FolderListing>),
    Hashes(Vec<Result<String, String>>),
    /// What was put here is on disk.
    Stored,
    Killed {
        is_gone: bool,
    },
    Fenced {
        /// The attempt whose agent was killed.
        ended: Option<AttemptId>,
    },
    Facts(HostFacts),
    /// The stream is the rank's from here on.
    Measuring,
    Alive(bool),
    /// So many bytes are free now.
    Removed {
        bytes: u64,
    },
    /// The checkpoint that was to be gone on from cannot be had.
    NoCheckpoint {
        reason: String,
    },
    Failed {
        reason: String,
    },
    /// An attempt was not launched because of another host than the one that was asked.
    FailedOn {
        host: String,
        reason: String,
    },
}

//! The relay: the controller's program on a host, which does there the things that the controller cannot do
//! remotely. Its server is [`crate::relay_server`].
//!
//! The stream carries requests and replies in turn, as frames. After `Reply::Connected` it belongs to the
//! agent, and the controller sends heartbeats. The server ends if the controller is silent for a minute; the next request
//! then opens another stream.

mod claim;
mod client;
mod push;
mod remote_store;
mod spool_remainder;
mod workdir;

pub use client::{Connector, RemoteHost};
pub use remote_store::RemoteStore;
pub use workdir::WorkdirTransfer;

pub(super) use client::Disconnect;

use crate::checkpoints::{CheckpointWriter, FolderListing};
use crate::control_protocol::{AgentCard, AgentOrder, FollowerOrder};
use crate::controller_claim::ControllerClaim;
use crate::engine_environment::EngineEnvironment;
use dtrain_protocol::{AttemptId, HostFacts, Placement, Rank, TrialId};
use dtrain_recipes::{Subnet, TrainingEngine};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request to the relay's server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Request {
    /// Report the address under which other hosts reach this one, on `network` if given.
    Address { network: Option<Subnet> },
    /// Start the leader. The server replaces folders and programs of the order by its host's own.
    Lead {
        order: Box<AgentOrder>,
        /// Claim of the controller; the same in the other requests that have one.
        claim: Option<ControllerClaim>,
    },
    /// Start a follower.
    Follow { order: Box<FollowerOrder>, claim: Option<ControllerClaim> },
    /// Connect this stream to a leader.
    Reach { trial: TrialId, attempt: AttemptId, from: u64 },
    /// Send the whole spool of a dead agent; it may be larger than the client's memory.
    Leftover {
        trial: TrialId,
        attempt: AttemptId,
        from: u64,
        /// True to send this host's mirror of another host's spool.
        #[serde(default)]
        is_mirror: bool,
    },
    /// Report the facts that the planner needs.
    Facts,
    /// Report the Python environment in which an engine would run, with `python` if the recipe names one.
    Engine { engine: TrainingEngine, python: Option<String> },
    /// Install the Python environment of an engine; progress is reported until then.
    InstallEngine { engine: TrainingEngine, wheels: Option<PathBuf> },
    /// Start a measuring rank on this placement; the stream becomes its standard input and output.
    Measure { placement: Placement },
    /// List a trial's logs: of a rank in an attempt, or of the agents.
    Logs { trial: TrialId },
    /// Send a piece of a log, from byte `from`.
    Log { trial: TrialId, of: Option<(AttemptId, Rank)>, from: u64 },
    /// List the folders of a trial's checkpoints.
    Checkpoints { trial: TrialId, writer: CheckpointWriter },
    /// Send the bytes of a checkpoint file from byte `from`.
    Piece { trial: TrialId, writer: CheckpointWriter, folder: String, file: String, from: u64 },
    /// Send the CRC-32 of a checkpoint file.
    Crc32 { trial: TrialId, writer: CheckpointWriter, folder: String, file: String },
    /// Send the hashes of chunks of a checkpoint file.
    Hashes { trial: TrialId, folder: String, file: String, first: u64, count: u64 },
    /// Write base64 bytes into a file of a checkpoint that is not committed yet.
    Put { trial: TrialId, folder: String, file: String, from: u64, bytes: String },
    /// Verify an uploaded checkpoint and commit it with the content of its manifest.
    CommitPut { trial: TrialId, folder: String, manifest: String },
    /// Report if the recipe's folder with this digest is here, unchanged.
    Workdir { digest: String },
    /// Write base64 bytes of a recipe's folder that is being sent.
    PutWorkdir { digest: String, from: u64, bytes: String },
    /// Verify a recipe's folder that was sent, and put it in place.
    InstallWorkdir { digest: String },
    /// Report if the agent of an attempt is alive.
    IsAlive { trial: TrialId, attempt: AttemptId },
    /// Kill all attempts before `attempt` for good.
    Fence {
        trial: TrialId,
        attempt: AttemptId,
        /// `None` from a user, whose request is not refused.
        claim: Option<ControllerClaim>,
    },
    /// Remove the state of a trial that is not running.
    Remove { trial: TrialId },
    /// Kill an attempt for good.
    Kill { trial: TrialId, attempt: AttemptId, claim: Option<ControllerClaim> },
    /// Report the newest claim on a trial, after storing the one given.
    Claim { trial: TrialId, claim: Option<ControllerClaim> },
}

/// A reply of the relay's server.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Address(String),
    /// The launch is in progress; its answer follows.
    Launching,
    Leading(AgentCard),
    Following {
        address: String,
    },
    /// The agent was reached. From here on the stream belongs to the agent.
    Connected(AgentCard),
    Silent,
    Gone,
    /// The number of bytes that follow this reply.
    Bytes {
        bytes: u64,
    },
    Logs(Vec<Option<(AttemptId, Rank)>>),
    Checkpoints(Vec<FolderListing>),
    Hashes(Vec<Result<String, String>>),
    Crc32(u32),
    /// The bytes of a [`Request::Put`] are on disk.
    Stored,
    /// The host has the recipe's folder that was asked about.
    Workdir(bool),
    Killed {
        is_gone: bool,
    },
    Fenced {
        /// The attempt whose agent was killed, if one was alive.
        ended: Option<AttemptId>,
    },
    Facts(HostFacts),
    Engine(EngineEnvironment),
    /// A line that an installer printed. Others follow, and then the result.
    Installing {
        line: String,
    },
    /// The measuring rank was started. From here on the stream belongs to the rank.
    Measuring,
    Alive(bool),
    /// The state of a trial was removed; the number of bytes freed.
    Removed {
        bytes: u64,
    },
    /// The newest claim on the trial, if there is one.
    Claim(Option<ControllerClaim>),
    /// Nothing was done, because another controller has this newer claim.
    Superseded(ControllerClaim),
    /// The checkpoint to resume from is missing or damaged.
    NoCheckpoint {
        reason: String,
    },
    Failed {
        reason: String,
    },
    /// An attempt was not launched because of a host other than the one asked.
    FailedOn {
        host: String,
        reason: String,
    },
}

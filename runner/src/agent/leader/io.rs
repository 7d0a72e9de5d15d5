//! The configuration of the leader, and the inputs and effects of its state machine.

use super::super::messages::{HostMessage, LeaderMessage};
use super::super::peers::heartbeat::Heartbeat;
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::machine::Millis;
use crate::spool::SpoolRecord;
use dtrain_protocol::{Assignment, AttemptId};
use std::ops::Range;
use std::path::PathBuf;

/// Index of the leader's host.
pub(in crate::agent) const LEADER_HOST: u32 = 0;

/// Configuration of the leader for an attempt.
#[derive(Clone, Debug)]
pub(in crate::agent) struct AttemptConfig {
    pub(in crate::agent) attempt: AttemptId,
    /// Number of committed checkpoints to keep.
    pub(in crate::agent) keep: u32,
    /// True if each host has its own checkpoint folder, so that files are copied between hosts; false for one
    /// host or a shared folder.
    pub(in crate::agent) gathers: bool,
    /// Path of the folder of checkpoints on the leader's host.
    pub(in crate::agent) checkpoints: PathBuf,
    /// Name of the checkpoint folder to resume from.
    pub(in crate::agent) resume: Option<String>,
    /// The assignment of rank 0, from which manifests are written.
    pub(in crate::agent) first: Assignment,
    /// Address of the leader's host, for the rendezvous of foreign ranks.
    pub(in crate::agent) address: String,
}

/// The leader's state of one host of the attempt.
#[derive(Clone, Debug)]
pub(in crate::agent) struct HostState {
    /// Address of the host's agent.
    pub(in crate::agent) peer: PeerAddress,
    /// Ranks of the host; empty on a host that only lends its checkpoint files.
    pub(in crate::agent) ranks: Range<u32>,
    pub(in crate::agent) is_lost: bool,
    pub(in crate::agent) heartbeat: Heartbeat,
    /// Times of the last progress of the host's agent: of its loop, and of its checkpoint work.
    pub(in crate::agent) turned_at: Millis,
    pub(in crate::agent) worked_at: Millis,
}

impl HostState {
    /// Creates the state of a host that was just connected.
    pub(in crate::agent) fn new(peer: PeerAddress, ranks: Range<u32>, now: Millis) -> Self {
        Self { peer, ranks, is_lost: false, heartbeat: Heartbeat::default(), turned_at: now, worked_at: now }
    }

    pub(in crate::agent) fn only_lends(&self) -> bool {
        self.ranks.is_empty()
    }
}

/// An input to the leader's state machine.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) enum AttemptInput {
    /// A message from the agent of the host with this index.
    Host(u32, HostMessage),
    /// The host with this index is lost, for the reason given.
    Lost(u32, String),
    /// A heartbeat from the agent of the host with this index.
    Beat(u32, Heartbeat),
    /// A controller asks the ranks to stop.
    Stop,
    /// A controller asks the ranks to stop, so that the next attempt runs on other hosts.
    Regroup,
    /// A timer tick: deadlines are checked.
    Tick,
}

/// An effect that the leader's driver carries out.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) enum AttemptEffect {
    /// Append a record to the spool. If it must be durable, later effects wait until it is on disk.
    Spool(SpoolRecord),
    /// Send a message to the agent of the host with this index.
    Ask(u32, LeaderMessage),
    /// Write a line to the agent's log.
    Note(String),
    /// The ranks are started: report this to the controller.
    Announce,
    /// The launch failed: report this to the controller, and end.
    Refuse(LaunchError),
    /// No rank is alive: the attempt is over.
    End,
}

/// Time of an input: on the agent's monotonic clock, and in milliseconds since the Unix epoch, which only
/// stamps events.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct ClockReading {
    pub(in crate::agent) moment: Millis,
    pub(in crate::agent) wall_ms: u64,
}

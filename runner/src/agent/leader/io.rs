//! What the leader must know, what goes into it, and what comes out.

use super::super::control_protocol::SpoolRecord;
use super::super::messages::{Heartbeat, HostMessage, LeaderMessage};
use super::super::peers::PeerAddress;
use crate::launch::LaunchError;
use crate::machine::Millis;
use dtrain_protocol::{Assignment, AttemptId};
use std::ops::Range;
use std::path::PathBuf;

/// The host of the leader.
pub(in crate::agent) const LEADER_HOST: u32 = 0;

/// What the leader must know of its attempt.
#[derive(Clone, Debug)]
pub(in crate::agent) struct AttemptConfig {
    pub(in crate::agent) attempt: AttemptId,
    /// Committed checkpoints that are kept.
    pub(in crate::agent) keep: u32,
    /// Whether each host has checkpoints of its own, so that what one lacks is fetched from others; otherwise there is one host, or
    /// one folder that all hosts see.
    pub(in crate::agent) gathers: bool,
    /// The folder of checkpoints on the leader's host.
    pub(in crate::agent) checkpoints: PathBuf,
    /// Name of the folder of the checkpoint that the ranks go on from.
    pub(in crate::agent) resume: Option<String>,
    /// The assignment of rank 0, for the tables of contents.
    pub(in crate::agent) first: Assignment,
    /// Address of the leader's host, where foreign ranks meet.
    pub(in crate::agent) address: String,
}

/// A host of the attempt.
#[derive(Clone, Debug)]
pub(in crate::agent) struct HostState {
    /// Where its agent listens.
    pub(in crate::agent) peer: PeerAddress,
    /// Its ranks; none on a host that only lends what it has of the checkpoint.
    pub(in crate::agent) ranks: Range<u32>,
    pub(in crate::agent) is_lost: bool,
    pub(in crate::agent) heartbeat: Heartbeat,
    /// When its loop, and its work on checkpoints, were last seen to move.
    pub(in crate::agent) turned_at: Millis,
    pub(in crate::agent) worked_at: Millis,
}

impl HostState {
    /// A host that was just connected.
    pub(in crate::agent) fn new(peer: PeerAddress, ranks: Range<u32>, now: Millis) -> Self {
        Self { peer, ranks, is_lost: false, heartbeat: Heartbeat::default(), turned_at: now, worked_at: now }
    }

    pub(in crate::agent) fn only_lends(&self) -> bool {
        self.ranks.is_empty()
    }
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) enum AttemptInput {
    /// A host says something.
    Host(u32, HostMessage),
    /// A host is lost, and why.
    Lost(u32, String),
    /// A heartbeat of a host.
    Beat(u32, Heartbeat),
    /// A controller wants the ranks to stop.
    Stop,
    /// Time has passed.
    Tick,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::agent) enum AttemptEffect {
    /// Append a record to the spool. What follows one that must be durable waits until it is on disk.
    Spool(SpoolRecord),
    /// Ask a host.
    Ask(u32, LeaderMessage),
    /// Write a line to the agent's log.
    Note(String),
    /// The ranks are started: tell whoever launched the attempt.
    Announce,
    /// Nothing was started, or what was must end: tell whoever launched the attempt, and end.
    Refuse(LaunchError),
    /// No rank lives: the attempt is over.
    End,
}

/// When something happens: on the agent's own clock, and in milliseconds since the Unix epoch, which only stamps events.
#[derive(Clone, Copy, Debug)]
pub(in crate::agent) struct ClockReading {
    pub(in crate::agent) moment: Millis,
    pub(in crate::agent) wall_ms: u64,
}

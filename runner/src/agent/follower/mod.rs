//! The follower as a state machine: it serves the leader of its attempt on one host. Inputs in, effects out.
//!
//! It has no socket, clock, disk or process. The leader's own host has one too.

use super::foreign::Rendezvous;
use super::messages::{HostMessage, LeaderMessage, RankExit};
use super::peers::heartbeat::Heartbeat;
use crate::control_protocol::PeerAddress;
use crate::machine::Millis;
use dtrain_protocol::{Event, Failure, FileEntry, Order, Rank, SavedFile, StepId};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// Milliseconds within which the leader must connect.
const LEADER_CONNECT_MS: u64 = 60_000;

/// Milliseconds without progress of the leader's loop after which the leader counts as lost.
const LOOP_STALL_MS: u64 = 30_000;

/// Configuration of a host in an attempt.
#[derive(Clone, Debug)]
pub(super) struct HostConfig {
    /// Ranks of the host.
    pub(super) ranks: Range<u32>,
    /// Name of the checkpoint folder to resume from.
    pub(super) resume: Option<String>,
    /// True if the leader is in another process, which must connect and may be lost.
    pub(super) is_remote: bool,
}

/// An input to the state machine of a follower.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostInput {
    /// The leader has connected and sent its greeting.
    LeaderConnected,
    /// A message of the leader.
    Leader(LeaderMessage),
    /// The leader is lost, for the reason given.
    LeaderLost(String),
    /// A heartbeat of the leader.
    Beat(Heartbeat),
    /// An event of a rank of this host.
    Event(Rank, Event),
    /// A rank closed its output, or wrote something that is no event.
    OutputClosed { rank: Rank, garbled: Option<String>, last: Vec<String> },
    /// The process of a rank ended; `failure` if the kernel killed it for memory.
    Exited { rank: Rank, exit: RankExit, failure: Option<Failure> },
    /// A rank was stopped by a signal for too long, and was killed.
    Stuck(Rank, Failure),
    /// A task of this host is done; the message reports its result to the leader.
    Done(HostMessage),
    /// The system asks this agent to end.
    Terminate,
    /// A timer tick, on which deadlines are checked.
    Tick,
}

/// An effect that the follower's driver carries out.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostEffect {
    /// Send a message to the leader.
    Tell(HostMessage),
    /// Check that a rank's saved files exist; the result comes back as [`HostInput::Done`].
    CheckSaved { rank: Rank, step: StepId, folder: PathBuf, files: Vec<SavedFile>, stall_seconds: f64 },
    /// Queue a task that may take long; its result comes back as [`HostInput::Done`].
    Work(HostTask),
    /// Append base64 bytes of the leader's spool, starting at offset `from`, to its mirror.
    Mirror { from: u64, records: String },
    /// Start the ranks; the result comes back as [`HostInput::Done`].
    StartRanks(Rendezvous),
    /// Forward an order to a rank.
    Order(Rank, Arc<Order>),
    /// Kill a rank and its child processes.
    Kill(Rank),
    /// Kill all ranks and end. `Err` gives the reason of a failure.
    End(Result<(), String>),
}

/// A task on a host's disk and network, carried out in the background.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostTask {
    /// List the files of a checkpoint that this host has.
    List { folder: String },
    /// Fetch the missing files of a checkpoint, and commit it.
    Fetch { folder: String, files: Arc<[(FileEntry, Vec<PeerAddress>)]>, manifest: Arc<str> },
    /// Fetch the parts of a checkpoint that this host's ranks read, and keep the files named in `keep` whole.
    FetchParts {
        folder: String,
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        manifest: Arc<str>,
        keep: Vec<String>,
    },
    /// Find free ports for the rendezvous of foreign ranks.
    ReservePorts { ranks: u32, is_meeting: bool },
    /// Fetch copies of other hosts' files of a checkpoint, and write its manifest.
    Prepare { step: StepId, manifest: Arc<str>, copies: Vec<(FileEntry, Vec<PeerAddress>)> },
    /// Flush this host's mirror of the leader's spool to disk.
    SealMirror,
    /// Give a checkpoint its final name.
    Commit { step: StepId },
    /// Remove all but the newest `keep` checkpoints and the resumed one.
    Retain { keep: u32, resumed: Option<String> },
    /// Remove the files of a checkpoint that will not be committed.
    Discard { step: StepId },
}

/// State machine of a host in an attempt.
pub(super) struct Follower {
    settings: HostConfig,
    is_connected: bool,
    began: Millis,
    heartbeat: Heartbeat,
    turned_at: Millis,
    are_started: bool,
    is_over: bool,
    effects: Vec<HostEffect>,
}

impl Follower {
    /// Creates a follower whose leader has not connected yet.
    pub(super) fn new(settings: HostConfig, now: Millis) -> Self {
        Self {
            is_connected: !settings.is_remote,
            settings,
            began: now,
            heartbeat: Heartbeat::default(),
            turned_at: now,
            are_started: false,
            is_over: false,
            effects: Vec::new(),
        }
    }

    /// Handles one input and returns the effects, in order.
    pub(super) fn step(&mut self, now: Millis, input: HostInput) -> Vec<HostEffect> {
        if !self.is_over {
            self.handle_input(now, input);
        }
        std::mem::take(&mut self.effects)
    }

    fn handle_input(&mut self, now: Millis, input: HostInput) {
        match input {
            HostInput::LeaderConnected => (self.is_connected, self.turned_at) = (true, now),
            HostInput::Leader(message) => self.handle_order(message),
            HostInput::LeaderLost(reason) => self.end(Err(format!("the leader is lost: {reason}"))),
            HostInput::Beat(heartbeat) => {
                if heartbeat.turns != self.heartbeat.turns {
                    self.turned_at = now;
                }
                self.heartbeat = heartbeat;
            }
            HostInput::Event(rank, Event::Saved { step, folder, files, stall_seconds }) => {
                self.effects.push(HostEffect::CheckSaved { rank, step, folder, files, stall_seconds });
            }
            HostInput::Event(rank, event) => self.tell(HostMessage::Event { rank, event }),
            HostInput::OutputClosed { rank, garbled, last } => {
                self.tell(HostMessage::OutputClosed { rank, garbled, last });
            }
            HostInput::Exited { rank, exit, failure } => {
                if let Some(failure) = failure {
                    self.tell(HostMessage::Event { rank, event: Event::Failed(failure) });
                }
                self.tell(HostMessage::Exited { rank, exit });
            }
            HostInput::Stuck(rank, failure) => {
                self.tell(HostMessage::Event { rank, event: Event::Failed(failure) });
            }
            HostInput::Done(message) => self.tell(message),
            HostInput::Terminate if self.is_connected => self.tell(HostMessage::Terminated),
            HostInput::Terminate => {
                self.end(Err("the system ended this agent before a leader came".to_owned()));
            }
            HostInput::Tick => self.tick(now),
        }
    }

    fn tick(&mut self, now: Millis) {
        if !self.settings.is_remote {
            return;
        }
        if !self.is_connected && now >= self.began.after(LEADER_CONNECT_MS) {
            self.end(Err(format!("no leader came within {} s", LEADER_CONNECT_MS / 1000)));
        } else if self.is_connected && now >= self.turned_at.after(LOOP_STALL_MS) {
            self.end(Err(format!("the leader did nothing for {} s", LOOP_STALL_MS / 1000)));
        }
    }

    fn tell(&mut self, message: HostMessage) {
        self.effects.push(HostEffect::Tell(message));
    }

    fn end(&mut self, outcome: Result<(), String>) {
        self.is_over = true;
        self.effects.push(HostEffect::End(outcome));
    }

    fn work(&mut self, work: HostTask) {
        self.effects.push(HostEffect::Work(work));
    }

    /// Handles a message of the leader.
    fn handle_order(&mut self, message: LeaderMessage) {
        match message {
            LeaderMessage::ListCheckpoint { folder } => self.work(HostTask::List { folder }),
            LeaderMessage::FetchCheckpoint { folder, files, manifest } => {
                self.work(HostTask::Fetch { folder, files, manifest });
            }
            LeaderMessage::FetchParts { folder, files, manifest, keep } => {
                self.work(HostTask::FetchParts { folder, files, manifest, keep });
            }
            LeaderMessage::ReservePorts { ranks, is_meeting } => {
                self.work(HostTask::ReservePorts { ranks, is_meeting });
            }
            LeaderMessage::Start { .. } if self.are_started => {
                self.end(Err("the leader starts the ranks a second time".to_owned()));
            }
            LeaderMessage::Start { rendezvous } => {
                self.are_started = true;
                self.effects.push(HostEffect::StartRanks(rendezvous));
            }
            LeaderMessage::Kill { rank } if !self.has(rank) => {
                self.end(Err(format!(
                    "the leader gives an order to rank {rank}, which was not started here"
                )));
            }
            LeaderMessage::Order { .. } if !self.are_started => {
                self.end(Err("the leader gives an order to ranks that were not started here".to_owned()));
            }
            LeaderMessage::Order { order } => {
                let ranks = self.settings.ranks.clone().map(Rank);
                self.effects.extend(ranks.map(|rank| HostEffect::Order(rank, Arc::clone(&order))));
            }
            LeaderMessage::Kill { rank } => self.effects.push(HostEffect::Kill(rank)),
            LeaderMessage::Prepare { step, manifest, copies } => {
                self.work(HostTask::Prepare { step, manifest, copies });
            }
            LeaderMessage::Commit { step } => self.work(HostTask::Commit { step }),
            LeaderMessage::Retain { keep } => {
                self.work(HostTask::Retain { keep, resumed: self.settings.resume.clone() });
            }
            LeaderMessage::Discard { step } => self.work(HostTask::Discard { step }),
            LeaderMessage::Mirror { from, records } => {
                self.effects.push(HostEffect::Mirror { from, records });
            }
            LeaderMessage::SealMirror => self.work(HostTask::SealMirror),
            LeaderMessage::Dismiss => self.end(Ok(())),
        }
    }

    fn has(&self, rank: Rank) -> bool {
        self.are_started && self.settings.ranks.contains(&rank.0)
    }
}

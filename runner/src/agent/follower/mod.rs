//! What an agent does for the leader of its attempt on its own host, as a state machine: what happens goes in, what is to be
//! done comes out.
//!
//! It has no socket, clock, disk or process. The leader's own host is served by one too.

use super::foreign::Rendezvous;
use super::messages::{Heartbeat, HostMessage, LeaderMessage, RankExit};
use super::peers::PeerAddress;
use crate::machine::Millis;
use dtrain_protocol::{Event, Failure, FileEntry, Order, Rank, SavedFile, StepId};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// How long the leader may take to come.
const LEADER_CONNECT_MS: u64 = 60_000;

/// How long the loop of the leader may stand still before it is taken for lost.
const LOOP_STALL_MS: u64 = 30_000;

/// What a host must know of its attempt.
#[derive(Clone, Debug)]
pub(super) struct HostConfig {
    /// Its ranks.
    pub(super) ranks: Range<u32>,
    /// Name of the folder of the checkpoint that they go on from.
    pub(super) resume: Option<String>,
    /// Whether its leader is in another process, which must connect and may be lost.
    pub(super) is_remote: bool,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostInput {
    /// The leader has connected.
    LeaderConnected,
    /// The leader asks for something.
    Leader(LeaderMessage),
    /// The leader is lost, and why.
    LeaderLost(String),
    /// A heartbeat of the leader.
    Beat(Heartbeat),
    /// A rank of this host said something.
    Event(Rank, Event),
    /// A rank closed its output, or wrote what is not an event.
    OutputClosed { rank: Rank, garbled: Option<String>, last: Vec<String> },
    /// The process of a rank ended; with the reason where the kernel killed it for memory.
    Exited { rank: Rank, exit: RankExit, failure: Option<Failure> },
    /// A rank cannot go on, and was killed for it.
    Stuck(Rank, Failure),
    /// Work is done, and this is what to say of it.
    Done(HostMessage),
    /// The system wants this agent to end.
    Terminate,
    /// Time has passed.
    Tick,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostEffect {
    /// Tell the leader.
    Tell(HostMessage),
    /// Look at once whether the files that a rank saved are there; that they are, or not, comes back as [`HostInput::Done`].
    CheckSaved { rank: Rank, step: StepId, folder: PathBuf, files: Vec<SavedFile>, stall_seconds: f64 },
    /// Start work that may take long, after all earlier work; its outcome comes back as [`HostInput::Done`].
    Work(HostTask),
    /// Append bytes, in base64, to the copy of the leader's spool, where they begin at that place of it.
    Mirror { from: u64, records: String },
    /// Start the ranks; the outcome comes back as [`HostInput::Done`].
    StartRanks(Rendezvous),
    /// Hand an order on to a rank.
    Order(Rank, Arc<Order>),
    /// Kill a rank and what it started.
    Kill(Rank),
    /// End: kill what lives. `Err` says why it could not go on.
    End(Result<(), String>),
}

/// Work on the disk and the network of a host.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum HostTask {
    /// See what is there of a checkpoint.
    List { folder: String },
    /// Fetch the files of a checkpoint that are not there, and commit it.
    Fetch { folder: String, files: Arc<[(FileEntry, Vec<PeerAddress>)]>, manifest: Arc<str> },
    /// Fetch what the ranks here read of a checkpoint, and keep the files of these names whole.
    FetchParts {
        folder: String,
        files: Arc<[(FileEntry, Vec<PeerAddress>)]>,
        manifest: Arc<str>,
        keep: Vec<String>,
    },
    /// Find free ports.
    ReservePorts { ranks: u32, is_meeting: bool },
    /// Fetch copies, and write the table of contents.
    Prepare { step: StepId, manifest: Arc<str>, copies: Vec<(FileEntry, Vec<PeerAddress>)> },
    /// Put the copy of the leader's spool on disk.
    SealMirror,
    /// Give a checkpoint its final name.
    Commit { step: StepId },
    /// Remove superfluous checkpoints.
    Retain { keep: u32, resumed: Option<String> },
    /// Remove what lies of a checkpoint that there will not be.
    Discard { step: StepId },
}

/// A host in an attempt.
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
    /// A host whose leader has not come yet.
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

    /// Takes in what happened and says what to do, in order.
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
                self.end(Err("the system ended this agent before a leader came".to_owned()))
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

    /// Does what the leader asks for.
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
                self.effects.push(HostEffect::Mirror { from, records })
            }
            LeaderMessage::SealMirror => self.work(HostTask::SealMirror),
            LeaderMessage::Dismiss => self.end(Ok(())),
        }
    }

    fn has(&self, rank: Rank) -> bool {
        self.are_started && self.settings.ranks.contains(&rank.0)
    }
}

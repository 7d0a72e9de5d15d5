//! The driver of a host in an attempt: the follower's state machine with processes, disk and clock.

use super::follower::{Follower, HostConfig, HostEffect, HostInput};
use super::foreign::Rendezvous;
use super::messages::{HostMessage, RankExit};
use super::notice::{NoticePoller, PolledRanks};
use super::peers::heartbeat::LoopCounters;
use super::peers::listener::PeerListener;
use super::rank_process::{self, RankChange, RankProcess};
use super::spawn_context::SpawnContext;
use super::spool_mirror::SpoolMirror;
use super::work_queue::{WorkContext, WorkQueue};
use super::{InboxMessage, checkpoint_parts, log_line, resumed_folder_name};
use crate::checkpoints::commit;
use crate::control_protocol::FollowerOrder;
use crate::descendants;
use crate::home::TrialFolder;
use crate::machine::Millis;
use crate::process::Process;
use crate::workdir::hold;
use dtrain_protocol::{Assignment, Event, Rank, RankTransport};
use rustix::fd::OwnedFd;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Time that pending checkpoint work may take after the attempt is over.
const TO_FINISH: Duration = Duration::from_secs(60);

/// Time for child processes of ranks to end once killed. The next attempt waits longer than that for this
/// agent.
const TO_GO: Duration = Duration::from_secs(5);

/// Time between two reaps of orphaned child processes of ranks.
const REAP_EVERY: Duration = Duration::from_secs(1);

/// The driver of one host in an attempt.
pub(super) struct HostDriver<'a> {
    order: &'a FollowerOrder,
    folder: TrialFolder,
    follower: Follower,
    ranks: Vec<RankProcess>,
    /// Shared memory that the ranks of this host inherit for their link.
    mapping: Option<Arc<OwnedFd>>,
    work_queue: WorkQueue,
    mirror: SpoolMirror,
    /// Polls for the notice that this machine will be taken away, once the ranks run.
    notices: Option<NoticePoller>,
    /// Folder to resume from, if the ranks do not read the checkpoint itself.
    fetched: Arc<OnceLock<PathBuf>>,
    inbox: Sender<InboxMessage>,
    began: Instant,
    /// Time at which the agent no longer waits for output of ended ranks that is still open.
    closed_by: Option<Instant>,
    /// Time of the last reap of orphaned processes.
    reaped_at: Instant,
    /// Lock on the recipe's folder that this host received, which keeps it from being removed.
    _workdir: Option<File>,
    /// Result of the attempt on this host, once it has ended here.
    pub(super) ended: Option<Result<(), String>>,
}

impl<'a> HostDriver<'a> {
    /// Creates the driver of a host that starts nothing yet; `listener` is present if other hosts take part.
    pub(super) fn new(
        order: &'a FollowerOrder,
        is_remote: bool,
        listener: Option<Arc<PeerListener>>,
        mapping: Option<Arc<OwnedFd>>,
        loop_counters: &Arc<LoopCounters>,
        inbox: &Sender<InboxMessage>,
    ) -> Self {
        let first = order.assignments.first();
        let framework = first.and_then(Assignment::framework);
        let folder = TrialFolder::at(&order.folder);
        let fetched = Arc::<OnceLock<PathBuf>>::default();
        let context = WorkContext {
            attempt: order.attempt,
            trial: folder.clone(),
            listener,
            host: order.seat.host,
            bind: order.seat.bind.clone(),
            framework,
            assignments: order.assignments.clone(),
            fetched: Arc::clone(&fetched),
            loop_counters: Arc::clone(loop_counters),
        };
        let done = inbox.clone();
        let work_queue =
            WorkQueue::start(context, move |message| drop(done.send(InboxMessage::Done(message))));
        let begin = first.map_or(0, |one| one.rank.0);
        let end = begin + u32::try_from(order.assignments.len()).unwrap_or(u32::MAX);
        let settings =
            HostConfig { ranks: begin..end, resume: resumed_folder_name(&order.assignments), is_remote };
        Self {
            order,
            follower: Follower::new(settings, Millis(0)),
            ranks: Vec::new(),
            mapping,
            work_queue,
            mirror: SpoolMirror::at(folder.mirror(order.attempt)),
            notices: None,
            folder,
            fetched,
            inbox: inbox.clone(),
            began: Instant::now(),
            closed_by: None,
            reaped_at: Instant::now(),
            _workdir: first.filter(|one| one.workdir.is_some()).and_then(|one| hold(&one.data_root).ok()),
            ended: None,
        }
    }

    /// Handles an input of the follower's state machine; returns messages for the leader.
    pub(super) fn step(&mut self, input: HostInput) -> Vec<HostMessage> {
        if let HostInput::OutputClosed { rank, .. } = &input {
            let index = self.index(*rank);
            self.ranks[index].is_output_closed = true;
        }
        let passed = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mut told = Vec::new();
        for effect in self.follower.step(Millis(passed), input) {
            self.carry_out(effect, &mut told);
        }
        told
    }

    fn carry_out(&mut self, effect: HostEffect, told: &mut Vec<HostMessage>) {
        match effect {
            HostEffect::Tell(message) => told.push(message),
            HostEffect::CheckSaved { rank, step, folder, files, stall_seconds } => {
                let event = match commit::check(&folder, &files) {
                    Ok(()) => Event::Saved { step, folder, files, stall_seconds },
                    Err(reason) => Event::SaveFailed { step, reason, retries: false },
                };
                told.extend(self.step(HostInput::Done(HostMessage::Event { rank, event })));
            }
            HostEffect::Mirror { from, records } => {
                if let Err(words) = self.mirror.append(from, &records) {
                    log_line(&format!("the copy of the leader's record is not kept: {words}"));
                }
            }
            HostEffect::Work(work) => self.work_queue.add(work),
            HostEffect::StartRanks(rendezvous) => {
                let outcome = self.start(&rendezvous);
                told.extend(self.step(HostInput::Done(HostMessage::Started { outcome })));
            }
            HostEffect::Order(rank, order) => {
                let index = self.index(rank);
                if let Some(process) = self.ranks.get(index) {
                    process.send_order(&order);
                }
            }
            HostEffect::Kill(rank) => {
                let index = self.index(rank);
                if let Some(process) = self.ranks.get_mut(index) {
                    process.kill();
                }
            }
            HostEffect::End(outcome) => self.ended = Some(outcome),
        }
    }

    fn index(&self, rank: Rank) -> usize {
        let first = self.order.assignments.first().map_or(0, |one| one.rank.0);
        rank.0.saturating_sub(first) as usize
    }

    /// Starts the ranks that the controller ordered.
    fn start(&mut self, rendezvous: &Rendezvous) -> Result<(), String> {
        let assignments = &self.order.assignments;
        let checkpoints = self.folder.checkpoints();
        // Not earlier: a checkpoint that only some hosts committed may still have its partial name here. With
        // a shared folder, the leader's host is enough.
        if !self.order.seat.is_shared || self.order.seat.host == 0 {
            commit::remove_partial(&checkpoints, self.order.attempt)
                .and_then(|()| {
                    checkpoint_parts::remove_fetched(&self.folder, self.fetched.get().map(PathBuf::as_path))
                })
                .map_err(|error| format!("old checkpoints: {error}"))?;
        }
        let (first, resume) =
            (assignments.first().map_or(Rank(0), |one| one.rank), resumed_folder_name(assignments));
        let context = SpawnContext {
            attempt: self.order.attempt,
            folder: &self.folder,
            worker: &self.order.worker,
            rendezvous,
            bind: &self.order.seat.bind,
            first,
            ranks: u32::try_from(assignments.len()).unwrap_or(u32::MAX),
        };
        for assignment in assignments {
            let mut assignment = assignment.clone();
            assignment.checkpoints.clone_from(&checkpoints);
            if let (Some(point), Some(name)) = (&mut assignment.resume, &resume) {
                point.folder = self.fetched.get().cloned().unwrap_or_else(|| checkpoints.join(name));
            }
            if let RankTransport::Tls { bind, .. } = &mut assignment.link {
                bind.clone_from(&self.order.seat.bind);
            }
            let rank = RankProcess::start(&context, &assignment, self.mapping.clone(), &self.inbox)
                .map_err(|error| format!("rank {} cannot be started: {error}", assignment.rank))?;
            self.ranks.push(rank);
        }
        if let (Some(poll), Some(assignment)) = (&self.order.notice, assignments.first()) {
            let (trial, attempt, folder) = (&self.order.trial, self.order.attempt, &assignment.data_root);
            let ranks = PolledRanks { trial, attempt, first, folder };
            self.notices = Some(NoticePoller::start(poll, ranks, &self.inbox));
        }
        Ok(())
    }

    /// Returns the processes of the started ranks.
    pub(super) fn processes(&self) -> Vec<Process> {
        self.ranks.iter().filter_map(|rank| Process::of(rank.id())).collect()
    }

    /// Checks the ranks and advances time; returns messages for the leader.
    pub(super) fn poll(&mut self) -> io::Result<Vec<HostMessage>> {
        let first = self.order.assignments.first().map_or(0, |one| one.rank.0);
        let rank = |index: usize| Rank(first + u32::try_from(index).unwrap_or(u32::MAX));
        let mut told = Vec::new();
        for change in rank_process::poll_ranks(&mut self.ranks, &mut self.closed_by)? {
            told.extend(self.step(match change {
                RankChange::Exited { index, code, signal, failure } => {
                    HostInput::Exited { rank: rank(index), exit: RankExit { code, signal }, failure }
                }
                RankChange::GivenUp { index } => {
                    HostInput::OutputClosed { rank: rank(index), garbled: None, last: Vec::new() }
                }
                RankChange::Frozen { index, failure } => HostInput::Stuck(rank(index), failure),
            }));
        }
        if self.reaped_at.elapsed() >= REAP_EVERY {
            self.reaped_at = Instant::now();
            match &self.notices {
                Some(poller) => poller.sparing(|command| rank_process::reap_orphans(&self.ranks, command)),
                None => rank_process::reap_orphans(&self.ranks, None),
            }
        }
        told.extend(self.step(HostInput::Tick));
        Ok(told)
    }

    /// Kills the ranks and their child processes; an orderly end also finishes pending work.
    pub(super) fn close(&mut self, is_orderly: bool) {
        if let Some(poller) = self.notices.take() {
            poller.close();
        }
        self.ranks.iter_mut().for_each(RankProcess::kill);
        self.ranks.iter().for_each(RankProcess::kill_leftovers);
        let alive = descendants::kill_all(std::process::id(), TO_GO);
        if !alive.is_empty() {
            log_line(&format!("what the ranks started cannot be killed: processes {alive:?}"));
        }
        if is_orderly {
            self.work_queue.finish(TO_FINISH);
        }
    }
}

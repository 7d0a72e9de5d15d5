//! One rank as an agent holds it: a process, a pipe of orders to it, and a thread that reads its events.

use super::control_protocol::Program;
use super::oom_killer::MemoryWatch;
use super::{InboxMessage, foreign};
use crate::cuda;
use crate::files;
use crate::home::TrialFolder;
use crate::process::set_compute_environment;
use crate::{channel, descendants};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{Assignment, AttemptId, Event, Failure, Order, Rank};
use dtrain_recipes::Model;
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long the output of a rank that ended may stay open: a process it left behind may hold it.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// How often it is looked whether a rank was stopped by a signal.
const FREEZE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// A rank that so many glances in a row find stopped is given up. Glances are counted, not seconds: whoever stops the agent
/// together with its ranks, and lets both go on, has stopped nothing of the trial.
const FREEZE_CHECKS: u32 = 8;

/// What all ranks that an agent starts have in common.
pub(super) struct SpawnContext<'a> {
    pub(super) attempt: AttemptId,
    pub(super) folder: &'a TrialFolder,
    pub(super) worker: &'a Program,
    pub(super) rendezvous: &'a foreign::Rendezvous,
    /// The address of this host for the others.
    pub(super) bind: &'a str,
    /// The first rank of this host.
    pub(super) first: Rank,
    /// Ranks of this host.
    pub(super) ranks: u32,
}

/// A rank's process.
pub(super) struct RankProcess {
    child: Child,
    /// Frames to be written to the rank; dropping it closes the rank's standard input. None for a foreign program.
    orders: Option<Sender<Vec<u8>>>,
    /// How it ended, once waited for.
    exit: Option<ExitStatus>,
    /// Whether all it said was read.
    pub(super) is_output_closed: bool,
    /// Whether the agent itself killed it.
    was_killed: bool,
    /// Glances in a row that found it stopped, and when the last one was.
    stopped: (u32, Instant),
    memory: MemoryWatch,
}

impl RankProcess {
    /// Starts the process of one rank. To be called from a thread that outlives it.
    pub(super) fn start(
        context: &SpawnContext<'_>,
        assignment: &Assignment,
        mapping: Option<Arc<OwnedFd>>,
        inbox: &Sender<InboxMessage>,
    ) -> io::Result<Self> {
        let rank = assignment.rank;
        let path = context.folder.rank_log(context.attempt, rank);
        let log = files::append(&path)?;
        let rank_process = match &assignment.model {
            Model::Command(command) => {
                let (child, rank_output) = foreign::start(command, assignment, context, (log, path))?;
                foreign::spawn_readers(rank_output, rank, inbox);
                Self::of(child, None)
            }
            Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) | Model::Custom(_) => {
                let mut command = Command::new(&context.worker.path);
                command
                    .args(&context.worker.arguments)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::from(log.try_clone()?))
                    .stderr(Stdio::from(log))
                    .process_group(0)
                    .envs(descendants::rank_markers(&assignment.trial.0, context.attempt));
                set_compute_environment(&mut command, assignment.placement.threads);
                cuda::prepare(&mut command, assignment.placement.device)?;
                let (mut child, messages) = channel::spawn_bound(command, mapping.as_slice())?;
                let stdin = child.stdin.take().expect("it is piped");
                spawn_event_reader(rank, inbox, messages, read_frames);
                Self::of(child, Some(write_orders(stdin)))
            }
        };
        rank_process.write(frame::encode(assignment));
        Ok(rank_process)
    }

    fn of(child: Child, orders: Option<Sender<Vec<u8>>>) -> Self {
        Self {
            memory: MemoryWatch::at_start(child.id()),
            child,
            orders,
            exit: None,
            is_output_closed: false,
            was_killed: false,
            stopped: (0, Instant::now()),
        }
    }

    /// Process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order. A rank that no longer reads misses it.
    pub(super) fn send_order(&self, order: &Order) {
        if self.orders.is_none() && *order == Order::Stop {
            self.signal(Signal::TERM);
        }
        self.write(frame::encode(order));
    }

    fn write(&self, bytes: Vec<u8>) {
        if let Some(orders) = &self.orders {
            drop(orders.send(bytes));
        }
    }

    /// Kills the rank and the processes it started.
    pub(super) fn kill(&mut self) {
        if self.exit.is_some() {
            return;
        }
        self.was_killed = true;
        // Once the rank is gone, those in groups of their own are orphans like any other.
        let started = descendants::descendants_of(self.id());
        self.signal(Signal::KILL);
        started.into_iter().for_each(crate::process::kill);
    }

    /// Nothing is sent once the process was waited for: its id may be another's by then.
    fn signal(&self, signal: Signal) {
        if self.exit.is_none()
            && let Some(group) = crate::process::pid(self.id())
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Kills what a rank that ended left behind in its group.
    pub(super) fn kill_leftovers(&self) {
        crate::process::kill_group(self.id(), std::process::id());
    }

    /// Looks whether the process has ended; tells whether this is news.
    fn poll_exit(&mut self) -> io::Result<bool> {
        if self.exit.is_some() {
            return Ok(false);
        }
        self.exit = self.child.try_wait()?;
        Ok(self.exit.is_some())
    }

    /// Looks now and then whether the process stands still; true, once, when it has for too long.
    fn is_frozen(&mut self) -> bool {
        let (glances, last) = self.stopped;
        if self.exit.is_some() || last.elapsed() < FREEZE_CHECK_INTERVAL {
            return false;
        }
        let is_stopped = crate::process::is_stopped(self.id());
        let glances = if is_stopped { glances + 1 } else { 0 };
        self.stopped = (glances, Instant::now());
        self.memory.sample(self.id());
        glances == FREEZE_CHECKS
    }

    /// Why it was killed, where the agent did not and the kernel did it for memory.
    fn killed_for_memory(&self) -> Option<Failure> {
        let signal = self.exit.and_then(|exit| exit.signal())?;
        if signal == Signal::KILL.as_raw() && !self.was_killed { self.memory.oom_failure() } else { None }
    }
}

/// What became of a rank of this host.
pub(super) enum RankChange {
    /// Its process ended, and why where exit code and signal tell too little.
    Exited { index: usize, code: Option<i32>, signal: Option<i32>, failure: Option<Failure> },
    /// It ended a while ago, and what it left behind, now killed, kept its output open.
    GivenUp { index: usize },
    /// Somebody stopped it, and it was killed.
    Frozen { index: usize, failure: Failure },
}

/// Lets go of what ranks of this host started and that has ended.
pub(super) fn reap_orphans(ranks: &[RankProcess]) {
    let ids: Vec<u32> = ranks.iter().map(RankProcess::id).collect();
    descendants::reap_orphans(&ids);
}

/// Looks what became of the ranks of this host since the last look. `closed_by` is when output that is still open is given up.
pub(super) fn poll_ranks(
    ranks: &mut [RankProcess],
    closed_by: &mut Option<Instant>,
) -> io::Result<Vec<RankChange>> {
    let mut changes = Vec::new();
    for (index, rank) in ranks.iter_mut().enumerate() {
        if rank.poll_exit()? {
            *closed_by = Some(Instant::now() + OUTPUT_GRACE);
            let (code, signal) = rank.exit.map_or((None, None), |exit| (exit.code(), exit.signal()));
            changes.push(RankChange::Exited { index, code, signal, failure: rank.killed_for_memory() });
        }
        if rank.is_frozen() {
            rank.kill();
            let seconds = (FREEZE_CHECK_INTERVAL * FREEZE_CHECKS).as_secs();
            let failure = Failure::Other(format!("it was stopped by a signal for {seconds} s"));
            changes.push(RankChange::Frozen { index, failure });
        }
    }
    if closed_by.is_some_and(|closed_by| Instant::now() >= closed_by) {
        *closed_by = None;
        for (index, rank) in ranks.iter_mut().enumerate() {
            if rank.exit.is_some() && !rank.is_output_closed {
                rank.kill_leftovers();
                rank.is_output_closed = true;
                changes.push(RankChange::GivenUp { index });
            }
        }
    }
    Ok(changes)
}

/// Reads what a rank says in a thread of its own, until it closes its end.
fn spawn_event_reader<R: Read + Send + 'static>(
    rank: Rank,
    inbox: &Sender<InboxMessage>,
    from: R,
    read: impl FnOnce(R, &mut dyn FnMut(Event)) -> Result<(), FrameError> + Send + 'static,
) {
    let inbox = inbox.clone();
    thread::spawn(move || {
        let end = read(from, &mut |event| drop(inbox.send(InboxMessage::Event(rank, event))));
        let garbled = end.err().map(|error| error.to_string());
        drop(inbox.send(InboxMessage::OutputClosed { rank, garbled, last: Vec::new() }));
    });
}

fn read_frames(from: impl Read, say: &mut dyn FnMut(Event)) -> Result<(), FrameError> {
    let mut from = BufReader::new(from);
    loop {
        match frame::read(&mut from) {
            Ok(event) => say(event),
            // A rank that is killed inside a frame said nothing wrong.
            Err(FrameError::Closed | FrameError::Torn) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Writes orders in a thread of its own: a rank that does not read must not hold up the agent.
fn write_orders(mut to: ChildStdin) -> Sender<Vec<u8>> {
    let (orders, queue) = channel::<Vec<u8>>();
    thread::spawn(move || {
        for frame in queue {
            if to.write_all(&frame).and_then(|()| to.flush()).is_err() {
                return;
            }
        }
    });
    orders
}

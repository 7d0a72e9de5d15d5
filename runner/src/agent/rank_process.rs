//! The process of one rank, with a pipe for orders and a thread that reads its events.

use super::oom_killer::MemoryWatch;
use super::spawn_context::SpawnContext;
use super::{InboxMessage, foreign};
use crate::cuda;
use crate::files;
use crate::process::set_compute_environment;
use crate::{channel, descendants};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{Assignment, Event, Failure, Order, Rank};
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which output may stay open after its rank has ended: a child process may hold it.
const OUTPUT_GRACE: Duration = Duration::from_secs(1);

/// Time between two checks for a stopped rank.
const FREEZE_CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// Number of consecutive checks that find a rank stopped before it is given up. Not seconds: if the agent is
/// stopped and continued together with its ranks, nothing is wrong.
const FREEZE_CHECKS: u32 = 8;

/// The process of a rank.
pub(super) struct RankProcess {
    child: Child,
    /// Queue of frames for the rank; dropping it closes the rank's standard input. `None` for a foreign
    /// program.
    orders: Option<Sender<Vec<u8>>>,
    /// Exit status of the process, once it was reaped.
    exit: Option<ExitStatus>,
    /// True if all output of the rank was read.
    pub(super) is_output_closed: bool,
    /// True if the agent killed the rank.
    was_killed: bool,
    /// Number of consecutive checks that found the process stopped, and the time of the last check.
    stopped: (u32, Instant),
    memory: MemoryWatch,
}

impl RankProcess {
    /// Starts the process of one rank. The calling thread must outlive it.
    pub(super) fn start(
        context: &SpawnContext<'_>,
        assignment: &Assignment,
        mapping: Option<Arc<OwnedFd>>,
        inbox: &Sender<InboxMessage>,
    ) -> io::Result<Self> {
        let rank = assignment.rank;
        let path = context.folder.rank_log(context.attempt, rank);
        let log = files::append(&path)?;
        let rank_process = match foreign::program(assignment, context)? {
            Some(program) => {
                let (child, rank_output) = foreign::start(&program, assignment, context, (log, path))?;
                foreign::spawn_readers(rank_output, rank, inbox);
                Self::of(child, None)
            }
            None => {
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

    /// Returns the id of the rank's process.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends an order to the rank. A rank that no longer reads does not get it.
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

    /// Kills the rank and its child processes.
    pub(super) fn kill(&mut self) {
        if self.exit.is_some() {
            return;
        }
        self.was_killed = true;
        // Once the rank is gone, children in process groups of their own cannot be found.
        let started = descendants::descendants_of(self.id());
        self.signal(Signal::KILL);
        started.into_iter().for_each(crate::process::kill);
    }

    /// Sends a signal to the rank's process group, unless the process was reaped: then its id may belong to
    /// another.
    fn signal(&self, signal: Signal) {
        if self.exit.is_none()
            && let Some(group) = crate::process::pid(self.id())
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Kills the remaining processes of an ended rank's group.
    pub(super) fn kill_leftovers(&self) {
        crate::process::kill_group(self.id(), std::process::id());
    }

    /// Checks if the process has ended; returns `true` the first time that it has.
    fn poll_exit(&mut self) -> io::Result<bool> {
        if self.exit.is_some() {
            return Ok(false);
        }
        self.exit = self.child.try_wait()?;
        Ok(self.exit.is_some())
    }

    /// Checks from time to time if the process is stopped; returns `true`, once, if it has been for too long.
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

    /// Returns an out-of-memory failure if the kernel, and not the agent, killed the rank.
    fn killed_for_memory(&self) -> Option<Failure> {
        let signal = self.exit.and_then(|exit| exit.signal())?;
        if signal == Signal::KILL.as_raw() && !self.was_killed { self.memory.oom_failure() } else { None }
    }
}

/// A change of a rank of this host.
pub(super) enum RankChange {
    /// The rank's process ended; `failure` if code and signal do not tell the cause.
    Exited { index: usize, code: Option<i32>, signal: Option<i32>, failure: Option<Failure> },
    /// The rank ended a while ago, and its child processes, now killed, kept its output open.
    GivenUp { index: usize },
    /// The rank was stopped by a signal for too long, and was killed.
    Frozen { index: usize, failure: Failure },
}

/// Reaps the ended child processes of ranks, but not the process `other`.
pub(super) fn reap_orphans(ranks: &[RankProcess], other: Option<u32>) {
    let ids: Vec<u32> = ranks.iter().map(RankProcess::id).chain(other).collect();
    descendants::reap_orphans(&ids);
}

/// Returns the changes of this host's ranks since the last call. Open output is given up at `closed_by`.
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

/// Reads the events of a rank in a thread, until the rank closes its end.
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
            // A rank may be killed within a frame: that is no error of its own.
            Err(FrameError::Closed | FrameError::Torn) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Writes orders to the rank in a thread: a rank that does not read must not block the agent.
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

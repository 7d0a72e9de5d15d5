//! One rank as an agent holds it: a process, a pipe of orders to it, and a thread that reads its events. The leader holds
//! those of other hosts too, through their agents.

use super::memory::Memory;
use super::order::Program;
use super::peers::Told;
use super::peers::cord::Cord;
use super::{Message, foreign};
use crate::home::TrialFolder;
use crate::process::{bind_to_this_thread, for_compute};
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{Assignment, AttemptId, Event, Failure, Order, Rank, StepId, StopReason};
use dtrain_recipes::Model;
use rustix::fd::OwnedFd;
use rustix::process::Signal;
use std::fs::OpenOptions;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long the output of a rank that ended may stay open: a process it left behind may hold it.
const AFTER_AN_EXIT: Duration = Duration::from_secs(1);

/// How often it is looked whether a rank was stopped by a signal.
const GLANCE: Duration = Duration::from_millis(250);

/// A rank that so many glances in a row find stopped is given up. Glances are counted, not seconds: whoever stops the agent
/// together with its ranks, and lets both go on, has stopped nothing of the trial.
const GLANCES: u32 = 8;

/// What all ranks that an agent starts have in common.
pub(super) struct Ground<'a> {
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
    body: Body,
    /// How it ended, once waited for.
    pub(super) exit: Option<ExitStatus>,
    /// Whether all it said was read.
    pub(super) is_heard_out: bool,
    /// The last lines that a foreign program printed.
    pub(super) last: Vec<String>,
    /// Why it stopped, once it said that it did all it was told.
    pub(super) finished: Option<StopReason>,
    /// Whether it said why it cannot go on.
    pub(super) failed: bool,
    /// Whether the agent itself killed it.
    pub(super) was_killed: bool,
    /// Events it said so far.
    pub(super) sequence: u64,
    is_foreign: bool,
    /// Glances in a row that found it stopped, and when the last one was.
    stopped: (u32, Instant),
    memory: Memory,
}

/// How a process is reached.
enum Body {
    /// It is a child of this one.
    Here {
        child: Child,
        /// Frames to be written to the rank; dropping it closes the rank's standard input.
        orders: Option<Sender<Vec<u8>>>,
    },
    /// It runs on another host.
    There { rank: Rank, agent: Arc<Cord> },
}

impl RankProcess {
    /// Starts the process of one rank. To be called from a thread that outlives it.
    pub(super) fn start(
        ground: &Ground<'_>,
        assignment: &Assignment,
        mapping: Option<Arc<OwnedFd>>,
        inbox: &Sender<Message>,
    ) -> io::Result<Self> {
        let rank = assignment.rank;
        let path = ground.folder.rank_log(ground.attempt, rank);
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
        let mut rank_process = match &assignment.model {
            Model::Command(command) => {
                let (child, voice) = foreign::start(command, assignment, ground, (log, path))?;
                foreign::listen(voice, rank, inbox);
                Self::of(Body::Here { child, orders: None })
            }
            Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) => {
                let mut command = Command::new(&ground.worker.path);
                command
                    .args(&ground.worker.arguments)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::from(log))
                    .process_group(0);
                for_compute(&mut command, assignment.placement.threads);
                bind_to_this_thread(&mut command, mapping);
                let mut child = command.spawn()?;
                let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
                let (stdin, stdout) = stdin.zip(stdout).expect("both are piped");
                listen(rank, inbox, stdout, read_frames);
                Self::of(Body::Here { child, orders: Some(write_orders(stdin)) })
            }
        };
        rank_process.is_foreign = matches!(assignment.model, Model::Command(_));
        rank_process.memory = Memory::at_start();
        rank_process.write(frame::encode(assignment));
        Ok(rank_process)
    }

    /// The process of a rank that the agent of another host started.
    pub(super) fn elsewhere(assignment: &Assignment, agent: &Arc<Cord>) -> Self {
        let mut rank_process = Self::of(Body::There { rank: assignment.rank, agent: Arc::clone(agent) });
        rank_process.is_foreign = matches!(assignment.model, Model::Command(_));
        rank_process
    }

    fn of(body: Body) -> Self {
        Self {
            body,
            exit: None,
            is_heard_out: false,
            last: Vec::new(),
            finished: None,
            failed: false,
            was_killed: false,
            sequence: 0,
            is_foreign: false,
            stopped: (0, Instant::now()),
            memory: Memory::default(),
        }
    }

    /// Process id, when it is one of this host.
    pub(super) fn id(&self) -> Option<u32> {
        match &self.body {
            Body::Here { child, .. } => Some(child.id()),
            Body::There { .. } => None,
        }
    }

    /// Gives an order. A rank that no longer reads misses it.
    pub(super) fn tell(&self, order: &Order) {
        match &self.body {
            Body::Here { .. } => {
                if self.is_foreign && *order == Order::Stop {
                    self.signal(Signal::TERM);
                }
                self.write(frame::encode(order));
            }
            Body::There { rank, agent } => agent.tell(&Told::Order { rank: *rank, order: order.clone() }),
        }
    }

    fn write(&self, bytes: Vec<u8>) {
        if let Body::Here { orders: Some(orders), .. } = &self.body {
            drop(orders.send(bytes));
        }
    }

    /// Kills the rank and the processes it started.
    pub(super) fn kill(&mut self) {
        self.was_killed = self.exit.is_none();
        match &self.body {
            Body::Here { .. } => self.signal(Signal::KILL),
            Body::There { rank, agent } => agent.tell(&Told::Kill { rank: *rank }),
        }
    }

    /// Nothing is sent once the process was waited for: its id may be another's by then.
    fn signal(&self, signal: Signal) {
        if self.exit.is_none()
            && let Some(group) = self.id().and_then(crate::process::pid)
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Kills what a rank of this host that ended left behind in its group.
    pub(super) fn kill_leftovers(&self) {
        if let Some(id) = self.id() {
            crate::process::kill_group(id, std::process::id());
        }
    }

    /// Looks whether a process of this host has ended; tells whether this is news.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        if self.exit.is_some() {
            return Ok(false);
        }
        if let Body::Here { child, .. } = &mut self.body {
            self.exit = child.try_wait()?;
        }
        Ok(self.exit.is_some())
    }

    /// Looks now and then whether a process of this host stands still; true, once, when it has for too long.
    fn is_frozen(&mut self) -> bool {
        let (glances, last) = self.stopped;
        if self.exit.is_some() || last.elapsed() < GLANCE {
            return false;
        }
        let is_stopped = self.id().is_some_and(crate::process::is_stopped);
        let glances = if is_stopped { glances + 1 } else { 0 };
        self.stopped = (glances, Instant::now());
        if let Some(id) = self.id() {
            self.memory.look(id);
        }
        glances == GLANCES
    }

    /// Why it was killed, where neither it nor the agent knows and the kernel did it for memory.
    fn killed_for_memory(&self) -> Option<Failure> {
        let signal = self.exit.and_then(|exit| exit.signal())?;
        let is_known = self.was_killed || self.failed || self.finished.is_some();
        if signal == Signal::KILL.as_raw() && !is_known { self.memory.explains() } else { None }
    }

    /// What the end of the process says when the rank itself said nothing.
    pub(super) fn last_word(&self, rank: Rank, was_stopped: bool) -> Option<Event> {
        let exit = self.exit.filter(|_| self.finished.is_none() && !self.failed)?;
        let (code, signal) = (exit.code(), exit.signal());
        let finished = |reason| Event::Finished { step: StepId(0), reason };
        Some(match (self.is_foreign, code, was_stopped) {
            (true, _, true) => finished(StopReason::Ordered),
            (true, Some(0), false) => finished(StopReason::Complete),
            // Its end is what the agent did about another failure, and explains nothing.
            _ if self.was_killed => {
                let detail = "it did not exit and was killed".into();
                Event::Failed(Failure::PeerLost { peer: Some(rank), detail })
            }
            (true, ..) => Event::Failed(Failure::Command { code, signal, last: self.last.clone() }),
            (false, ..) => Event::Failed(Failure::Exited { code, signal }),
        })
    }
}

/// What became of a rank of this host.
pub(super) enum Change {
    /// Its process ended, with the status that `waitpid` tells, and why where that tells too little.
    Exited { index: usize, status: i32, failure: Option<Failure> },
    /// It ended a while ago, and what it left behind, now killed, kept its output open.
    GivenUp { index: usize },
    /// Somebody stopped it, and it was killed.
    Frozen { index: usize, failure: Failure },
}

/// Looks what became of the ranks of this host since the last look. `heard_by` is when output that is still open is given up.
pub(super) fn look(ranks: &mut [RankProcess], heard_by: &mut Option<Instant>) -> io::Result<Vec<Change>> {
    let mut changes = Vec::new();
    // Those of other hosts, of which there may be thousands, are looked at there.
    for (index, rank) in ranks.iter_mut().enumerate().filter(|(_, rank)| rank.id().is_some()) {
        if rank.look()? {
            *heard_by = Some(Instant::now() + AFTER_AN_EXIT);
            let status = rank.exit.map_or(0, ExitStatusExt::into_raw);
            let failure = rank.killed_for_memory();
            changes.push(Change::Exited { index, status, failure });
        }
        if rank.is_frozen() {
            rank.kill();
            let seconds = (GLANCE * GLANCES).as_secs();
            let failure = Failure::Other(format!("it was stopped by a signal for {seconds} s"));
            changes.push(Change::Frozen { index, failure });
        }
    }
    if heard_by.is_some_and(|heard_by| Instant::now() >= heard_by) {
        *heard_by = None;
        for (index, rank) in ranks.iter_mut().enumerate() {
            if rank.id().is_some() && rank.exit.is_some() && !rank.is_heard_out {
                rank.kill_leftovers();
                rank.is_heard_out = true;
                changes.push(Change::GivenUp { index });
            }
        }
    }
    Ok(changes)
}

/// Reads what a rank says in a thread of its own, until it closes its end.
fn listen<R: Read + Send + 'static>(
    rank: Rank,
    inbox: &Sender<Message>,
    from: R,
    read: impl FnOnce(R, &mut dyn FnMut(Event)) -> Result<(), FrameError> + Send + 'static,
) {
    let inbox = inbox.clone();
    thread::spawn(move || {
        let end = read(from, &mut |event| drop(inbox.send(Message::Event(rank, event))));
        let garbled = end.err().map(|error| error.to_string());
        drop(inbox.send(Message::HeardOut { rank, garbled, last: Vec::new() }));
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

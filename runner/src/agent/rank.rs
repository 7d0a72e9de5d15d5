//! One rank as the agent holds it: a process, a pipe of orders to it, and a thread that reads its events.

use super::{AgentOrder, Message, foreign};
use crate::home::TrialFolder;
use crate::process::bind_to_this_thread;
use dtrain_protocol::frame::{self, FrameError};
use dtrain_protocol::{Assignment, Event, Failure, Order, Rank, StepId, StopReason};
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

/// A rank's process.
pub(super) struct RankProcess {
    child: Child,
    /// Frames to be written to the rank; dropping it closes the rank's standard input.
    orders: Option<Sender<Vec<u8>>>,
    /// How it ended, once waited for.
    pub(super) exit: Option<ExitStatus>,
    /// Whether all it said was read.
    pub(super) is_heard_out: bool,
    /// Why it stopped, once it said that it did all it was told.
    pub(super) finished: Option<StopReason>,
    /// Whether it said why it cannot go on.
    pub(super) failed: bool,
    /// Whether the agent itself killed it.
    pub(super) was_killed: bool,
    /// Events it said so far.
    pub(super) sequence: u64,
    is_foreign: bool,
}

impl RankProcess {
    /// Starts the process of one rank. To be called from a thread that outlives it.
    pub(super) fn start(
        order: &AgentOrder,
        assignment: &Assignment,
        mapping: Option<Arc<OwnedFd>>,
        rendezvous: &foreign::Rendezvous,
        inbox: &Sender<Message>,
    ) -> io::Result<Self> {
        let rank = assignment.rank;
        let log = TrialFolder::at(&order.folder).rank_log(order.attempt, rank);
        let log = OpenOptions::new().append(true).create(true).mode(0o600).open(log)?;
        let mut rank_process = match &assignment.model {
            Model::Command(command) => {
                let (mut child, events) = foreign::command(command, assignment, rendezvous, log)?;
                let child = child.spawn()?;
                listen(rank, inbox, events, |events, say| foreign::read(events, say));
                Self::of(child, None)
            }
            Model::Decoder(_) | Model::Mlp(_) | Model::Cnn(_) => {
                let mut command = Command::new(&order.worker.path);
                command
                    .args(&order.worker.arguments)
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::from(log))
                    .process_group(0);
                for variable in ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"] {
                    command.env(variable, assignment.placement.threads.to_string());
                }
                bind_to_this_thread(&mut command, mapping);
                let mut child = command.spawn()?;
                let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
                let (stdin, stdout) = stdin.zip(stdout).expect("both are piped");
                listen(rank, inbox, stdout, read_frames);
                Self::of(child, Some(write_orders(stdin)))
            }
        };
        rank_process.is_foreign = matches!(assignment.model, Model::Command(_));
        rank_process.write(frame::encode(assignment));
        Ok(rank_process)
    }

    fn of(child: Child, orders: Option<Sender<Vec<u8>>>) -> Self {
        Self {
            child,
            orders,
            exit: None,
            is_heard_out: false,
            finished: None,
            failed: false,
            was_killed: false,
            sequence: 0,
            is_foreign: false,
        }
    }

    /// Process id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives an order. A rank that no longer reads misses it.
    pub(super) fn tell(&self, order: &Order) {
        if self.is_foreign && *order == Order::Stop {
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
        self.was_killed = self.exit.is_none();
        self.signal(Signal::KILL);
    }

    /// Nothing is sent once the process was waited for: its id may be another's by then.
    fn signal(&self, signal: Signal) {
        if self.exit.is_none()
            && let Some(group) = crate::process::pid(self.child.id())
        {
            let _ = rustix::process::kill_process_group(group, signal);
        }
    }

    /// Kills what a rank that ended left behind in its group.
    pub(super) fn kill_leftovers(&self) {
        crate::process::kill_group(self.child.id(), std::process::id());
    }

    /// Looks whether the process has ended; tells whether this is news.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        if self.exit.is_some() {
            return Ok(false);
        }
        self.exit = self.child.try_wait()?;
        Ok(self.exit.is_some())
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
                let detail = "it did not end by itself and was killed".into();
                Event::Failed(Failure::PeerLost { peer: Some(rank), detail })
            }
            _ => Event::Failed(Failure::Exited { code, signal }),
        })
    }
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
        drop(inbox.send(Message::HeardOut { rank, garbled }));
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

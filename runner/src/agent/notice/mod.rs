//! Polls for the notice that this machine will be taken away, as clouds give it for spot machines.
//!
//! A thread of its own asks while the ranks of this host run, so that nothing here blocks the agent.

mod command;
mod http;
#[cfg(test)]
mod tests;

use super::InboxMessage;
use super::messages::HostMessage;
use command::NoticeCommand;
use dtrain_protocol::{AttemptId, Event, Rank, TrialId};
use dtrain_recipes::{NoticePoll, NoticeQuery, NoticeUrl};
use std::convert::Infallible;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time that a killed command has to end, before the agent ends without it.
const TO_END: Duration = Duration::from_secs(1);

/// The host and attempt for which notices are polled.
#[derive(Clone, Copy)]
pub(super) struct PolledRanks<'a> {
    /// Id of the trial.
    pub(super) trial: &'a TrialId,
    /// Number of the attempt.
    pub(super) attempt: AttemptId,
    /// First rank of the host, in whose name the agent reports.
    pub(super) first: Rank,
    /// Folder of the recipe, in which a command runs if this host has it.
    pub(super) folder: &'a Path,
}

/// The polls of this host. Dropping it ends them.
pub(super) struct NoticePoller {
    /// Ends the polls when dropped; nothing is ever sent.
    stop: Sender<Infallible>,
    thread: JoinHandle<()>,
    is_command: bool,
    running: Arc<RunningCommand>,
}

impl NoticePoller {
    /// Starts the polls. The first notice ends them, and goes to `inbox`, as does the first failure.
    pub(super) fn start(poll: &NoticePoll, ranks: PolledRanks<'_>, inbox: &Sender<InboxMessage>) -> Self {
        let running = Arc::<RunningCommand>::default();
        let query = match &poll.query {
            NoticeQuery::Command(argv) => Query::Command(NoticeCommand::new(argv, ranks, &running)),
            NoticeQuery::Url(url) => Query::Url(url.clone()),
        };
        let is_command = matches!(query, Query::Command(_));
        let every = Duration::from_secs_f64(poll.every.0);
        let (stop, stopped) = channel();
        let (inbox, first) = (inbox.clone(), ranks.first);
        let thread = thread::spawn(move || query.poll_until_notice(every, first, &stopped, &inbox));
        Self { stop, thread, is_command, running }
    }

    /// Calls `reap` with the id of the running command, which it must not reap: the exit code would be lost. Does not
    /// call it while a command starts, which may take long.
    pub(super) fn sparing(&self, reap: impl FnOnce(Option<u32>)) {
        match self.running.0.try_lock() {
            Ok(id) => reap(*id),
            Err(TryLockError::Poisoned(poisoned)) => reap(*poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Ends the polls, and kills a command that runs.
    pub(super) fn close(self) {
        drop(self.stop);
        let until = Instant::now() + TO_END;
        // A request to a URL leaves nothing behind, and is not waited for.
        while self.is_command && !self.thread.is_finished() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What is asked.
enum Query {
    Command(NoticeCommand),
    Url(NoticeUrl),
}

impl Query {
    /// Polls until there is a notice, or until the sender of `stopped` is dropped.
    fn poll_until_notice(
        &self,
        every: Duration,
        first: Rank,
        stopped: &Receiver<Infallible>,
        inbox: &Sender<InboxMessage>,
    ) {
        let say = |words: String| drop(inbox.send(InboxMessage::Event(first, Event::Notice(words))));
        let mut has_failed = false;
        loop {
            let answer = match self {
                Self::Command(command) => command.run(stopped),
                Self::Url(url) => http::is_noticed(url),
            };
            match answer {
                Ok(false) => {}
                Ok(true) => {
                    say(format!("the machine of rank {first} gave notice that it will be taken away"));
                    drop(inbox.send(InboxMessage::Done(HostMessage::NoticeGiven)));
                    return;
                }
                Err(reason) if !has_failed => {
                    has_failed = true;
                    say(format!("notices of machines cannot be read (`cluster.notice`): {reason}"));
                }
                Err(_) => {}
            }
            if stopped.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }
}

/// Id of the command that runs now; locked while one starts.
#[derive(Default)]
struct RunningCommand(Mutex<Option<u32>>);

impl RunningCommand {
    fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

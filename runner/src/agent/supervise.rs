//! The agent's one loop: hears the ranks and the controllers, keeps the spool, commits, and ends the attempt.

use super::lead::{Others, Progress};
use super::peers::Said;
use super::peers::cord::Heard;
use super::rank::{self, Change, RankProcess};
use super::socket::Shared;
use super::spool::SpoolWriter;
use super::{AgentOrder, Message, SpoolRecord};
use crate::checkpoints::commit;
use crate::fact::Ended;
use crate::home::TrialFolder;
use crate::machine::graver;
use dtrain_protocol::{Event, Failure, Order, Rank, SavedFile, Stamped, StepId, StopReason};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the other ranks may take to say what they saw once one was lost.
const AFTER_A_LOSS: Duration = Duration::from_secs(2);

/// The same once a whole host was lost: nobody knows more of it than that.
const AFTER_A_HOST: Duration = Duration::from_millis(200);

/// How long the ranks may take to save and stop when the host wants the agent to end.
const AFTER_A_SIGNAL: Duration = Duration::from_secs(30);

/// How often the agent looks at its ranks when none of them says anything.
const BEAT: Duration = Duration::from_millis(20);

/// One attempt under way.
pub(super) struct Supervisor<'a> {
    pub(super) order: &'a AgentOrder,
    pub(super) folder: TrialFolder,
    pub(super) ranks: Vec<RankProcess>,
    pub(super) others: Option<Others>,
    pub(super) inbox: Sender<Message>,
    pub(super) spool: SpoolWriter,
    pub(super) shared: Arc<Shared>,
    /// The host asked the agent to end.
    pub(super) terminated: Arc<AtomicBool>,
    /// What the ranks saved and nobody committed yet; nothing of a rank that could not.
    pub(super) saved: BTreeMap<StepId, BTreeMap<Rank, Option<Vec<SavedFile>>>>,
    pub(super) addresses: BTreeMap<Rank, String>,
    /// The gravest failure so far.
    pub(super) cause: Option<Failure>,
    /// The ranks were asked to stop.
    pub(super) stopped: bool,
    /// When whatever still lives is killed.
    pub(super) deadline: Option<Instant>,
    /// When output that is still open is given up.
    pub(super) heard_by: Option<Instant>,
}

impl Supervisor<'_> {
    /// Works until no rank lives, then says how the attempt ended.
    ///
    /// `Err` when the spool cannot be written: what happens could no longer be told, so that nothing may happen.
    pub(super) fn run(&mut self, inbox: &Receiver<Message>) -> io::Result<Ended> {
        for message in self.others.as_mut().map(Others::early).unwrap_or_default() {
            self.hear(message)?;
        }
        while !self.is_over() {
            match inbox.recv_timeout(BEAT) {
                Ok(message) => {
                    self.hear(message)?;
                    while let Ok(message) = inbox.try_recv() {
                        self.hear(message)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("the agent holds a sender itself"),
            }
            self.look_at_ranks()?;
            self.mind_the_time();
            self.spool.sync_if_due()?;
        }
        self.ranks.iter().for_each(RankProcess::kill_leftovers);
        Ok(self.ended())
    }

    fn is_over(&self) -> bool {
        let is_over = |rank: &RankProcess| rank.exit.is_some() && rank.is_heard_out;
        self.ranks.iter().all(is_over) && self.others.as_ref().is_none_or(Others::is_quiet)
    }

    fn hear(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Stop => self.stop(),
            Message::Follower(host, Heard::Said(said)) => self.follower(host, said)?,
            Message::Follower(host, Heard::Lost(reason)) => self.lose(host, &reason)?,
            Message::Did(said) => {
                let own = self.others.as_ref().map_or(0, Others::own);
                self.follower(own, said)?;
            }
            Message::LeaderCame(_) | Message::Leader(_) => {}
            Message::Event(rank, event) => self.event(rank, event)?,
            Message::HeardOut { rank, garbled, last } => {
                if let Some(words) = garbled {
                    self.event(
                        rank,
                        Event::Failed(Failure::Other(format!(
                            "cannot decode a message from rank {rank}: \
                        {words}"
                        ))),
                    )?;
                }
                let process = &mut self.ranks[rank.0 as usize];
                (process.is_heard_out, process.last) = (true, last);
                self.conclude(rank)?;
            }
        }
        Ok(())
    }

    /// Takes in what the agent of a host says.
    fn follower(&mut self, host: u32, said: Said) -> io::Result<()> {
        if let Some(rank) = said.rank()
            && !self.others.as_ref().is_some_and(|others| others.has(host, rank))
        {
            return self.lose(host, &format!("it sent a message for rank {rank}, which does not exist"));
        }
        match said {
            Said::Event { rank, event } => self.event(rank, event),
            Said::HeardOut { rank, garbled, last } => self.hear(Message::HeardOut { rank, garbled, last }),
            Said::Exited { rank, status } => {
                self.ranks[rank.0 as usize].exit = Some(ExitStatus::from_raw(status));
                self.conclude(rank)
            }
            Said::Prepared { step, outcome } | Said::Committed { step, outcome } => {
                self.advance(step, host, outcome)
            }
            Said::Terminated => {
                self.terminate();
                Ok(())
            }
            // The answers to what is told before the ranks are started.
            Said::Shown { .. }
            | Said::Got
            | Said::Reserved { .. }
            | Said::Started
            | Said::CouldNot { .. } => Ok(()),
        }
    }

    /// A host is lost, and its ranks with it.
    fn lose(&mut self, host: u32, reason: &str) -> io::Result<()> {
        let Some(lost) = self.others.as_mut().and_then(|others| others.lose(host)).cloned() else {
            return Ok(());
        };
        let mut first = None;
        for rank in lost.ranks {
            let process = &mut self.ranks[rank as usize];
            if process.exit.is_none() || !process.is_heard_out {
                first = first.or(Some(Rank(rank)));
                process.exit.get_or_insert(ExitStatus::from_raw(9));
                (process.is_heard_out, process.failed) = (true, true);
            }
        }
        let unfinished = self.others.as_mut().map(Others::give_up).unwrap_or_default();
        for step in unfinished {
            let reason = format!("{} was lost before it was committed: {reason}", lost.peer.name);
            self.append(&SpoolRecord::CommitFailed { attempt: self.order.attempt, step, reason })?;
        }
        if let Some(rank) = first {
            let (host, detail) = (lost.peer.name, reason.to_owned());
            self.event(rank, Event::Failed(Failure::HostLost { host, detail }))?;
            self.end_by(Instant::now() + AFTER_A_HOST);
        }
        Ok(())
    }

    /// Asks the ranks, once, to finish their step, save and stop.
    fn stop(&mut self) {
        if !self.stopped {
            self.stopped = true;
            self.tell_all(&Order::Stop);
        }
    }

    fn tell_all(&self, order: &Order) {
        self.ranks.iter().for_each(|rank| rank.tell(order));
    }

    /// Spools an event, then does what follows from it.
    fn event(&mut self, rank: Rank, event: Event) -> io::Result<()> {
        let process = &mut self.ranks[rank.0 as usize];
        let sequence = process.sequence;
        process.sequence += 1;
        let attempt = self.order.attempt;
        self.append(&SpoolRecord::Event(Stamped {
            attempt,
            rank,
            sequence,
            at_ms: now_ms(),
            event: event.clone(),
        }))?;
        match event {
            Event::Listening(address) => {
                self.addresses.insert(rank, address);
                if self.addresses.len() == self.ranks.len() {
                    self.tell_all(&Order::Peers(self.addresses.values().cloned().collect()));
                }
            }
            Event::Saved { step, files, .. } => {
                self.saved.entry(step).or_default().insert(rank, Some(files));
                self.commit_when_whole(step)?;
            }
            // The rank tries again, and what the others saved stays.
            Event::SaveFailed { retries: true, .. } => {}
            Event::SaveFailed { step, .. } => {
                self.saved.entry(step).or_default().insert(rank, None);
                self.commit_when_whole(step)?;
            }
            Event::Finished { reason, .. } => self.ranks[rank.0 as usize].finished = Some(reason),
            Event::Failed(failure) => {
                self.ranks[rank.0 as usize].failed = true;
                self.cause = Some(graver(self.cause.take(), failure));
                self.end_by(Instant::now() + AFTER_A_LOSS);
            }
            Event::Ready { .. } | Event::Step(_) | Event::Validated { .. } => {}
        }
        Ok(())
    }

    fn append(&mut self, record: &SpoolRecord) -> io::Result<()> {
        let length = self.spool.append(record)?;
        self.shared.published.extend(length);
        Ok(())
    }

    /// Commits the checkpoint of `step` once every rank saved its part; clears it away once every rank did what it could, and
    /// one could not.
    fn commit_when_whole(&mut self, step: StepId) -> io::Result<()> {
        if self.saved.get(&step).is_none_or(|saved| saved.len() < self.ranks.len()) {
            return Ok(());
        }
        // Older ones that are not whole never will be: every rank is past them.
        let parts = self.saved.remove(&step).unwrap_or_default();
        self.saved.retain(|other, _| *other > step);
        if parts.values().any(Option::is_none) {
            self.discard(step);
            return Ok(());
        }
        let saved = parts
            .into_iter()
            .flat_map(|(rank, files)| files.unwrap_or_default().into_iter().map(move |file| (rank, file)));
        let saved: Vec<_> = saved.collect();
        let files: Vec<_> = saved.iter().map(|(_, file)| file.clone()).collect();
        let contents = match commit::contents(&self.order.assignments[0], step, files.clone()) {
            Ok(contents) => contents,
            Err(reason) => return self.committed(step, Err(reason)),
        };
        if let Some(others) = &mut self.others {
            others.prepare(self.order, step, &contents, &saved, &self.inbox);
            return Ok(());
        }
        let partial = self.folder.partial_checkpoint(step, self.order.attempt);
        let prepared = commit::check(&partial, &files).and_then(|()| commit::prepare(&partial, &contents));
        let outcome = prepared.and_then(|()| commit::finish(&self.folder, step, self.order.attempt));
        self.committed(step, outcome)
    }

    /// Takes in that a host prepared or committed the checkpoint of `step`.
    fn advance(&mut self, step: StepId, host: u32, outcome: Result<(), String>) -> io::Result<()> {
        let Some(others) = &mut self.others else { return Ok(()) };
        match others.advance(step, host, outcome, self.order.keep) {
            Progress::Wait => Ok(()),
            Progress::Finish => {
                let outcome = commit::finish(&self.folder, step, self.order.attempt);
                self.committed(step, outcome)
            }
            Progress::Fail(reason) => self.committed(step, Err(reason)),
        }
    }

    /// Says that the checkpoint of `step` is committed, and removes older ones; or says why it is not.
    fn committed(&mut self, step: StepId, outcome: Result<(), String>) -> io::Result<()> {
        let attempt = self.order.attempt;
        match outcome {
            Ok(()) => {
                let folder = self.folder.checkpoint(step, attempt);
                self.append(&SpoolRecord::Committed { attempt, step, folder })?;
                if let Err(error) = self.retain() {
                    note(&format!("an old checkpoint cannot be removed: {error}"));
                }
                Ok(())
            }
            Err(reason) => {
                self.discard(step);
                self.append(&SpoolRecord::CommitFailed { attempt, step, reason })
            }
        }
    }

    /// Removes checkpoints that are no longer needed.
    fn retain(&self) -> io::Result<()> {
        let AgentOrder { keep, attempt, assignments, .. } = self.order;
        let resumed = assignments.first().and_then(|one| one.resume.as_ref()?.folder.file_name()?.to_str());
        commit::retain(&self.folder.checkpoints(), *keep, *attempt, resumed)
    }

    /// Clears away what lies here, and on the other hosts, of a checkpoint that there will not be.
    fn discard(&self, step: StepId) {
        if let Some(others) = &self.others {
            others.discard(step);
        }
        if let Err(error) = commit::discard(&self.folder, step, self.order.attempt) {
            note(&format!("cannot remove the partial checkpoint of step {step}: {error}"));
        }
    }

    fn look_at_ranks(&mut self) -> io::Result<()> {
        for change in rank::look(&mut self.ranks, &mut self.heard_by)? {
            let rank = |index| Rank(u32::try_from(index).unwrap_or(u32::MAX));
            match change {
                Change::Exited { index, failure, .. } => {
                    if let Some(failure) = failure {
                        self.event(rank(index), Event::Failed(failure))?;
                    }
                    self.conclude(rank(index))?;
                }
                Change::GivenUp { index } => self.conclude(rank(index))?,
                Change::Frozen { index, failure } => self.event(rank(index), Event::Failed(failure))?,
            }
        }
        Ok(())
    }

    /// Once a rank has ended and all it said was read: says for it what it did not say.
    fn conclude(&mut self, rank: Rank) -> io::Result<()> {
        let process = &self.ranks[rank.0 as usize];
        match process.last_word(rank, self.stopped).filter(|_| process.is_heard_out) {
            Some(word) => self.event(rank, word),
            None => Ok(()),
        }
    }

    fn mind_the_time(&mut self) {
        let now = Instant::now();
        if self.terminated.swap(false, Ordering::SeqCst) {
            self.terminate();
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            self.ranks.iter_mut().for_each(RankProcess::kill);
        }
    }

    /// A host wants its agent to end.
    fn terminate(&mut self) {
        self.stop();
        self.end_by(Instant::now() + AFTER_A_SIGNAL);
    }

    fn end_by(&mut self, when: Instant) {
        self.deadline = Some(self.deadline.map_or(when, |deadline| deadline.min(when)));
    }

    fn ended(&self) -> Ended {
        let reason = self.ranks.iter().find_map(|rank| rank.finished);
        match (&self.cause, reason) {
            (Some(cause), _) => Ended::Lost(cause.clone()),
            (None, reason) => Ended::Finished(reason.unwrap_or(StopReason::Ordered)),
        }
    }
}

/// Writes a line to the agent's log.
pub(super) fn note(words: &str) {
    drop(writeln!(io::stderr(), "{words}"));
}

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

//! The agent's one loop: hears the ranks and the controllers, keeps the spool, commits, and ends the attempt.

use super::rank::RankProcess;
use super::socket::Shared;
use super::spool::SpoolWriter;
use super::{AgentOrder, Message, SpoolRecord, commit};
use crate::fact::Ended;
use crate::home::TrialFolder;
use crate::machine::graver;
use dtrain_protocol::{Event, Failure, Order, Rank, SavedFile, Stamped, StepId, StopReason};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long the other ranks may take to say what they saw once one was lost.
const AFTER_A_LOSS: Duration = Duration::from_secs(2);

/// How long the ranks may take to save and stop when the host wants the agent to end.
const AFTER_A_SIGNAL: Duration = Duration::from_secs(30);

/// How long the output of a rank that ended may stay open: a process it left behind may hold it.
const AFTER_AN_EXIT: Duration = Duration::from_secs(1);

/// How often the agent looks at its ranks when none of them says anything.
const BEAT: Duration = Duration::from_millis(20);

/// One attempt under way.
pub(super) struct Supervisor<'a> {
    pub(super) order: &'a AgentOrder,
    pub(super) folder: TrialFolder,
    pub(super) ranks: Vec<RankProcess>,
    pub(super) spool: SpoolWriter,
    pub(super) shared: Arc<Shared>,
    /// The host asked the agent to end.
    pub(super) terminated: Arc<AtomicBool>,
    /// What the ranks saved and nobody committed yet.
    pub(super) saved: BTreeMap<StepId, BTreeMap<Rank, (PathBuf, Vec<SavedFile>)>>,
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
        while !self.ranks.iter().all(|rank| rank.exit.is_some() && rank.is_heard_out) {
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
            self.mind_the_time()?;
            self.spool.sync_if_due()?;
        }
        self.ranks.iter().for_each(RankProcess::kill_leftovers);
        Ok(self.ended())
    }

    fn hear(&mut self, message: Message) -> io::Result<()> {
        match message {
            Message::Stop => self.stop(),
            Message::Event(rank, event) => self.event(rank, event)?,
            Message::HeardOut { rank, garbled } => {
                if let Some(words) = garbled {
                    self.event(
                        rank,
                        Event::Failed(Failure::Other(format!("rank {rank} is not understood: {words}"))),
                    )?;
                }
                self.ranks[rank.0 as usize].is_heard_out = true;
                self.conclude(rank)?;
            }
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
            Event::Saved { step, folder, files, .. } => {
                self.saved.entry(step).or_default().insert(rank, (folder, files));
                self.commit_when_whole(step)?;
            }
            Event::Finished { reason, .. } => self.ranks[rank.0 as usize].finished = Some(reason),
            Event::Failed(failure) => {
                self.ranks[rank.0 as usize].failed = true;
                self.cause = Some(graver(self.cause.take(), failure));
                self.end_by(Instant::now() + AFTER_A_LOSS);
            }
            Event::Ready { .. } | Event::Step(_) | Event::Validated { .. } | Event::SaveFailed { .. } => {}
        }
        Ok(())
    }

    fn append(&mut self, record: &SpoolRecord) -> io::Result<()> {
        let length = self.spool.append(record)?;
        self.shared.published.extend(length);
        Ok(())
    }

    /// Commits the checkpoint of `step` once every rank saved its part.
    fn commit_when_whole(&mut self, step: StepId) -> io::Result<()> {
        if self.saved.get(&step).is_none_or(|saved| saved.len() < self.ranks.len()) {
            return Ok(());
        }
        // Older ones that are not whole never will be: every rank is past them.
        let parts = self.saved.remove(&step).unwrap_or_default();
        self.saved.retain(|other, _| *other > step);
        let Some((partial, _)) = parts.values().next().cloned() else { return Ok(()) };
        let files = parts.into_values().flat_map(|(_, files)| files).collect();
        let attempt = self.order.attempt;
        match commit::commit(&self.order.assignments[0], step, &partial, files) {
            Ok(folder) => {
                self.append(&SpoolRecord::Committed { attempt, step, folder })?;
                if let Err(error) = commit::retain(&self.folder.checkpoints(), self.order.keep) {
                    note(&format!("an old checkpoint cannot be removed: {error}"));
                }
                Ok(())
            }
            Err(reason) => self.append(&SpoolRecord::CommitFailed { attempt, step, reason }),
        }
    }

    fn look_at_ranks(&mut self) -> io::Result<()> {
        for rank in (0u32..).map(Rank).take(self.ranks.len()) {
            if self.ranks[rank.0 as usize].look()? {
                self.heard_by = Some(Instant::now() + AFTER_AN_EXIT);
                self.conclude(rank)?;
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

    fn mind_the_time(&mut self) -> io::Result<()> {
        let now = Instant::now();
        if self.terminated.swap(false, Ordering::SeqCst) {
            self.stop();
            self.end_by(now + AFTER_A_SIGNAL);
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            self.deadline = None;
            self.ranks.iter_mut().for_each(RankProcess::kill);
        }
        if self.heard_by.is_some_and(|heard_by| now >= heard_by) {
            self.heard_by = None;
            for rank in (0u32..).map(Rank).take(self.ranks.len()) {
                let process = &mut self.ranks[rank.0 as usize];
                if process.exit.is_some() && !process.is_heard_out {
                    process.kill_leftovers();
                    process.is_heard_out = true;
                    self.conclude(rank)?;
                }
            }
        }
        Ok(())
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

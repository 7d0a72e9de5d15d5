//! The loop around the machine.

use super::link::Link;
use super::lock::{self, Lock};
use super::trained::Trained;
use super::{Drive, DriveError, Launching, OnInterrupt, Outcome};
use crate::agent::spool::{SpoolEnd, SpoolReader};
use crate::agent::{AgentOrder, SpoolRecord};
use crate::checkpoints;
use crate::fact::{Ended, Fact, News, Verdict};
use crate::home::TrialFolder;
use crate::launch::{Launcher, LocalLauncher, Reached};
use crate::machine::{ATTEMPTS_WITHOUT_PROGRESS, Effect, Input, Machine, Moment};
use crate::seen::{Seen, Status};
use dtrain_protocol::{AttemptId, Failure, ResumePoint, TrialId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time that news waits to be kept.
const KEEP_WITHIN: Duration = Duration::from_millis(250);

/// How often the driver looks for interrupts.
const BEAT: Duration = Duration::from_millis(50);

/// How long a living agent may stay silent before it is killed.
const SILENCE: Duration = Duration::from_secs(20);

/// A trial and its controller.
pub(super) struct Engine<'a> {
    drive: Drive<'a>,
    folder: TrialFolder,
    launcher: Box<dyn Launcher>,
    machine: Machine,
    started: Instant,
    wakes: BTreeSet<Moment>,
    inputs: VecDeque<Input>,
    /// What is kept next, and what is shown once it was.
    news: News,
    unseen: Vec<Seen>,
    news_since: Option<Instant>,
    link: Option<Link>,
    /// How far the open attempt's spool was read, and how far the ledger had it when this controller came.
    read: u64,
    kept: u64,
    trained: Trained,
    interrupts: u32,
    done: Option<Verdict>,
    _lock: Lock,
}

impl<'a> Engine<'a> {
    /// Becomes the controller of the trial, and learns from the ledger where it stands.
    pub(super) fn take(drive: Drive<'a>) -> Result<Self, DriveError> {
        let folder = drive.home.trial(drive.trial);
        let path = folder.path().to_owned();
        folder.create().map_err(|source| DriveError::Folder { doing: "create", path, source })?;
        let lock = lock::take(&folder, drive.trial)?;
        let launcher = Box::new(LocalLauncher::starting(&folder, &drive.programs.agent));
        let (machine, effects) = Machine::replay(&drive.ledger.facts(drive.trial)?);
        let mut engine = Self {
            interrupts: drive.interrupts.count(),
            drive,
            folder,
            launcher,
            machine,
            started: Instant::now(),
            wakes: BTreeSet::new(),
            inputs: VecDeque::new(),
            news: News::default(),
            unseen: Vec::new(),
            news_since: None,
            link: None,
            read: 0,
            kept: 0,
            trained: Trained::default(),
            done: None,
            _lock: lock,
        };
        engine.trained.recall(engine.launcher.as_mut(), engine.machine.attempt(), engine.machine.open());
        engine.carry_out(effects)?;
        Ok(engine)
    }

    pub(super) fn trial(&self) -> TrialId {
        self.drive.trial.clone()
    }

    pub(super) fn was_launched(&self) -> bool {
        self.machine.attempt() > AttemptId(0)
    }

    /// Whether the ledger knows of an attempt that may live.
    pub(super) fn may_run(&self) -> bool {
        self.machine.open().is_some()
    }

    pub(super) fn runs_or_is_over(&self) -> bool {
        self.link.is_some() || self.done.is_some()
    }

    /// Finds out what became of an open attempt: reads what it left behind, or goes on listening to it.
    pub(super) fn settle(&mut self) -> Result<(), DriveError> {
        if let Some(attempt) = self.machine.open() {
            self.kept = self.drive.ledger.offset(self.drive.trial, attempt)?;
            self.listen(attempt)?;
            self.digest()?;
        }
        Ok(())
    }

    /// Drives the trial until it is over, or until its controller may leave.
    pub(super) fn run(&mut self) -> Result<Outcome, DriveError> {
        loop {
            self.digest()?;
            if let Some(verdict) = self.done.take() {
                self.keep()?;
                let checkpoint = self.machine.newest().cloned();
                return Ok(Outcome::Ended { verdict, checkpoint, attempts: self.machine.attempt().0 });
            }
            if self.drive.options.detach && self.link.is_some() {
                return self.leave();
            }
            if self.drive.interrupts.count() > self.interrupts {
                self.interrupts += 1;
                match self.drive.options.on_interrupt {
                    OnInterrupt::Leave => return self.leave(),
                    OnInterrupt::Stop => self.inputs.push_back(Input::Stop),
                }
            }
            self.hear()?;
            self.tick();
            self.note_load();
            if self.news_since.is_some_and(|since| since.elapsed() >= KEEP_WITHIN) {
                self.keep()?;
            }
        }
    }

    fn leave(&mut self) -> Result<Outcome, DriveError> {
        self.keep()?;
        Ok(Outcome::Detached { agent: self.link.as_ref().map(|link| link.agent) })
    }

    /// Feeds the machine, and all that follows from it.
    pub(super) fn tell(&mut self, input: Input) -> Result<(), DriveError> {
        // A verdict that the user overrules is no longer the end.
        if input == Input::Resume {
            self.done = None;
        }
        self.inputs.push_back(input);
        self.digest()
    }

    fn digest(&mut self) -> Result<(), DriveError> {
        while let Some(input) = self.inputs.pop_front() {
            let effects = self.machine.step(self.now(), input);
            self.carry_out(effects)?;
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        Moment(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Takes in how loaded the host was.
    fn note_load(&mut self) {
        let points = self.link.as_ref().map_or_else(Vec::new, Link::load);
        if !points.is_empty() {
            self.news.points.extend(points);
            self.news_since.get_or_insert_with(Instant::now);
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        let later = self.wakes.split_off(&now.after(1));
        if !self.wakes.is_empty() {
            self.inputs.push_back(Input::Tick);
        }
        self.wakes = later;
    }

    /// Carries out effects in order; what is recorded is kept before anything that follows is done.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), DriveError> {
        let mut failure = None;
        for effect in effects {
            match effect {
                Effect::Record(fact) => {
                    failure = lost(&fact).or(failure);
                    self.news.facts.push(fact.clone());
                    self.note(Seen::Fact(fact));
                }
                Effect::WakeAt(moment) => {
                    self.wakes.insert(moment);
                    if let Some(failure) = failure.take() {
                        self.mention_wait(moment, failure);
                    }
                }
                Effect::Launch { attempt, from } => {
                    self.keep()?;
                    self.launch(attempt, from)?;
                }
                Effect::SendStop { attempt } => {
                    self.show(Status::Stopping { attempt })?;
                    self.send_stop();
                }
                Effect::Kill { attempt } => {
                    self.show(Status::Killing { attempt })?;
                    self.launcher.kill(attempt);
                }
                Effect::Done { verdict } => {
                    self.keep()?;
                    self.link = None;
                    self.done = Some(verdict);
                }
            }
        }
        Ok(())
    }

    fn launch(&mut self, attempt: AttemptId, from: Option<ResumePoint>) -> Result<(), DriveError> {
        (self.link, self.read, self.kept) = (None, 0, 0);
        let unreadable = from.as_ref().and_then(|point| {
            let detail = checkpoints::verify(&point.folder).err()?;
            Some(Failure::CorruptCheckpoint { folder: point.folder.clone(), detail })
        });
        if let Some(failure) = unreadable {
            self.inputs.push_back(Input::LaunchFailed { attempt, failure });
            return Ok(());
        }
        let options = self.drive.options;
        let checkpoints = self.folder.checkpoints();
        let spent_seconds = self.trained.seconds();
        let step = from.as_ref().map(|point| point.step);
        let assignments = (self.drive.lower)(&Launching { attempt, from, spent_seconds, checkpoints });
        let ranks = u32::try_from(assignments.len()).unwrap_or(u32::MAX);
        self.show(Status::Launching { attempt, ranks, from: step })?;
        let order = AgentOrder {
            trial: self.trial(),
            attempt,
            folder: self.folder.path().to_owned(),
            worker: self.drive.programs.worker.clone(),
            assignments,
            link: options.link.clone(),
            keep: options.keep,
        };
        match self.launcher.launch(&order) {
            Ok(_) => self.listen(attempt),
            Err(reason) => {
                let failure = Failure::Other(format!("the attempt could not be launched: {reason}"));
                self.inputs.push_back(Input::LaunchFailed { attempt, failure });
                Ok(())
            }
        }
    }

    /// Connects to the agent of the open attempt; when it is gone, reads what it left behind and says so.
    fn listen(&mut self, attempt: AttemptId) -> Result<(), DriveError> {
        self.link = None;
        let mut silent_until = Instant::now() + SILENCE;
        let mut killed = false;
        loop {
            match self.launcher.reach(attempt, self.read) {
                Reached::Connected(connection) => {
                    let agent = connection.agent;
                    self.link = Some(Link::of(attempt, self.read, connection, self.folder.path()));
                    return self.show(Status::Attached { attempt, agent });
                }
                Reached::Silent if Instant::now() < silent_until => thread::sleep(Duration::from_millis(20)),
                Reached::Silent if killed => return Err(DriveError::Unreachable(attempt)),
                Reached::Silent => {
                    self.show(Status::Killing { attempt })?;
                    self.launcher.kill(attempt);
                    (silent_until, killed) = (Instant::now() + SILENCE, true);
                }
                Reached::Gone => return self.bury(attempt),
            }
        }
    }

    /// Reads what an attempt left behind, then tells the machine that nothing of it lives.
    fn bury(&mut self, attempt: AttemptId) -> Result<(), DriveError> {
        let path = self.folder.spool(attempt);
        let leftover = self.launcher.leftover(attempt, self.read);
        let leftover = leftover.map_err(|source| DriveError::Folder { doing: "read", path, source })?;
        let mut reader = SpoolReader::at(self.read, leftover);
        loop {
            match reader.next() {
                Ok(record) => {
                    self.take_in(attempt, reader.offset(), record)?;
                    if self.machine.open() != Some(attempt) {
                        return Ok(());
                    }
                }
                Err(end) => {
                    self.mention_damage(attempt, &end)?;
                    break;
                }
            }
        }
        self.inputs.push_back(Input::Gone { attempt });
        Ok(())
    }

    fn mention_damage(&mut self, attempt: AttemptId, end: &SpoolEnd) -> Result<(), DriveError> {
        match end {
            SpoolEnd::End => Ok(()),
            SpoolEnd::Damaged(error) => {
                let (spool, reason) = (self.folder.spool(attempt), error.to_string());
                self.show(Status::SpoolDamaged { spool, offset: self.read, reason })
            }
        }
    }

    /// Waits for what the agent says next, at most until something else is due.
    fn hear(&mut self) -> Result<(), DriveError> {
        let now = self.now();
        let due = self.wakes.first().map_or(BEAT, |wake| Duration::from_millis(wake.0.saturating_sub(now.0)));
        let patience = due.min(BEAT);
        let Some(link) = &self.link else {
            thread::sleep(patience);
            return Ok(());
        };
        let attempt = link.attempt;
        match link.heard.recv_timeout(patience) {
            Ok(Ok((offset, record))) => {
                self.take_in(attempt, offset, record)?;
                if self.machine.open() != Some(attempt) {
                    self.link.take_if(|link| link.attempt == attempt);
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => self.listen(attempt),
        }
    }

    /// Takes in one record of the open attempt's spool. What the ledger already has is only told to the machine.
    fn take_in(&mut self, attempt: AttemptId, offset: u64, record: SpoolRecord) -> Result<(), DriveError> {
        self.read = offset;
        let is_new = offset > self.kept;
        if is_new {
            self.news.offset = Some((attempt, offset));
            self.news_since.get_or_insert_with(Instant::now);
        }
        let input = match record {
            SpoolRecord::Began { attempt, ranks } => Input::Began { attempt, ranks },
            SpoolRecord::Event(stamped) => {
                self.trained.note(&stamped);
                if is_new {
                    self.news.events.push(stamped.clone());
                    self.note(Seen::Event(stamped.clone()));
                }
                Input::Event(stamped)
            }
            SpoolRecord::Committed { attempt, step, folder } => Input::Committed { attempt, step, folder },
            SpoolRecord::CommitFailed { attempt, step, reason } => {
                if is_new {
                    self.note(Seen::Status(Status::CommitFailed { step, reason }));
                }
                Input::CommitFailed { attempt, step }
            }
            SpoolRecord::Over { attempt, ended } => Input::Over { attempt, ended },
        };
        self.tell(input)
    }

    fn mention_wait(&mut self, until: Moment, failure: Failure) {
        let seconds = Duration::from_millis(until.0.saturating_sub(self.now().0)).as_secs_f64();
        let failures = (self.machine.failures(), ATTEMPTS_WITHOUT_PROGRESS);
        let attempt = self.machine.attempt();
        self.note(Seen::Status(Status::Waiting { attempt, seconds, failures, failure }));
    }

    fn send_stop(&mut self) {
        if let Some(link) = &mut self.link {
            link.ask_to_stop();
        }
    }

    /// Shows what the controller is about, after everything that came before.
    fn show(&mut self, status: Status) -> Result<(), DriveError> {
        self.note(Seen::Status(status));
        self.keep()
    }

    fn note(&mut self, seen: Seen) {
        self.news_since.get_or_insert_with(Instant::now);
        self.unseen.push(seen);
    }

    /// Keeps all news in one transaction, then shows it.
    fn keep(&mut self) -> Result<(), DriveError> {
        if self.news_since.take().is_some() {
            if self.news != News::default() {
                self.drive.ledger.keep(self.drive.trial, &self.news)?;
                self.news = News::default();
            }
            for seen in self.unseen.drain(..) {
                self.drive.observer.observe(&seen);
            }
        }
        Ok(())
    }
}

/// The failure an attempt was lost by.
fn lost(fact: &Fact) -> Option<Failure> {
    match fact {
        Fact::AttemptEnded { ended: Ended::Lost(failure), .. } => Some(failure.clone()),
        Fact::AttemptEnded { ended: Ended::NotLaunched(reason), .. } => Some(Failure::Other(reason.clone())),
        _ => None,
    }
}

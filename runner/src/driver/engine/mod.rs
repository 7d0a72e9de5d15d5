//! The loop around the machine.

mod attempt;
mod blame;
mod listen;
mod unrecorded;
mod wait;

use super::link::Link;
use super::lock::{self, Lock};
use super::trained::Trained;
use super::watch::Watch;
use super::{Drive, DriveError, OnInterrupt, Outcome};
use crate::audit::Action;
use crate::fact::{Ended, Fact, News, Verdict};
use crate::home::TrialFolder;
use crate::launch::{Fenced, Launcher, LocalLauncher, Usable};
use crate::machine::{Blame, Effect, Input, Machine, Moment};
use crate::seen::{Seen, Status};
use crate::store;
use blame::Reports;
use dtrain_protocol::{AttemptId, Failure, TrialId};
use std::collections::{BTreeSet, VecDeque};
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
    /// Away only while [`Engine::wait`] waits for it.
    launcher: Option<Box<dyn Launcher>>,
    machine: Machine,
    started: Instant,
    wakes: BTreeSet<Moment>,
    inputs: VecDeque<Input>,
    /// What is kept next, and what is shown once it was.
    news: News,
    unseen: Vec<Seen>,
    news_since: Option<Instant>,
    link: Option<Link>,
    /// When the attempt was last heard of.
    heard_at: Instant,
    /// The hosts that answered when the disks were looked at.
    usable: Option<Usable>,
    /// Why nobody knows whether the open attempt was launched.
    unlaunched: Option<String>,
    /// The newest attempt whose agent this controller was connected with.
    followed: Option<AttemptId>,
    /// Whether a host may be given up for the trial to go on.
    may_give_up: bool,
    /// How far the open attempt's spool was read, and how far the ledger had it when this controller came.
    read: u64,
    kept: u64,
    /// Where the spool of an attempt cannot be read any further.
    damaged: Option<(AttemptId, u64)>,
    trained: Trained,
    watch: Watch,
    reports: Reports,
    /// Whether an interrupt ended a wait since the agent was last connected.
    is_cancelled: bool,
    /// Whether the controller leaves, and the trial goes on.
    is_leaving: bool,
    done: Option<Verdict>,
    _lock: Lock,
}

impl<'a> Engine<'a> {
    /// Becomes the controller of the trial, and learns from the ledger where it stands.
    pub(super) fn take(mut drive: Drive<'a>) -> Result<Self, DriveError> {
        let folder = drive.home.trial(drive.trial);
        let path = folder.path().to_owned();
        folder.create().map_err(|source| DriveError::Folder { doing: "create", path, source })?;
        let lock = lock::take(&folder, drive.trial)?;
        if store::is_emptied(&folder) {
            return Err(DriveError::Removed(drive.trial.clone()));
        }
        let here =
            || -> Box<dyn Launcher> { Box::new(LocalLauncher::starting(&folder, &drive.programs.agent)) };
        let launcher = drive.launcher.take().unwrap_or_else(here);
        let (machine, effects) = Machine::replay(&drive.ledger.facts(drive.trial)?);
        let trained = Trained::recalled(drive.ledger.trained_ms(drive.trial)?);
        let mut engine = Self {
            is_cancelled: false,
            is_leaving: false,
            drive,
            folder,
            launcher: Some(launcher),
            machine,
            started: Instant::now(),
            wakes: BTreeSet::new(),
            inputs: VecDeque::new(),
            news: News::default(),
            unseen: Vec::new(),
            news_since: None,
            link: None,
            heard_at: Instant::now(),
            usable: None,
            unlaunched: None,
            followed: None,
            may_give_up: false,
            read: 0,
            kept: 0,
            damaged: None,
            trained,
            watch: Watch::default(),
            reports: Reports::default(),
            done: None,
            _lock: lock,
        };
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
    ///
    /// `may_give_up` is whether what lies on a host that cannot be asked is given up after a while; otherwise that is an `Err`.
    pub(super) fn settle(&mut self, may_give_up: bool) -> Result<(), DriveError> {
        let settled = self.find_out(may_give_up);
        self.stop_unrecorded(settled)
    }

    fn find_out(&mut self, may_give_up: bool) -> Result<(), DriveError> {
        self.may_give_up = may_give_up;
        if let Some(attempt) = self.machine.open() {
            self.kept = self.drive.ledger.offset(self.drive.trial, attempt)?;
            self.listen(attempt)?;
            self.digest()?;
        }
        Ok(())
    }

    /// Drives the trial until it is over, or until its controller may leave.
    pub(super) fn run(&mut self) -> Result<Outcome, DriveError> {
        let ended = self.run_on();
        self.stop_unrecorded(ended)
    }

    fn run_on(&mut self) -> Result<Outcome, DriveError> {
        self.may_give_up = true;
        loop {
            self.digest()?;
            if let Some(verdict) = self.done.take() {
                self.keep()?;
                // One that came meanwhile wanted no more than that.
                self.drive.interrupts.settle();
                let checkpoint = self.machine.newest().cloned();
                return Ok(Outcome::Ended { verdict, checkpoint, attempts: self.machine.attempt().0 });
            }
            if self.is_leaving || self.drive.options.detach && self.link.is_some() {
                return self.leave();
            }
            if self.drive.interrupts.is_pending() {
                self.drive.interrupts.heed();
                match self.drive.options.on_interrupt {
                    OnInterrupt::Leave => return self.leave(),
                    OnInterrupt::Stop => {
                        self.audit(Action::Stop, None);
                        self.inputs.push_back(Input::Stop);
                    }
                }
            }
            self.hear()?;
            self.fence_returned()?;
            self.tick();
            self.note_load();
            self.keep_if_due()?;
        }
    }

    /// Ends what hosts that were lost and came back still run of older attempts.
    fn fence_returned(&mut self) -> Result<(), DriveError> {
        let (Some(launcher), Some(link)) = (&mut self.launcher, &self.link) else { return Ok(()) };
        for Fenced { host, attempt } in launcher.fence_returned(link.attempt) {
            self.show(Status::Fenced { host, attempt })?;
        }
        Ok(())
    }

    fn keep_if_due(&mut self) -> Result<(), DriveError> {
        if self.news_since.is_some_and(|since| since.elapsed() >= KEEP_WITHIN) { self.keep() } else { Ok(()) }
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
                    if let Some(lost) = lost(&fact) {
                        self.blame(&lost);
                        failure = Some(lost);
                    }
                    if let Some(Failure::HostLost { host, .. }) = &failure {
                        self.launcher.as_mut().expect("nobody waits for it").doubt(host);
                    }
                    self.news.facts.push(fact.clone());
                    self.note(Seen::Fact(fact));
                }
                Effect::WakeAt(moment) => {
                    self.wakes.insert(moment);
                    if let Some(failure) = failure.take() {
                        self.mention_wait(moment, failure);
                    }
                }
                Effect::Look => {
                    self.keep()?;
                    self.look()?;
                }
                Effect::Launch { attempt, from } => {
                    self.keep()?;
                    self.launch(attempt, from)?;
                }
                Effect::SendStop { attempt } => {
                    let killed_after_seconds = self.drive.options.killed_after.map(|time| time.as_secs_f64());
                    self.show(Status::Stopping { attempt, killed_after_seconds })?;
                    self.send_stop();
                }
                Effect::Kill { attempt } => {
                    self.show(Status::Killing { attempt })?;
                    self.wait(|launcher| launcher.kill(attempt))?;
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

    fn mention_wait(&mut self, until: Moment, failure: Failure) {
        let seconds = Duration::from_millis(until.0.saturating_sub(self.now().0)).as_secs_f64();
        let blame = Blame::of(&failure);
        let failures = (self.machine.failures(blame), blame.attempts());
        let attempt = self.machine.attempt();
        self.note(Seen::Status(Status::Waiting { attempt, seconds, failures, blame, failure }));
    }

    fn send_stop(&mut self) {
        if let Some(link) = &mut self.link {
            link.ask_to_stop();
        }
    }

    /// Shows what the controller is about, after everything that came before.
    /// What is to end ends, also where nobody can write it down.
    fn audit(&self, action: Action, attempt: Option<AttemptId>) {
        if let Some(audit) = &self.drive.audit {
            drop(audit.write(action, attempt));
        }
    }

    fn show(&mut self, status: Status) -> Result<(), DriveError> {
        let done = match &status {
            Status::Interrupted => Some((Action::Stop, None)),
            Status::Killing { attempt } => Some((Action::Kill, Some(*attempt))),
            Status::Fenced { attempt, .. } => Some((Action::Fence, Some(*attempt))),
            _ => None,
        };
        if let Some((action, attempt)) = done {
            self.audit(action, attempt);
        }
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
        Fact::AttemptEnded { ended: Ended::Lost(failure) | Ended::NotLaunched(failure), .. } => {
            Some(failure.clone())
        }
        _ => None,
    }
}

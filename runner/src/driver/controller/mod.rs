//! The loop around the machine.

mod attempt;
mod fault_attribution;
mod history_lost;
mod reconnect;
mod wait;

use super::agent_connection::AgentConnection;
use super::anomaly::AnomalyDetector;
use super::lock::{self, TrialLock};
use super::training_time::TrainingTime;
use super::{Drive, DriveError, DriveOutcome, OnInterrupt};
use crate::audit::AuditedAction;
use crate::fact::{AttemptEnd, Fact, TrialUpdate, Verdict};
use crate::home::TrialFolder;
use crate::launch::{AvailableHosts, FencedAgent, Launcher, LocalLauncher};
use crate::machine::{Blame, Millis, TrialEffect, TrialInput, TrialMachine};
use crate::store;
use crate::trial_event::{ControllerStatus, TrialEvent};
use dtrain_protocol::{AttemptId, Failure, TrialId};
use fault_attribution::FailureReports;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Longest time that news waits to be kept.
const KEEP_WITHIN: Duration = Duration::from_millis(250);

/// How often the driver looks for interrupts.
const BEAT: Duration = Duration::from_millis(50);

/// How long a living agent may stay silent before it is killed.
const SILENCE: Duration = Duration::from_secs(20);

/// A trial and its controller.
pub(super) struct TrialController<'a> {
    drive: Drive<'a>,
    folder: TrialFolder,
    /// Away only while [`TrialController::with_launcher`] waits for it.
    launcher: Option<Box<dyn Launcher>>,
    machine: TrialMachine,
    started: Instant,
    wakes: BTreeSet<Millis>,
    inputs: VecDeque<TrialInput>,
    /// What is kept next, and what is shown once it was.
    news: TrialUpdate,
    unseen: Vec<TrialEvent>,
    news_since: Option<Instant>,
    link: Option<AgentConnection>,
    /// When the attempt was last heard of.
    heard_at: Instant,
    /// The hosts that answered when the disks were looked at.
    usable: Option<AvailableHosts>,
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
    trained: TrainingTime,
    watch: AnomalyDetector,
    reports: FailureReports,
    /// Whether an interrupt ended a wait since the agent was last connected.
    is_cancelled: bool,
    /// Whether the controller leaves, and the trial goes on.
    is_leaving: bool,
    done: Option<Verdict>,
    _lock: TrialLock,
}

impl<'a> TrialController<'a> {
    /// Becomes the controller of the trial, and learns from the ledger where it stands.
    pub(super) fn take_over(mut drive: Drive<'a>) -> Result<Self, DriveError> {
        let folder = drive.home.trial(drive.trial);
        let path = folder.path().to_owned();
        folder.create().map_err(|source| DriveError::Folder { doing: "create", path, source })?;
        let lock = lock::acquire(&folder, drive.trial)?;
        if store::is_emptied(&folder) {
            return Err(DriveError::Removed(drive.trial.clone()));
        }
        let here =
            || -> Box<dyn Launcher> { Box::new(LocalLauncher::starting(&folder, &drive.programs.agent)) };
        let launcher = drive.launcher.take().unwrap_or_else(here);
        let (machine, effects) = TrialMachine::replay(&drive.ledger.facts(drive.trial)?);
        let trained = TrainingTime::from_ledger(drive.ledger.trained_ms(drive.trial)?);
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
            news: TrialUpdate::default(),
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
            watch: AnomalyDetector::default(),
            reports: FailureReports::default(),
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
        self.machine.open_attempt().is_some()
    }

    pub(super) fn runs_or_is_over(&self) -> bool {
        self.link.is_some() || self.done.is_some()
    }

    /// Finds out what became of an open attempt: reads what it left behind, or goes on listening to it.
    ///
    /// `may_give_up` is whether what lies on a host that cannot be asked is given up after a while; otherwise that is an `Err`.
    pub(super) fn recover_open_attempt(&mut self, may_give_up: bool) -> Result<(), DriveError> {
        let settled = self.reconnect_or_fail(may_give_up);
        self.stop_if_history_lost(settled)
    }

    fn reconnect_or_fail(&mut self, may_give_up: bool) -> Result<(), DriveError> {
        self.may_give_up = may_give_up;
        if let Some(attempt) = self.machine.open_attempt() {
            self.kept = self.drive.ledger.offset(self.drive.trial, attempt)?;
            self.reconnect(attempt)?;
            self.process_inputs()?;
        }
        Ok(())
    }

    /// Drives the trial until it is over, or until its controller may leave.
    pub(super) fn run(&mut self) -> Result<DriveOutcome, DriveError> {
        let ended = self.event_loop();
        self.stop_if_history_lost(ended)
    }

    fn event_loop(&mut self) -> Result<DriveOutcome, DriveError> {
        self.may_give_up = true;
        loop {
            self.process_inputs()?;
            if let Some(verdict) = self.done.take() {
                self.flush()?;
                // One that came meanwhile wanted no more than that.
                self.drive.interrupts.acknowledge_all();
                let checkpoint = self.machine.newest_checkpoint().cloned();
                return Ok(DriveOutcome::Ended { verdict, checkpoint, attempts: self.machine.attempt().0 });
            }
            if self.is_leaving || self.drive.options.detach && self.link.is_some() {
                return self.leave();
            }
            if self.drive.interrupts.is_pending() {
                self.drive.interrupts.acknowledge();
                match self.drive.options.on_interrupt {
                    OnInterrupt::Leave => return self.leave(),
                    OnInterrupt::Stop => {
                        self.audit(AuditedAction::Stop, None);
                        self.inputs.push_back(TrialInput::Stop);
                    }
                }
            }
            self.receive_record()?;
            self.fence_returned()?;
            self.tick();
            self.record_load();
            self.flush_if_due()?;
        }
    }

    /// Ends what hosts that were lost and came back still run of older attempts.
    fn fence_returned(&mut self) -> Result<(), DriveError> {
        let (Some(launcher), Some(link)) = (&mut self.launcher, &self.link) else { return Ok(()) };
        for FencedAgent { host, attempt } in launcher.fence_returned(link.attempt) {
            self.show(ControllerStatus::Fenced { host, attempt })?;
        }
        Ok(())
    }

    fn flush_if_due(&mut self) -> Result<(), DriveError> {
        if self.news_since.is_some_and(|since| since.elapsed() >= KEEP_WITHIN) {
            self.flush()
        } else {
            Ok(())
        }
    }

    fn leave(&mut self) -> Result<DriveOutcome, DriveError> {
        self.flush()?;
        Ok(DriveOutcome::Detached { agent: self.link.as_ref().map(|link| link.agent) })
    }

    /// Feeds the machine, and all that follows from it.
    pub(super) fn feed(&mut self, input: TrialInput) -> Result<(), DriveError> {
        // A verdict that the user overrules is no longer the end.
        if input == TrialInput::Resume {
            self.done = None;
        }
        self.inputs.push_back(input);
        self.process_inputs()
    }

    fn process_inputs(&mut self) -> Result<(), DriveError> {
        while let Some(input) = self.inputs.pop_front() {
            let effects = self.machine.step(self.now(), input);
            self.carry_out(effects)?;
        }
        Ok(())
    }

    fn now(&self) -> Millis {
        Millis(u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    /// Takes in how loaded the host was.
    fn record_load(&mut self) {
        let points = self.link.as_ref().map_or_else(Vec::new, AgentConnection::take_load);
        if !points.is_empty() {
            self.news.points.extend(points);
            self.news_since.get_or_insert_with(Instant::now);
        }
    }

    fn tick(&mut self) {
        let now = self.now();
        let later = self.wakes.split_off(&now.after(1));
        if !self.wakes.is_empty() {
            self.inputs.push_back(TrialInput::Tick);
        }
        self.wakes = later;
    }

    /// Carries out effects in order; what is recorded is kept before anything that follows is done.
    fn carry_out(&mut self, effects: Vec<TrialEffect>) -> Result<(), DriveError> {
        let mut failure = None;
        for effect in effects {
            match effect {
                TrialEffect::Record(fact) => {
                    if let Some(lost) = lost_by(&fact) {
                        self.add_strike(&lost);
                        failure = Some(lost);
                    }
                    if let Some(Failure::HostLost { host, .. }) = &failure {
                        self.launcher.as_mut().expect("nobody waits for it").suspect(host);
                    }
                    self.news.facts.push(fact.clone());
                    self.queue_event(TrialEvent::Record(fact));
                }
                TrialEffect::WakeAt(moment) => {
                    self.wakes.insert(moment);
                    if let Some(failure) = failure.take() {
                        self.report_wait(moment, failure);
                    }
                }
                TrialEffect::Discover => {
                    self.flush()?;
                    self.discover_checkpoints()?;
                }
                TrialEffect::Launch { attempt, from } => {
                    self.flush()?;
                    self.launch(attempt, from)?;
                }
                TrialEffect::SendStop { attempt } => {
                    let killed_after_seconds = self.drive.options.killed_after.map(|time| time.as_secs_f64());
                    self.show(ControllerStatus::Stopping { attempt, killed_after_seconds })?;
                    self.send_stop();
                }
                TrialEffect::Kill { attempt } => {
                    self.show(ControllerStatus::Killing { attempt })?;
                    self.with_launcher(|launcher| launcher.kill(attempt))?;
                }
                TrialEffect::Done { verdict } => {
                    self.flush()?;
                    self.link = None;
                    self.done = Some(verdict);
                }
            }
        }
        Ok(())
    }

    fn report_wait(&mut self, until: Millis, failure: Failure) {
        let seconds = Duration::from_millis(until.0.saturating_sub(self.now().0)).as_secs_f64();
        let blame = Blame::of(&failure);
        let failures = (self.machine.failures(blame), blame.attempts());
        let attempt = self.machine.attempt();
        self.queue_event(TrialEvent::Status(ControllerStatus::Backoff {
            attempt,
            seconds,
            failures,
            blame,
            failure,
        }));
    }

    fn send_stop(&mut self) {
        if let Some(link) = &mut self.link {
            link.ask_to_stop();
        }
    }

    /// Shows what the controller is about, after everything that came before.
    /// What is to end ends, also where nobody can write it down.
    fn audit(&self, action: AuditedAction, attempt: Option<AttemptId>) {
        if let Some(audit) = &self.drive.audit {
            drop(audit.write(action, attempt));
        }
    }

    fn show(&mut self, status: ControllerStatus) -> Result<(), DriveError> {
        let done = match &status {
            ControllerStatus::Interrupted => Some((AuditedAction::Stop, None)),
            ControllerStatus::Killing { attempt } => Some((AuditedAction::Kill, Some(*attempt))),
            ControllerStatus::Fenced { attempt, .. } => Some((AuditedAction::Fence, Some(*attempt))),
            _ => None,
        };
        if let Some((action, attempt)) = done {
            self.audit(action, attempt);
        }
        self.queue_event(TrialEvent::Status(status));
        self.flush()
    }

    fn queue_event(&mut self, seen: TrialEvent) {
        self.news_since.get_or_insert_with(Instant::now);
        self.unseen.push(seen);
    }

    /// Keeps all news in one transaction, then shows it.
    fn flush(&mut self) -> Result<(), DriveError> {
        if self.news_since.take().is_some() {
            if self.news != TrialUpdate::default() {
                self.drive.ledger.record(self.drive.trial, &self.news)?;
                self.news = TrialUpdate::default();
            }
            for seen in self.unseen.drain(..) {
                self.drive.observer.observe(&seen);
            }
        }
        Ok(())
    }
}

/// The failure an attempt was lost by.
fn lost_by(fact: &Fact) -> Option<Failure> {
    match fact {
        Fact::AttemptEnded {
            ended: AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure), ..
        } => Some(failure.clone()),
        _ => None,
    }
}

//! Controller of a trial: the event loop around the state machine.

mod attempt;
mod claim;
mod discovery;
mod fault_attribution;
mod fencing;
mod history_lost;
mod reconnect;
mod regrouping;
mod wait;

use super::agent_connection::AgentConnection;
use super::anomaly::AnomalyDetector;
use super::lock::{self, TrialLock};
use super::training_time::TrainingTime;
use super::{Drive, DriveError, DriveOutcome, OnInterrupt};
use crate::audit::AuditedAction;
use crate::fact::{TrialUpdate, Verdict};
use crate::fault_attribution::FailureReports;
use crate::home::TrialFolder;
use crate::launch::{AvailableHosts, Launcher, LocalLauncher};
use crate::machine::{Blame, Millis, TrialEffect, TrialInput, TrialMachine};
use crate::strikes::ExcludedHost;
use crate::trial_event::{ControllerStatus, TrialEvent};
use dtrain_protocol::{AttemptId, Failure, TrialId};
use regrouping::Regrouping;
use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// Longest delay before updates are written to the ledger.
const KEEP_WITHIN: Duration = Duration::from_millis(250);

/// Interval between two checks for interrupts.
const BEAT: Duration = Duration::from_millis(50);

/// Silence after which a living agent is killed.
const SILENCE: Duration = Duration::from_secs(20);

/// The controller of one trial.
pub(super) struct TrialController<'a> {
    drive: Drive<'a>,
    folder: TrialFolder,
    /// Launcher of the agents; `None` only while [`TrialController::with_launcher`] runs it in another
    /// thread.
    launcher: Option<Box<dyn Launcher>>,
    machine: TrialMachine,
    started: Instant,
    wakes: BTreeSet<Millis>,
    inputs: VecDeque<TrialInput>,
    /// The update that is stored next; its events are shown after it is stored.
    news: TrialUpdate,
    unseen: Vec<TrialEvent>,
    news_since: Option<Instant>,
    link: Option<AgentConnection>,
    /// Time of the last message from the open attempt.
    heard_at: Instant,
    /// Hosts that answered when their disks were searched.
    usable: Option<AvailableHosts>,
    /// Reason why it is unknown whether the open attempt was launched.
    unlaunched: Option<String>,
    /// Newest attempt that this controller launched, or whose agent it was connected to.
    followed: Option<AttemptId>,
    /// True if an unreachable host may be given up so that the trial continues.
    may_give_up: bool,
    /// Number of bytes read of the open attempt's spool, and of bytes that the ledger had when this
    /// controller started.
    read: u64,
    kept: u64,
    /// Attempt and offset from which a spool cannot be read.
    damaged: Option<(AttemptId, u64)>,
    trained: TrainingTime,
    watch: AnomalyDetector,
    reports: FailureReports,
    /// Hosts that left, and are not used for a while.
    left: Vec<ExcludedHost>,
    regrouping: Regrouping,
    /// True if an interrupt ended a wait since the last connection to the agent.
    is_cancelled: bool,
    /// True if the controller detaches while the trial continues.
    is_leaving: bool,
    done: Option<Verdict>,
    lock: TrialLock,
}

impl<'a> TrialController<'a> {
    /// Locks the trial and restores its state from the ledger.
    pub(super) fn take_over(mut drive: Drive<'a>) -> Result<Self, DriveError> {
        let folder = drive.home.trial(drive.trial);
        let path = folder.path().to_owned();
        folder.create().map_err(|source| DriveError::Folder { doing: "create", path, source })?;
        let lock = lock::acquire(&folder, drive.trial)?;
        if folder.is_emptied() {
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
            may_give_up: true,
            read: 0,
            kept: 0,
            damaged: None,
            trained,
            watch: AnomalyDetector::default(),
            reports: FailureReports::default(),
            left: Vec::new(),
            regrouping: Regrouping::default(),
            done: None,
            lock,
        };
        engine.claim()?;
        engine.carry_out(effects)?;
        Ok(engine)
    }

    pub(super) fn trial(&self) -> TrialId {
        self.drive.trial.clone()
    }

    pub(super) fn was_launched(&self) -> bool {
        self.machine.attempt() > AttemptId(0)
    }

    /// Returns `true` if an attempt in the ledger may be alive.
    pub(super) fn may_run(&self) -> bool {
        self.machine.open_attempt().is_some()
    }

    pub(super) fn runs_or_is_over(&self) -> bool {
        self.link.is_some() || self.done.is_some()
    }

    /// Returns `true` if no attempt is alive and none is scheduled.
    pub(super) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    /// Returns the outcome of a trial that had ended before this controller took over; `None` otherwise.
    pub(super) fn outcome(&self) -> Option<DriveOutcome> {
        let verdict = self.machine.verdict().filter(|_| self.done.is_none())?;
        Some(self.ended(verdict.clone()))
    }

    fn ended(&self, verdict: Verdict) -> DriveOutcome {
        let checkpoint = self.machine.newest_checkpoint().cloned();
        DriveOutcome::Ended { verdict, checkpoint, attempts: self.machine.attempt().0 }
    }

    /// Recovers an open attempt: reads the records that it left behind, or reconnects to it.
    ///
    /// With `may_give_up`, records on an unreachable host are given up after a while; otherwise that is an
    /// `Err`.
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

    /// Drives the trial until it ends, or until the controller may detach.
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
                self.fence_at_end()?;
                // A Ctrl-C received meanwhile is already satisfied.
                self.drive.interrupts.acknowledge_all();
                return Ok(self.ended(verdict));
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
            self.poll_claims()?;
            self.fence_returned()?;
            self.leave_drained_hosts()?;
            self.tick();
            self.record_load();
            self.flush_if_due()?;
        }
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

    /// Passes an input to the state machine and carries out all effects that follow.
    pub(super) fn feed(&mut self, input: TrialInput) -> Result<(), DriveError> {
        // The user overrules a verdict: it no longer ends the trial.
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

    /// Records the load of the agent's host.
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

    /// Carries out effects in order; a record is stored before any later effect.
    fn carry_out(&mut self, effects: Vec<TrialEffect>) -> Result<(), DriveError> {
        let mut failure = None;
        for effect in effects {
            match effect {
                TrialEffect::Record(fact) => {
                    if let Some(lost) = fact.loss().cloned() {
                        self.end_if_lost_to_another_controller(&lost)?;
                        self.attribute(&lost);
                        failure = Some(lost);
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
        self.lock.set_waiting(true);
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

    /// Appends to the audit log. An error is dropped, so that stopping works even if the log cannot be
    /// written.
    fn audit(&self, action: AuditedAction, attempt: Option<AttemptId>) {
        if let Some(audit) = &self.drive.audit {
            drop(audit.write(action, attempt));
        }
    }

    /// Shows a status of the controller, after all earlier events.
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

    /// Stores all pending updates in one transaction, then shows their events.
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

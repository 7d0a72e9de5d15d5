//! The pure state machine of a trial: inputs in, effects out. It reads no clock, socket or disk.
//!
//! State that must survive a crash changes only through facts (`TrialMachine::apply`), live and in replay
//! alike, so the ledger alone restores it. Messages of the open attempt are not stored: they are read from
//! its spool again.
//!
//! Disks are searched before each launch: the spool of an attempt may be lost with its host while its
//! checkpoints survive on others.
//!
//! Failures of machines and of the training have a budget each ([`Blame`]).
//!
//! Promises, checked by `simulate`: at most one attempt lives; a launch is recorded before it happens; a
//! message of an older attempt changes nothing; a checkpoint counts only when every rank of one attempt saved
//! it and the agent committed it; a checkpoint on disk is not forgotten; a trial ends once, with a reason;
//! the ledger alone is enough to resume; an attempt resumes only from the newest durable checkpoint that was
//! not refused.

mod attempt;
mod backoff;
mod blame;
mod io;
mod promise;
mod restart;
mod roster;
#[cfg(test)]
mod simulate;

pub use blame::{Blame, more_severe};
pub use io::{Millis, TrialEffect, TrialInput};
pub use roster::{Growth, HostCondition, HostStanding, standings};

use crate::checkpoints::ADOPTED;
use crate::fact::{AttemptEnd, Fact, Verdict};
use attempt::AttemptReports;
use dtrain_protocol::{AttemptId, Failure, ResumePoint, StepId};
use promise::Promise;
use restart::is_departure;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Number of attempts lost to machine failures before an older checkpoint is used in place of a newer one on
/// an unreachable host. They take about ten minutes.
pub const ATTEMPTS_FOR_A_HOST: u32 = 15;

/// State machine of one trial.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialMachine {
    /// Number of the newest attempt; 0 before the first.
    attempt: AttemptId,
    phase: Phase,
    /// Durable checkpoints that were not refused, oldest first.
    checkpoints: Vec<(AttemptId, ResumePoint)>,
    /// Names of the folders of refused checkpoints.
    refused: BTreeSet<OsString>,
    /// The folder of another trial's checkpoint that this trial starts from.
    adopted: Option<PathBuf>,
    /// Number of attempts lost since the last progress, for the failure budgets.
    failures: FailureCounts,
    /// Number of attempts lost since the last new step because data was unusable on one of several hosts.
    data_failures: u32,
    /// Time of the first machine failure since the last progress. Not stored: each controller has its own
    /// clock.
    troubled_since: Option<Millis>,
    /// True if the newest attempt found its checkpoint unreadable: its loss does not count as a failure.
    excused: bool,
    /// The highest step that any attempt completed.
    reached: StepId,
    /// Number of the user's requests to stop.
    stops: u32,
    reports: AttemptReports,
    #[cfg(test)]
    broken: Option<Promise>,
}

/// Number of attempts lost since the last progress, by the party to blame ([`Blame`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct FailureCounts {
    machines: u32,
    training: u32,
}

impl FailureCounts {
    fn get(self, blame: Blame) -> u32 {
        match blame {
            Blame::Machines => self.machines,
            Blame::Training => self.training,
        }
    }

    fn add(&mut self, blame: Blame) {
        match blame {
            Blame::Machines => self.machines += 1,
            Blame::Training => self.training += 1,
        }
    }
}

/// Phase of a trial.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// No attempt is alive, and none is scheduled.
    Idle,
    /// No attempt is alive; the next one is due at this time.
    Waiting(Millis),
    /// No attempt is alive; the next one is launched after the search of the disks.
    Discovering,
    /// An attempt was recorded and may be alive.
    Open,
    /// The trial has ended with this verdict.
    Over(Verdict),
}

impl TrialMachine {
    /// Creates the state machine of a new trial, and returns the effects of its start.
    pub fn begin() -> (Self, Vec<TrialEffect>) {
        let mut machine = Self::empty();
        let effects = machine.step(Millis(0), TrialInput::Resume);
        (machine, effects)
    }

    /// Rebuilds the state machine of a trial from its facts; the effects complete what a crash cut short.
    ///
    /// The [`TrialMachine::open_attempt`] may be alive: the driver finds out and reports it.
    /// [`TrialInput::Resume`] launches the next attempt.
    pub fn replay(facts: &[Fact]) -> (Self, Vec<TrialEffect>) {
        let mut machine = Self::empty();
        let mut effects = Vec::new();
        for fact in facts {
            machine.apply(fact);
        }
        let ended = facts.iter().rev().find_map(|fact| match fact {
            Fact::AttemptEnded { ended, .. } => Some(Some(ended)),
            Fact::Resumed | Fact::AttemptStarted { .. } | Fact::TrialEnded { .. } => Some(None),
            Fact::CheckpointCommitted { .. } | Fact::CheckpointRefused { .. } => None,
        });
        if let (Phase::Idle, Some(Some(ended))) = (&machine.phase, ended)
            && let Some(verdict) = machine.verdict_after(ended)
        {
            machine.end(verdict, &mut effects);
        }
        (machine, effects)
    }

    fn empty() -> Self {
        Self {
            attempt: AttemptId(0),
            phase: Phase::Idle,
            checkpoints: Vec::new(),
            refused: BTreeSet::new(),
            adopted: None,
            failures: FailureCounts::default(),
            data_failures: 0,
            troubled_since: None,
            excused: false,
            reached: StepId(0),
            stops: 0,
            reports: AttemptReports::default(),
            #[cfg(test)]
            broken: None,
        }
    }

    /// Returns the attempt that may be alive, if any.
    pub fn open_attempt(&self) -> Option<AttemptId> {
        (self.phase == Phase::Open).then_some(self.attempt)
    }

    /// Returns the verdict of the trial; `None` until it has ended.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Over(verdict) => Some(verdict),
            Phase::Idle | Phase::Waiting(_) | Phase::Discovering | Phase::Open => None,
        }
    }

    /// Returns the number of the newest attempt; 0 before the first.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// Returns the newest durable checkpoint that was not refused.
    pub fn newest_checkpoint(&self) -> Option<&ResumePoint> {
        if self.breaks(Promise::NewestCheckpoint) {
            return self.checkpoints.first().map(|(_, point)| point);
        }
        self.checkpoints.last().map(|(_, point)| point)
    }

    /// Returns the paths of the durable checkpoints that were not refused.
    pub fn checkpoint_folders(&self) -> impl Iterator<Item = &Path> {
        self.checkpoints.iter().map(|(_, point)| point.folder.as_path())
    }

    /// Returns `true` if a committed checkpoint in `folder` is newer than all known ones and was not refused.
    /// One of an unknown attempt belongs to another trial or to a newer history.
    pub fn would_adopt(&self, attempt: AttemptId, step: StepId, folder: &Path) -> bool {
        let newest = self.checkpoints.last().map(|(attempt, point)| (*attempt, point.step));
        let is_newer = newest.is_none_or(|newest| (attempt, step) > newest);
        let is_refused = folder.file_name().is_some_and(|name| self.refused.contains(name));
        attempt > ADOPTED && attempt <= self.attempt && is_newer && !is_refused
    }

    /// Returns the number of attempts lost to `blame` since the last progress.
    pub fn failures(&self, blame: Blame) -> u32 {
        self.failures.get(blame)
    }

    /// Resets the failure budgets after progress.
    fn reset_failures(&mut self) {
        (self.failures, self.troubled_since) = (FailureCounts::default(), None);
    }

    /// Handles one input and returns the effects, in order. Deterministic.
    pub fn step(&mut self, now: Millis, input: TrialInput) -> Vec<TrialEffect> {
        let mut effects = Vec::new();
        match input {
            TrialInput::Began { attempt, ranks } if self.is_current(attempt) => {
                self.reports.ranks = Some(ranks);
            }
            TrialInput::Event(stamped) if self.is_current(stamped.attempt) => {
                self.event(now, stamped, &mut effects);
            }
            TrialInput::Committed { attempt, step, folder } if self.is_current(attempt) => {
                self.checkpoint_committed(attempt, ResumePoint { folder, step }, &mut effects);
            }
            TrialInput::CommitFailed { attempt, step } if self.is_current(attempt) => {
                self.reports.saved.remove(&step);
                self.reports.uncommitted = self.reports.uncommitted.max(Some(step));
            }
            TrialInput::Over { attempt, ended } if self.is_current(attempt) => {
                self.restart_or_give_up(now, ended, &mut effects);
            }
            TrialInput::Gone { attempt, lost } if self.is_current(attempt) => {
                let ended = self.ended_when_gone(lost);
                self.restart_or_give_up(now, ended, &mut effects);
            }
            TrialInput::Found { attempt, step, folder } if self.phase == Phase::Discovering => {
                self.adopt_found(attempt, ResumePoint { folder, step }, &mut effects);
            }
            TrialInput::Missing { folder } if self.phase == Phase::Discovering => {
                self.checkpoints.retain(|(_, point)| point.folder != folder);
            }
            TrialInput::DiscoveryDone if self.phase == Phase::Discovering => self.launch(&mut effects),
            TrialInput::LaunchFailed { attempt, failure } if self.is_current(attempt) => {
                self.launch_failed(now, &failure, &mut effects);
            }
            TrialInput::Began { .. }
            | TrialInput::Event(_)
            | TrialInput::Committed { .. }
            | TrialInput::CommitFailed { .. }
            | TrialInput::Over { .. }
            | TrialInput::Gone { .. }
            | TrialInput::Found { .. }
            | TrialInput::Missing { .. }
            | TrialInput::DiscoveryDone
            | TrialInput::LaunchFailed { .. } => {}
            TrialInput::Tick => self.tick(now, &mut effects),
            TrialInput::Stop => self.stop(&mut effects),
            TrialInput::Resume => self.resume(&mut effects),
        }
        effects
    }

    /// True if a message belongs to the open attempt: its number is its epoch, a fencing token.
    fn is_current(&self, attempt: AttemptId) -> bool {
        self.phase == Phase::Open && (attempt == self.attempt || self.breaks(Promise::StaleChangesNothing))
    }

    fn tick(&mut self, now: Millis, effects: &mut Vec<TrialEffect>) {
        match &self.phase {
            Phase::Waiting(until) if now >= *until => self.discover_checkpoints(effects),
            Phase::Open if self.reports.deadline.is_some_and(|deadline| now >= deadline) => {
                self.reports.deadline = None;
                effects.push(TrialEffect::Kill { attempt: self.attempt });
            }
            Phase::Over(verdict) if self.breaks(Promise::EndsOnce) => {
                effects.push(TrialEffect::Record(Fact::TrialEnded { verdict: verdict.clone() }));
            }
            Phase::Idle | Phase::Waiting(_) | Phase::Discovering | Phase::Open | Phase::Over(_) => {}
        }
    }

    fn stop(&mut self, effects: &mut Vec<TrialEffect>) {
        match self.phase {
            Phase::Over(_) => {}
            Phase::Idle | Phase::Waiting(_) | Phase::Discovering => self.end(Verdict::Stopped, effects),
            Phase::Open => {
                self.stops += 1;
                let attempt = self.attempt;
                effects.push(match self.stops {
                    1 => TrialEffect::SendStop { attempt },
                    _ => TrialEffect::Kill { attempt },
                });
            }
        }
    }

    fn resume(&mut self, effects: &mut Vec<TrialEffect>) {
        match &self.phase {
            Phase::Open | Phase::Discovering => {}
            Phase::Over(verdict @ Verdict::Completed(_)) => {
                effects.push(TrialEffect::Done { verdict: verdict.clone() });
            }
            Phase::Idle if self.attempt == AttemptId(0) => self.discover_checkpoints(effects),
            Phase::Idle | Phase::Waiting(_) | Phase::Over(_) => {
                self.record(Fact::Resumed, effects);
                self.discover_checkpoints(effects);
            }
        }
    }

    /// Starts the search for checkpoints that precedes every launch.
    fn discover_checkpoints(&mut self, effects: &mut Vec<TrialEffect>) {
        self.phase = Phase::Discovering;
        effects.push(TrialEffect::Discover);
    }

    fn launch(&mut self, effects: &mut Vec<TrialEffect>) {
        let from = self.newest_checkpoint().cloned();
        if let (None, Some(folder)) = (&from, &self.adopted) {
            // Starting without it would be another training than the user asked for.
            let detail = "the trial begins with it, and it can no longer be read".to_owned();
            let failure = Failure::CorruptCheckpoint { folder: folder.clone(), detail };
            return self.end(Verdict::Failed(failure), effects);
        }
        let attempt = AttemptId(self.attempt.0 + 1);
        let launch = TrialEffect::Launch { attempt, from: from.clone() };
        if self.breaks(Promise::RecordBeforeLaunch) {
            effects.push(launch.clone());
        }
        self.record(Fact::AttemptStarted { attempt, from: from.map(|point| point.step) }, effects);
        if !self.breaks(Promise::RecordBeforeLaunch) {
            effects.push(launch);
        }
    }

    fn end(&mut self, verdict: Verdict, effects: &mut Vec<TrialEffect>) {
        self.record(Fact::TrialEnded { verdict: verdict.clone() }, effects);
        effects.push(TrialEffect::Done { verdict });
    }

    fn record(&mut self, fact: Fact, effects: &mut Vec<TrialEffect>) {
        self.apply(&fact);
        effects.push(TrialEffect::Record(fact));
    }

    /// Changes the state by one fact. No other function interprets facts.
    fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::AttemptStarted { attempt, .. } => {
                self.attempt = *attempt;
                self.phase = Phase::Open;
                self.excused = false;
                self.reports = AttemptReports::default();
            }
            Fact::CheckpointCommitted { attempt, step, folder } => {
                if *attempt == ADOPTED {
                    self.adopted = Some(folder.clone());
                }
                let point = ResumePoint { folder: folder.clone(), step: *step };
                self.checkpoints.push((*attempt, point));
                if *step > self.reached {
                    (self.reached, self.data_failures) = (*step, 0);
                }
                self.reset_failures();
            }
            Fact::CheckpointRefused { folder, .. } => {
                if !self.breaks(Promise::RefusedStaysRefused) {
                    self.refused.extend(folder.file_name().map(OsStr::to_owned));
                }
                if !self.breaks(Promise::RefusedIsForgotten) {
                    self.checkpoints.retain(|(_, point)| point.folder.file_name() != folder.file_name());
                }
                self.excused = true;
            }
            Fact::AttemptEnded { ended, .. } => {
                self.phase = Phase::Idle;
                if matches!(ended, AttemptEnd::Lost(Failure::DataOn { .. })) {
                    self.data_failures += 1;
                }
                match ended {
                    AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure)
                        if !self.excused && !is_departure(ended) =>
                    {
                        self.failures.add(Blame::of(failure));
                    }
                    AttemptEnd::Lost(_) | AttemptEnd::NotLaunched(_) | AttemptEnd::Finished(_) => {}
                }
            }
            Fact::TrialEnded { verdict } => self.phase = Phase::Over(verdict.clone()),
            Fact::Resumed => {
                self.phase = Phase::Idle;
                self.data_failures = 0;
                self.reset_failures();
                self.stops = 0;
            }
        }
    }
}

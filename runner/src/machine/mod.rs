//! The decisions of a trial's life, pure: what happened goes in, what to do comes out.
//!
//! What must survive a crash is changed by facts alone (`Machine::apply`), live and in replay alike, so that
//! the ledger is enough to go on. What an attempt said so far is volatile: it is read again from its spool.
//! Nothing here reads a clock, a socket or a disk.
//!
//! Before an attempt is launched the disks are looked at: the record of an attempt may be lost with a host while the checkpoints
//! that it tells of lie on others.
//!
//! Failures of machines and failures of the training have a budget each ([`Blame`]).
//!
//! Promises, each kept under test by `simulate`: at most one attempt lives; a launch is recorded before it happens; a
//! message of an older attempt changes nothing; a checkpoint counts only when every rank of the same
//! attempt saved it and the agent committed it; what a disk has is not forgotten; a trial ends once, with a reason; the ledger alone is enough to
//! go on; an attempt goes on only from the newest durable checkpoint that was not refused.

mod attempt;
mod failure;
mod io;
mod promise;
#[cfg(test)]
mod simulate;

pub use failure::{Blame, graver};
pub use io::{Effect, Input, Moment};

use crate::checkpoints::ADOPTED;
use crate::fact::{Ended, Fact, Verdict};
use attempt::Heard;
use dtrain_protocol::{AttemptId, Failure, ResumePoint, StepId};
use promise::Promise;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Attempts lost by machines for which a checkpoint on a host that is away is waited for, before an older one is gone on from: about
/// ten minutes.
pub const ATTEMPTS_FOR_A_HOST: u32 = 15;

/// One trial, as far as decisions need to know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The newest attempt; 0 before the first.
    attempt: AttemptId,
    phase: Phase,
    /// Durable checkpoints that were not refused, oldest first.
    checkpoints: Vec<(AttemptId, ResumePoint)>,
    /// Names of the folders of those that were.
    refused: BTreeSet<OsString>,
    /// The checkpoint of another trial that this one begins with.
    adopted: Option<PathBuf>,
    /// Attempts lost since the last progress.
    failures: Failures,
    /// Attempts lost since the last new step because of the data on one of several hosts.
    data_failures: u32,
    /// When the first of those was lost that machines are to blame for. Volatile: every controller has a clock of its own.
    troubled_since: Option<Moment>,
    /// The newest attempt found its checkpoint unreadable: its loss is not held against the trial.
    excused: bool,
    /// The most steps any attempt completed.
    reached: StepId,
    /// How often the user asked to stop.
    stops: u32,
    heard: Heard,
    #[cfg(test)]
    broken: Option<Promise>,
}

/// Attempts lost since the last progress, by whose failure it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Failures {
    machines: u32,
    training: u32,
}

impl Failures {
    fn of(self, blame: Blame) -> u32 {
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

/// Where a trial stands.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// No attempt lives, and none is waited for.
    Idle,
    /// No attempt lives; the next follows then.
    Waiting(Moment),
    /// No attempt lives; the next follows once the disks were looked at.
    Looking,
    /// An attempt was recorded and may live.
    Open,
    /// The trial is over.
    Over(Verdict),
}

impl Machine {
    /// A new trial and its first attempt.
    pub fn begin() -> (Self, Vec<Effect>) {
        let mut machine = Self::empty();
        let effects = machine.step(Moment(0), Input::Resume);
        (machine, effects)
    }

    /// The trial as its facts tell it. The effects complete what a crash cut short.
    ///
    /// An attempt that is [`Machine::open`] may live: find out and say so. To launch the next one say
    /// [`Input::Resume`].
    pub fn replay(facts: &[Fact]) -> (Self, Vec<Effect>) {
        let mut machine = Self::empty();
        let mut effects = Vec::new();
        for fact in facts {
            machine.apply(fact);
        }
        let ended = facts.iter().rev().find_map(|fact| match fact {
            Fact::AttemptEnded { ended, .. } => Some(Some(ended)),
            Fact::Resumed | Fact::AttemptStarted { .. } | Fact::TrialEnded { .. } => Some(None),
            Fact::CheckpointDurable { .. } | Fact::CheckpointRefused { .. } => None,
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
            failures: Failures::default(),
            data_failures: 0,
            troubled_since: None,
            excused: false,
            reached: StepId(0),
            stops: 0,
            heard: Heard::default(),
            #[cfg(test)]
            broken: None,
        }
    }

    /// The attempt that may live.
    pub fn open(&self) -> Option<AttemptId> {
        (self.phase == Phase::Open).then_some(self.attempt)
    }

    /// How the trial ended, when it has.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Over(verdict) => Some(verdict),
            Phase::Idle | Phase::Waiting(_) | Phase::Looking | Phase::Open => None,
        }
    }

    /// The newest attempt; 0 before the first.
    pub fn attempt(&self) -> AttemptId {
        self.attempt
    }

    /// The newest durable checkpoint that was not refused.
    pub fn newest(&self) -> Option<&ResumePoint> {
        if self.breaks(Promise::NewestCheckpoint) {
            return self.checkpoints.first().map(|(_, point)| point);
        }
        self.checkpoints.last().map(|(_, point)| point)
    }

    /// The folders of the durable checkpoints that were not refused.
    pub fn folders(&self) -> impl Iterator<Item = &Path> {
        self.checkpoints.iter().map(|(_, point)| point.folder.as_path())
    }

    /// Whether a committed checkpoint in the folder is newer than all that are known, and was not refused. One of an attempt that is
    /// not known is another trial's, or of a history that is newer than this one.
    pub fn would_adopt(&self, attempt: AttemptId, step: StepId, folder: &Path) -> bool {
        let newest = self.checkpoints.last().map(|(attempt, point)| (*attempt, point.step));
        let is_newer = newest.is_none_or(|newest| (attempt, step) > newest);
        let is_refused = folder.file_name().is_some_and(|name| self.refused.contains(name));
        attempt > ADOPTED && attempt <= self.attempt && is_newer && !is_refused
    }

    /// Attempts lost since the last progress that such failures are to blame for.
    pub fn failures(&self, blame: Blame) -> u32 {
        self.failures.of(blame)
    }

    /// The budgets are whole again.
    fn progress(&mut self) {
        (self.failures, self.troubled_since) = (Failures::default(), None);
    }

    /// Takes in what happened and says what to do, in order. The same inputs always give the same effects.
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        match input {
            Input::Began { attempt, ranks } if self.listens_to(attempt) => self.heard.ranks = Some(ranks),
            Input::Event(stamped) if self.listens_to(stamped.attempt) => {
                self.event(now, stamped, &mut effects);
            }
            Input::Committed { attempt, step, folder } if self.listens_to(attempt) => {
                self.committed(attempt, ResumePoint { folder, step }, &mut effects);
            }
            Input::CommitFailed { attempt, step } if self.listens_to(attempt) => {
                self.heard.saved.remove(&step);
                self.heard.uncommitted = self.heard.uncommitted.max(Some(step));
            }
            Input::Over { attempt, ended } if self.listens_to(attempt) => {
                self.attempt_ended(now, ended, &mut effects);
            }
            Input::Gone { attempt, lost } if self.listens_to(attempt) => {
                let ended = self.ended_when_gone(lost);
                self.attempt_ended(now, ended, &mut effects);
            }
            Input::Found { attempt, step, folder } if self.phase == Phase::Looking => {
                self.found(attempt, ResumePoint { folder, step }, &mut effects);
            }
            Input::Missing { folder } if self.phase == Phase::Looking => {
                self.checkpoints.retain(|(_, point)| point.folder != folder);
            }
            Input::Looked if self.phase == Phase::Looking => self.launch(&mut effects),
            Input::LaunchFailed { attempt, failure } if self.listens_to(attempt) => {
                self.not_launched(now, &failure, &mut effects);
            }
            Input::Began { .. }
            | Input::Event(_)
            | Input::Committed { .. }
            | Input::CommitFailed { .. }
            | Input::Over { .. }
            | Input::Gone { .. }
            | Input::Found { .. }
            | Input::Missing { .. }
            | Input::Looked
            | Input::LaunchFailed { .. } => {}
            Input::Tick => self.tick(now, &mut effects),
            Input::Stop => self.stop(&mut effects),
            Input::Resume => self.resume(&mut effects),
        }
        effects
    }

    /// Whether a message of `attempt` is news.
    fn listens_to(&self, attempt: AttemptId) -> bool {
        self.phase == Phase::Open && (attempt == self.attempt || self.breaks(Promise::StaleChangesNothing))
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Waiting(until) if now >= *until => self.look(effects),
            Phase::Open if self.heard.deadline.is_some_and(|deadline| now >= deadline) => {
                self.heard.deadline = None;
                effects.push(Effect::Kill { attempt: self.attempt });
            }
            Phase::Over(verdict) if self.breaks(Promise::EndsOnce) => {
                effects.push(Effect::Record(Fact::TrialEnded { verdict: verdict.clone() }));
            }
            Phase::Idle | Phase::Waiting(_) | Phase::Looking | Phase::Open | Phase::Over(_) => {}
        }
    }

    fn stop(&mut self, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Over(_) => {}
            Phase::Idle | Phase::Waiting(_) | Phase::Looking => self.end(Verdict::Stopped, effects),
            Phase::Open => {
                self.stops += 1;
                let attempt = self.attempt;
                effects.push(match self.stops {
                    1 => Effect::SendStop { attempt },
                    _ => Effect::Kill { attempt },
                });
            }
        }
    }

    fn resume(&mut self, effects: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Open | Phase::Looking => {}
            Phase::Over(verdict @ Verdict::Completed(_)) => {
                effects.push(Effect::Done { verdict: verdict.clone() });
            }
            Phase::Idle if self.attempt == AttemptId(0) => self.look(effects),
            Phase::Idle | Phase::Waiting(_) | Phase::Over(_) => {
                self.record(Fact::Resumed, effects);
                self.look(effects);
            }
        }
    }

    /// Lets the next attempt follow once it is known what there is to go on from.
    fn look(&mut self, effects: &mut Vec<Effect>) {
        self.phase = Phase::Looking;
        effects.push(Effect::Look);
    }

    fn launch(&mut self, effects: &mut Vec<Effect>) {
        let from = self.newest().cloned();
        if let (None, Some(folder)) = (&from, &self.adopted) {
            // To begin without it would be another training than was asked for.
            let detail = "the trial begins with it, and it can no longer be read".to_owned();
            let failure = Failure::CorruptCheckpoint { folder: folder.clone(), detail };
            return self.end(Verdict::Failed(failure), effects);
        }
        let attempt = AttemptId(self.attempt.0 + 1);
        let launch = Effect::Launch { attempt, from: from.clone() };
        if self.breaks(Promise::RecordBeforeLaunch) {
            effects.push(launch.clone());
        }
        self.record(Fact::AttemptStarted { attempt, from: from.map(|point| point.step) }, effects);
        if !self.breaks(Promise::RecordBeforeLaunch) {
            effects.push(launch);
        }
    }

    fn end(&mut self, verdict: Verdict, effects: &mut Vec<Effect>) {
        self.record(Fact::TrialEnded { verdict: verdict.clone() }, effects);
        effects.push(Effect::Done { verdict });
    }

    fn record(&mut self, fact: Fact, effects: &mut Vec<Effect>) {
        self.apply(&fact);
        effects.push(Effect::Record(fact));
    }

    /// The only place where what a fact means is written.
    fn apply(&mut self, fact: &Fact) {
        match fact {
            Fact::AttemptStarted { attempt, .. } => {
                self.attempt = *attempt;
                self.phase = Phase::Open;
                self.excused = false;
                self.heard = Heard::default();
            }
            Fact::CheckpointDurable { attempt, step, folder } => {
                if *attempt == ADOPTED {
                    self.adopted = Some(folder.clone());
                }
                let point = ResumePoint { folder: folder.clone(), step: *step };
                self.checkpoints.push((*attempt, point));
                if *step > self.reached {
                    (self.reached, self.data_failures) = (*step, 0);
                }
                self.progress();
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
                if matches!(ended, Ended::Lost(Failure::DataOn { .. })) {
                    self.data_failures += 1;
                }
                match ended {
                    Ended::Lost(failure) | Ended::NotLaunched(failure) if !self.excused => {
                        self.failures.add(Blame::of(failure));
                    }
                    Ended::Lost(_) | Ended::NotLaunched(_) | Ended::Finished(_) => {}
                }
            }
            Fact::TrialEnded { verdict } => self.phase = Phase::Over(verdict.clone()),
            Fact::Resumed => {
                self.phase = Phase::Idle;
                self.data_failures = 0;
                self.progress();
                self.stops = 0;
            }
        }
    }
}

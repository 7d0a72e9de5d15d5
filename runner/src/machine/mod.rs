//! The decisions of a trial's life, pure: what happened goes in, what to do comes out.
//!
//! What must survive a crash is changed by facts alone (`Machine::apply`), live and in replay alike, so that
//! the ledger is enough to go on. What an attempt said so far is volatile: it is read again from its spool.
//! Nothing here reads a clock, a socket or a disk.
//!
//! Promises, each kept under test by `simulate`: at most one attempt lives; a launch is recorded before it happens; a
//! message of an older attempt changes nothing; a checkpoint counts only when every rank of the same
//! attempt saved it and the agent committed it; a trial ends once, with a reason; the ledger alone is enough to
//! go on; an attempt goes on only from the newest durable checkpoint that was not refused.

mod failure;
mod io;
#[cfg(test)]
mod simulate;

pub use failure::graver;
pub use io::{Effect, Input, Moment};

use crate::fact::{Ended, Fact, Verdict};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, ResumePoint, Stamped, StepId, StopReason};
use failure::{backoff_ms, verdict_of};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Attempts without progress after which a trial has failed. A durable checkpoint and a step that no earlier
/// attempt reached are progress.
pub const ATTEMPTS_WITHOUT_PROGRESS: u32 = 5;

/// Milliseconds the agent has to end an attempt one of whose ranks failed.
const END_WITHIN_MS: u64 = 15_000;

/// One trial, as far as decisions need to know it.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The newest attempt; 0 before the first.
    attempt: AttemptId,
    phase: Phase,
    /// Durable checkpoints that were not refused, oldest first.
    checkpoints: Vec<(AttemptId, ResumePoint)>,
    /// Attempts lost since the last progress.
    failures: u32,
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

/// Where a trial stands.
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    /// No attempt lives, and none is waited for.
    Idle,
    /// No attempt lives; the next follows then.
    Waiting(Moment),
    /// An attempt was recorded and may live.
    Open,
    /// The trial is over.
    Over(Verdict),
}

/// What the open attempt said. Volatile.
#[derive(Clone, Debug, Default, PartialEq)]
struct Heard {
    /// Number of its ranks, once told.
    ranks: Option<u32>,
    /// Who saved which step; without those that are committed.
    saved: BTreeMap<StepId, BTreeSet<Rank>>,
    /// Who did all it was told.
    finished: BTreeMap<Rank, StopReason>,
    /// The gravest failure.
    cause: Option<Failure>,
    /// When the attempt is killed unless it has ended.
    deadline: Option<Moment>,
}

/// A promise that a test breaks on purpose, to see that the simulator notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Promise {
    OneLiveAttempt,
    RecordBeforeLaunch,
    StaleChangesNothing,
    EveryRankSaved,
    AgentCommitted,
    EndsOnce,
    NewestCheckpoint,
    RefusedIsForgotten,
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
            failures: 0,
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
            Phase::Idle | Phase::Waiting(_) | Phase::Open => None,
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

    /// Attempts lost since the last progress.
    pub fn failures(&self) -> u32 {
        self.failures
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
            }
            Input::Over { attempt, ended } if self.listens_to(attempt) => {
                self.attempt_ended(now, ended, &mut effects);
            }
            Input::Gone { attempt } if self.listens_to(attempt) => {
                let ended = self.ended_when_gone();
                self.attempt_ended(now, ended, &mut effects);
            }
            Input::LaunchFailed { attempt, failure } if self.listens_to(attempt) => {
                self.not_launched(now, &failure, &mut effects);
            }
            Input::Began { .. }
            | Input::Event(_)
            | Input::Committed { .. }
            | Input::CommitFailed { .. }
            | Input::Over { .. }
            | Input::Gone { .. }
            | Input::LaunchFailed { .. } => {}
            Input::Tick => self.tick(now, &mut effects),
            Input::Stop => self.stop(&mut effects),
            Input::Resume => self.resume(&mut effects),
        }
        effects
    }

    /// Whether a test asked for this promise to be broken.
    fn breaks(&self, promise: Promise) -> bool {
        #[cfg(test)]
        return self.broken == Some(promise);
        #[cfg(not(test))]
        return match promise {
            Promise::OneLiveAttempt
            | Promise::RecordBeforeLaunch
            | Promise::StaleChangesNothing
            | Promise::EveryRankSaved
            | Promise::AgentCommitted
            | Promise::EndsOnce
            | Promise::NewestCheckpoint
            | Promise::RefusedIsForgotten => false,
        };
    }

    /// Whether a message of `attempt` is news.
    fn listens_to(&self, attempt: AttemptId) -> bool {
        self.phase == Phase::Open && (attempt == self.attempt || self.breaks(Promise::StaleChangesNothing))
    }

    fn event(&mut self, now: Moment, stamped: Stamped, effects: &mut Vec<Effect>) {
        match stamped.event {
            Event::Saved { step, folder, .. } => {
                if !self.is_durable(step) {
                    self.heard.saved.entry(step).or_default().insert(stamped.rank);
                    if self.breaks(Promise::AgentCommitted) && self.all_saved(step) {
                        self.committed(stamped.attempt, ResumePoint { folder, step }, effects);
                    }
                }
            }
            Event::Step(figures) if figures.step > self.reached => {
                self.reached = figures.step;
                self.failures = 0;
            }
            Event::Finished { reason, .. } => {
                self.heard.finished.insert(stamped.rank, reason);
            }
            Event::Failed(failure) => {
                self.heard.cause = Some(graver(self.heard.cause.take(), failure));
                if self.heard.deadline.is_none() {
                    let deadline = now.after(END_WITHIN_MS);
                    self.heard.deadline = Some(deadline);
                    effects.push(Effect::WakeAt(deadline));
                }
                if self.breaks(Promise::OneLiveAttempt) {
                    self.launch(effects);
                }
            }
            Event::Listening(_)
            | Event::Ready { .. }
            | Event::Step(_)
            | Event::Validated { .. }
            | Event::SaveFailed { .. } => {}
        }
    }

    fn is_durable(&self, step: StepId) -> bool {
        self.checkpoints.iter().any(|(attempt, point)| *attempt == self.attempt && point.step == step)
    }

    fn all_saved(&self, step: StepId) -> bool {
        let saved = self.heard.saved.get(&step).map_or(0, BTreeSet::len);
        self.heard.ranks.is_some_and(|ranks| saved == ranks as usize)
    }

    fn committed(&mut self, attempt: AttemptId, point: ResumePoint, effects: &mut Vec<Effect>) {
        let step = point.step;
        let complete = self.all_saved(step) || self.breaks(Promise::EveryRankSaved);
        if complete && !self.is_durable(step) {
            self.heard.saved.remove(&step);
            self.record(Fact::CheckpointDurable { attempt, step, folder: point.folder }, effects);
        }
    }

    /// How an attempt ended whose agent went away: finished only when nothing was left to be committed.
    fn ended_when_gone(&self) -> Ended {
        let Heard { ranks, saved, finished, cause, .. } = &self.heard;
        let all = ranks.is_some_and(|ranks| finished.len() == ranks as usize) && saved.is_empty();
        match (cause, finished.values().next()) {
            (None, Some(reason)) if all => Ended::Finished(*reason),
            (Some(cause), _) => Ended::Lost(cause.clone()),
            (None, _) => Ended::Lost(Failure::Other("the agent went away".into())),
        }
    }

    fn attempt_ended(&mut self, now: Moment, ended: Ended, effects: &mut Vec<Effect>) {
        if let Ended::Lost(Failure::CorruptCheckpoint { folder, detail }) = &ended {
            self.refuse(folder, detail, effects);
        }
        let attempt = self.attempt;
        self.record(Fact::AttemptEnded { attempt, ended: ended.clone() }, effects);
        match self.verdict_after(&ended) {
            Some(verdict) => self.end(verdict, effects),
            None if self.excused => self.launch(effects),
            None => {
                let until = now.after(backoff_ms(self.failures));
                self.phase = Phase::Waiting(until);
                effects.push(Effect::WakeAt(until));
            }
        }
    }

    fn not_launched(&mut self, now: Moment, failure: &Failure, effects: &mut Vec<Effect>) {
        if let Failure::CorruptCheckpoint { folder, detail } = failure {
            self.refuse(folder, detail, effects);
        }
        self.attempt_ended(now, Ended::NotLaunched(failure.to_string()), effects);
    }

    /// No longer counts a checkpoint that was found unreadable; one that is not counted is left alone.
    fn refuse(&mut self, folder: &Path, reason: &str, effects: &mut Vec<Effect>) {
        let known = self.checkpoints.iter().find(|(_, point)| point.folder == folder);
        if let Some(step) = known.map(|(_, point)| point.step) {
            let (folder, reason) = (folder.to_owned(), reason.to_owned());
            self.record(Fact::CheckpointRefused { step, folder, reason }, effects);
        }
    }

    /// The verdict on a trial whose newest attempt ended so; `None` when another attempt is due.
    fn verdict_after(&self, ended: &Ended) -> Option<Verdict> {
        let given_up = self.failures >= ATTEMPTS_WITHOUT_PROGRESS;
        verdict_of(ended).or_else(|| match ended {
            Ended::Finished(_) => None,
            _ if self.stops > 0 => Some(Verdict::Stopped),
            Ended::Lost(failure) => given_up.then(|| Verdict::Failed(failure.clone())),
            Ended::NotLaunched(reason) => given_up.then(|| Verdict::Failed(Failure::Other(reason.clone()))),
        })
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        match &self.phase {
            Phase::Waiting(until) if now >= *until => self.launch(effects),
            Phase::Open if self.heard.deadline.is_some_and(|deadline| now >= deadline) => {
                self.heard.deadline = None;
                effects.push(Effect::Kill { attempt: self.attempt });
            }
            Phase::Over(verdict) if self.breaks(Promise::EndsOnce) => {
                effects.push(Effect::Record(Fact::TrialEnded { verdict: verdict.clone() }));
            }
            Phase::Idle | Phase::Waiting(_) | Phase::Open | Phase::Over(_) => {}
        }
    }

    fn stop(&mut self, effects: &mut Vec<Effect>) {
        match self.phase {
            Phase::Over(_) => {}
            Phase::Idle | Phase::Waiting(_) => self.end(Verdict::Stopped, effects),
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
            Phase::Open => {}
            Phase::Over(verdict @ Verdict::Completed(_)) => {
                effects.push(Effect::Done { verdict: verdict.clone() });
            }
            Phase::Idle if self.attempt == AttemptId(0) => self.launch(effects),
            Phase::Idle | Phase::Waiting(_) | Phase::Over(_) => {
                self.record(Fact::Resumed, effects);
                self.launch(effects);
            }
        }
    }

    fn launch(&mut self, effects: &mut Vec<Effect>) {
        let from = self.newest().cloned();
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
                let point = ResumePoint { folder: folder.clone(), step: *step };
                self.checkpoints.push((*attempt, point));
                self.reached = self.reached.max(*step);
                self.failures = 0;
            }
            Fact::CheckpointRefused { folder, .. } => {
                if !self.breaks(Promise::RefusedIsForgotten) {
                    self.checkpoints.retain(|(_, point)| point.folder != *folder);
                }
                self.excused = true;
            }
            Fact::AttemptEnded { ended, .. } => {
                self.phase = Phase::Idle;
                let lost = !matches!(ended, Ended::Finished(_));
                self.failures += u32::from(lost && !self.excused);
            }
            Fact::TrialEnded { verdict } => self.phase = Phase::Over(verdict.clone()),
            Fact::Resumed => {
                self.phase = Phase::Idle;
                self.failures = 0;
                self.stops = 0;
            }
        }
    }
}

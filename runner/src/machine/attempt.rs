//! What an attempt says, and what follows from it.

use super::failure::{ATTEMPTS_AT_DATA, Blame, MACHINES_FAIL_FOR_MS, backoff_ms, verdict_of};
use super::promise::Promise;
use super::{Effect, Machine, Moment, Phase, graver};
use crate::fact::{Ended, Fact, Verdict};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, ResumePoint, Stamped, StepId, StopReason};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Milliseconds the agent has to end an attempt one of whose ranks failed.
const END_WITHIN_MS: u64 = 15_000;

/// What the open attempt said. Volatile.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Heard {
    /// Number of its ranks, once told.
    pub(super) ranks: Option<u32>,
    /// Who saved which step; without those that are committed.
    pub(super) saved: BTreeMap<StepId, BTreeSet<Rank>>,
    /// Who did all it was told.
    finished: BTreeMap<Rank, StopReason>,
    /// The newest step whose checkpoint was saved by every rank and could not be committed.
    pub(super) uncommitted: Option<StepId>,
    /// The gravest failure.
    cause: Option<Failure>,
    /// When the attempt is killed unless it has ended.
    pub(super) deadline: Option<Moment>,
}

impl Machine {
    pub(super) fn event(&mut self, now: Moment, stamped: Stamped, effects: &mut Vec<Effect>) {
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
                self.data_failures = 0;
                self.progress();
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
                    self.look(effects);
                }
            }
            Event::Listening(_)
            | Event::Ready { .. }
            | Event::Step(_)
            | Event::Validated { .. }
            | Event::Validating { .. }
            | Event::Metrics { .. }
            | Event::Notice(_)
            | Event::SaveFailed { .. } => {}
        }
    }

    /// Whether this attempt has a durable checkpoint of `step`. Those of it are the newest, so that the others need no look.
    pub(super) fn is_durable(&self, step: StepId) -> bool {
        let own = self.checkpoints.iter().rev().take_while(|(attempt, _)| *attempt == self.attempt);
        own.into_iter().any(|(_, point)| point.step == step)
    }

    /// Ranks that are remembered for what they saved or finished.
    #[cfg(test)]
    pub(super) fn remembered(&self) -> usize {
        self.heard.saved.values().map(BTreeSet::len).sum::<usize>() + self.heard.finished.len()
    }

    fn all_saved(&self, step: StepId) -> bool {
        let saved = self.heard.saved.get(&step).map_or(0, BTreeSet::len);
        self.heard.ranks.is_some_and(|ranks| saved == ranks as usize)
    }

    pub(super) fn committed(&mut self, attempt: AttemptId, point: ResumePoint, effects: &mut Vec<Effect>) {
        let step = point.step;
        let complete = self.all_saved(step) || self.breaks(Promise::EveryRankSaved);
        if complete && !self.is_durable(step) {
            self.heard.saved.remove(&step);
            self.record(Fact::CheckpointDurable { attempt, step, folder: point.folder }, effects);
        }
    }

    /// Counts what a disk has and no record told of.
    pub(super) fn found(&mut self, attempt: AttemptId, point: ResumePoint, effects: &mut Vec<Effect>) {
        let ResumePoint { folder, step } = point;
        if self.would_adopt(attempt, step, &folder) && !self.breaks(Promise::FoundIsAdopted) {
            self.record(Fact::CheckpointDurable { attempt, step, folder }, effects);
        }
    }

    /// How an attempt ended whose agent went away: finished only when nothing was left to be committed.
    pub(super) fn ended_when_gone(&self, lost: Option<Failure>) -> Ended {
        let Heard { ranks, saved, finished, cause, .. } = &self.heard;
        let all = ranks.is_some_and(|ranks| finished.len() == ranks as usize) && saved.is_empty();
        match (cause, finished.values().next()) {
            (None, Some(reason)) if all => Ended::Finished(*reason),
            (Some(cause), _) => Ended::Lost(cause.clone()),
            (None, _) => Ended::Lost(lost.unwrap_or_else(|| Failure::Infrastructure {
                host: None,
                detail: "the agent is gone".into(),
            })),
        }
    }

    /// An attempt that finished and whose last state is in no checkpoint is lost: what it learned cannot be read.
    fn unless_unsaved(&self, ended: Ended) -> Ended {
        match (ended, self.heard.uncommitted) {
            (Ended::Finished(_), Some(step)) if step >= self.reached && !self.is_durable(step) => {
                let reason = "its checkpoint could not be committed".to_owned();
                Ended::Lost(Failure::Unsaved { step, reason })
            }
            (ended, _) => ended,
        }
    }

    pub(super) fn attempt_ended(&mut self, now: Moment, ended: Ended, effects: &mut Vec<Effect>) {
        let ended = self.unless_unsaved(ended);
        if let Ended::Lost(Failure::CorruptCheckpoint { folder, detail }) = &ended {
            self.refuse(folder, detail, effects);
        }
        let attempt = self.attempt;
        self.record(Fact::AttemptEnded { attempt, ended: ended.clone() }, effects);
        if matches!(blamed(&ended), Some(Blame::Machines)) && self.failures.machines > 0 {
            self.troubled_since.get_or_insert(now);
        }
        match self.verdict_after(&ended).or_else(|| self.verdict_of_the_clock(now, &ended)) {
            Some(verdict) => self.end(verdict, effects),
            None if self.excused => self.look(effects),
            None => {
                let failures = blamed(&ended).map_or(0, |blame| self.failures.of(blame));
                let until = now.after(backoff_ms(failures));
                self.phase = Phase::Waiting(until);
                effects.push(Effect::WakeAt(until));
            }
        }
    }

    pub(super) fn not_launched(&mut self, now: Moment, failure: &Failure, effects: &mut Vec<Effect>) {
        if let Failure::CorruptCheckpoint { folder, detail } = failure {
            self.refuse(folder, detail, effects);
        }
        self.attempt_ended(now, Ended::NotLaunched(failure.clone()), effects);
    }

    /// No longer counts a checkpoint that was found unreadable; one that is not counted is left alone.
    fn refuse(&mut self, folder: &Path, reason: &str, effects: &mut Vec<Effect>) {
        // Hosts keep the same checkpoint in folders of their own.
        let is_meant = |point: &ResumePoint| point.folder.file_name() == folder.file_name();
        let known = self.checkpoints.iter().find(|(_, point)| is_meant(point));
        if let Some(step) = known.map(|(_, point)| point.step) {
            let (folder, reason) = (folder.to_owned(), reason.to_owned());
            self.record(Fact::CheckpointRefused { step, folder, reason }, effects);
        }
    }

    /// The verdict on a trial whose newest attempt ended so; `None` when another attempt is due.
    pub(super) fn verdict_after(&self, ended: &Ended) -> Option<Verdict> {
        let given_up = blamed(ended).is_some_and(|blame| self.failures.of(blame) >= blame.attempts());
        verdict_of(ended).or_else(|| match ended {
            Ended::Finished(_) => None,
            _ if self.stops > 0 => Some(Verdict::Stopped),
            // Twice without a new step between: it will come again.
            Ended::Lost(failure @ Failure::Command { code: Some(_), signal: None, .. })
                if self.failures.training >= 2 =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            Ended::Lost(failure @ Failure::DataOn { .. }) if self.data_failures >= ATTEMPTS_AT_DATA => {
                Some(Verdict::Failed(failure.clone()))
            }
            Ended::Lost(failure) | Ended::NotLaunched(failure) => {
                given_up.then(|| Verdict::Failed(failure.clone()))
            }
        })
    }

    /// The verdict on a trial that machines have failed for too long.
    fn verdict_of_the_clock(&self, now: Moment, ended: &Ended) -> Option<Verdict> {
        let is_long = self.troubled_since.is_some_and(|since| now >= since.after(MACHINES_FAIL_FOR_MS));
        match ended {
            Ended::Lost(failure) | Ended::NotLaunched(failure)
                if is_long && Blame::of(failure) == Blame::Machines =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            Ended::Lost(_) | Ended::NotLaunched(_) | Ended::Finished(_) => None,
        }
    }
}

/// Who is to blame for the end of an attempt; nobody when it finished.
fn blamed(ended: &Ended) -> Option<Blame> {
    match ended {
        Ended::Lost(failure) | Ended::NotLaunched(failure) => Some(Blame::of(failure)),
        Ended::Finished(_) => None,
    }
}

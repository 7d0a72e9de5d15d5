//! What an attempt says, and what follows from it.

use super::promise::Promise;
use super::restart_policy::{ATTEMPTS_AT_DATA, Blame, MACHINES_FAIL_FOR_MS, backoff_ms, terminal_verdict};
use super::{Millis, Phase, TrialEffect, TrialMachine, more_severe};
use crate::fact::{AttemptEnd, Fact, Verdict};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, ResumePoint, StampedEvent, StepId, StopReason};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Milliseconds the agent has to end an attempt one of whose ranks failed.
const END_WITHIN_MS: u64 = 15_000;

/// What the open attempt said. Volatile.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttemptReports {
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
    pub(super) deadline: Option<Millis>,
}

impl TrialMachine {
    pub(super) fn event(&mut self, now: Millis, stamped: StampedEvent, effects: &mut Vec<TrialEffect>) {
        match stamped.event {
            Event::Saved { step, folder, .. } => {
                if !self.is_durable(step) {
                    self.reports.saved.entry(step).or_default().insert(stamped.rank);
                    if self.breaks(Promise::AgentCommitted) && self.all_saved(step) {
                        self.checkpoint_committed(stamped.attempt, ResumePoint { folder, step }, effects);
                    }
                }
            }
            Event::Step(figures) if figures.step > self.reached => {
                self.reached = figures.step;
                self.data_failures = 0;
                self.reset_failures();
            }
            Event::Finished { reason, .. } => {
                self.reports.finished.insert(stamped.rank, reason);
            }
            Event::Failed(failure) => {
                self.reports.cause = Some(more_severe(self.reports.cause.take(), failure));
                if self.reports.deadline.is_none() {
                    let deadline = now.after(END_WITHIN_MS);
                    self.reports.deadline = Some(deadline);
                    effects.push(TrialEffect::WakeAt(deadline));
                }
                if self.breaks(Promise::OneLiveAttempt) {
                    self.discover_checkpoints(effects);
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
        self.reports.saved.values().map(BTreeSet::len).sum::<usize>() + self.reports.finished.len()
    }

    fn all_saved(&self, step: StepId) -> bool {
        let saved = self.reports.saved.get(&step).map_or(0, BTreeSet::len);
        self.reports.ranks.is_some_and(|ranks| saved == ranks as usize)
    }

    pub(super) fn checkpoint_committed(
        &mut self,
        attempt: AttemptId,
        point: ResumePoint,
        effects: &mut Vec<TrialEffect>,
    ) {
        let step = point.step;
        let complete = self.all_saved(step) || self.breaks(Promise::EveryRankSaved);
        if complete && !self.is_durable(step) {
            self.reports.saved.remove(&step);
            self.record(Fact::CheckpointCommitted { attempt, step, folder: point.folder }, effects);
        }
    }

    /// Counts what a disk has and no record told of.
    pub(super) fn adopt_found(
        &mut self,
        attempt: AttemptId,
        point: ResumePoint,
        effects: &mut Vec<TrialEffect>,
    ) {
        let ResumePoint { folder, step } = point;
        if self.would_adopt(attempt, step, &folder) && !self.breaks(Promise::FoundIsAdopted) {
            self.record(Fact::CheckpointCommitted { attempt, step, folder }, effects);
        }
    }

    /// How an attempt ended whose agent went away: finished only when nothing was left to be committed.
    pub(super) fn ended_when_gone(&self, lost: Option<Failure>) -> AttemptEnd {
        let AttemptReports { ranks, saved, finished, cause, .. } = &self.reports;
        let all = ranks.is_some_and(|ranks| finished.len() == ranks as usize) && saved.is_empty();
        match (cause, finished.values().next()) {
            (None, Some(reason)) if all => AttemptEnd::Finished(*reason),
            (Some(cause), _) => AttemptEnd::Lost(cause.clone()),
            (None, _) => AttemptEnd::Lost(lost.unwrap_or_else(|| Failure::Infrastructure {
                host: None,
                detail: "the agent is gone".into(),
            })),
        }
    }

    /// An attempt that finished and whose last state is in no checkpoint is lost: what it learned cannot be read.
    fn lost_if_unsaved(&self, ended: AttemptEnd) -> AttemptEnd {
        match (ended, self.reports.uncommitted) {
            (AttemptEnd::Finished(_), Some(step)) if step >= self.reached && !self.is_durable(step) => {
                let reason = "its checkpoint could not be committed".to_owned();
                AttemptEnd::Lost(Failure::Unsaved { step, reason })
            }
            (ended, _) => ended,
        }
    }

    pub(super) fn restart_or_give_up(
        &mut self,
        now: Millis,
        ended: AttemptEnd,
        effects: &mut Vec<TrialEffect>,
    ) {
        let ended = self.lost_if_unsaved(ended);
        if let AttemptEnd::Lost(Failure::CorruptCheckpoint { folder, detail }) = &ended {
            self.refuse(folder, detail, effects);
        }
        let attempt = self.attempt;
        self.record(Fact::AttemptEnded { attempt, ended: ended.clone() }, effects);
        if matches!(blame_for(&ended), Some(Blame::Machines)) && self.failures.machines > 0 {
            self.troubled_since.get_or_insert(now);
        }
        match self.verdict_after(&ended).or_else(|| self.verdict_on_timeout(now, &ended)) {
            Some(verdict) => self.end(verdict, effects),
            None if self.excused => self.discover_checkpoints(effects),
            None => {
                let failures = blame_for(&ended).map_or(0, |blame| self.failures.get(blame));
                let until = now.after(backoff_ms(failures));
                self.phase = Phase::Waiting(until);
                effects.push(TrialEffect::WakeAt(until));
            }
        }
    }

    pub(super) fn launch_failed(&mut self, now: Millis, failure: &Failure, effects: &mut Vec<TrialEffect>) {
        if let Failure::CorruptCheckpoint { folder, detail } = failure {
            self.refuse(folder, detail, effects);
        }
        self.restart_or_give_up(now, AttemptEnd::NotLaunched(failure.clone()), effects);
    }

    /// No longer counts a checkpoint that was found unreadable; one that is not counted is left alone.
    fn refuse(&mut self, folder: &Path, reason: &str, effects: &mut Vec<TrialEffect>) {
        // Hosts keep the same checkpoint in folders of their own.
        let is_meant = |point: &ResumePoint| point.folder.file_name() == folder.file_name();
        let known = self.checkpoints.iter().find(|(_, point)| is_meant(point));
        if let Some(step) = known.map(|(_, point)| point.step) {
            let (folder, reason) = (folder.to_owned(), reason.to_owned());
            self.record(Fact::CheckpointRefused { step, folder, reason }, effects);
        }
    }

    /// The verdict on a trial whose newest attempt ended so; `None` when another attempt is due.
    pub(super) fn verdict_after(&self, ended: &AttemptEnd) -> Option<Verdict> {
        let given_up = blame_for(ended).is_some_and(|blame| self.failures.get(blame) >= blame.attempts());
        terminal_verdict(ended).or_else(|| match ended {
            AttemptEnd::Finished(_) => None,
            _ if self.stops > 0 => Some(Verdict::Stopped),
            // Twice without a new step between: it will come again.
            AttemptEnd::Lost(failure @ Failure::Command { code: Some(_), signal: None, .. })
                if self.failures.training >= 2 =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(failure @ Failure::DataOn { .. }) if self.data_failures >= ATTEMPTS_AT_DATA => {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure) => {
                given_up.then(|| Verdict::Failed(failure.clone()))
            }
        })
    }

    /// The verdict on a trial that machines have failed for too long.
    fn verdict_on_timeout(&self, now: Millis, ended: &AttemptEnd) -> Option<Verdict> {
        let is_long = self.troubled_since.is_some_and(|since| now >= since.after(MACHINES_FAIL_FOR_MS));
        match ended {
            AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure)
                if is_long && Blame::of(failure) == Blame::Machines =>
            {
                Some(Verdict::Failed(failure.clone()))
            }
            AttemptEnd::Lost(_) | AttemptEnd::NotLaunched(_) | AttemptEnd::Finished(_) => None,
        }
    }
}

/// Who is to blame for the end of an attempt; nobody when it finished.
fn blame_for(ended: &AttemptEnd) -> Option<Blame> {
    match ended {
        AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure) => Some(Blame::of(failure)),
        AttemptEnd::Finished(_) => None,
    }
}

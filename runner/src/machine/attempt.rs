//! The messages of the open attempt, and the decisions when it ends: restart it, or give the trial up.

use super::promise::Promise;
use super::restart_policy::{ATTEMPTS_AT_DATA, Blame, MACHINES_FAIL_FOR_MS, backoff_ms, terminal_verdict};
use super::{Millis, Phase, TrialEffect, TrialMachine, more_severe};
use crate::fact::{AttemptEnd, Fact, Verdict};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, ResumePoint, StampedEvent, StepId, StopReason};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Milliseconds an agent has to end an attempt after a rank failed; then the attempt is killed.
const END_WITHIN_MS: u64 = 15_000;

/// State of the open attempt, from its messages. Not stored: it is read from the spool again after a crash.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttemptReports {
    /// Number of ranks; `None` until the agent reports it.
    pub(super) ranks: Option<u32>,
    /// Ranks that saved each step, for steps not yet committed.
    pub(super) saved: BTreeMap<StepId, BTreeSet<Rank>>,
    /// Ranks that finished, each with its reason.
    finished: BTreeMap<Rank, StopReason>,
    /// The newest step that every rank saved and the agent could not commit.
    pub(super) uncommitted: Option<StepId>,
    /// The most severe failure so far.
    cause: Option<Failure>,
    /// Time at which the attempt is killed unless it has ended.
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

    /// True if this attempt has a durable checkpoint of `step`. Its checkpoints are the newest, so the search
    /// stops at older ones.
    pub(super) fn is_durable(&self, step: StepId) -> bool {
        let own = self.checkpoints.iter().rev().take_while(|(attempt, _)| *attempt == self.attempt);
        own.into_iter().any(|(_, point)| point.step == step)
    }

    /// Number of ranks stored for what they saved or finished.
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

    /// Records a checkpoint found on disk that the history does not have.
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

    /// Returns the end of an attempt whose agent is gone: finished only if every rank finished and no
    /// checkpoint is uncommitted.
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

    /// Turns a finished attempt into a lost one if no checkpoint has its last step: its result cannot be
    /// read.
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

    /// Records that a checkpoint is unreadable, so that no attempt resumes from it. Ignores folders that are
    /// not counted.
    fn refuse(&mut self, folder: &Path, reason: &str, effects: &mut Vec<TrialEffect>) {
        // Each host keeps the same checkpoint in a folder of its own.
        let is_meant = |point: &ResumePoint| point.folder.file_name() == folder.file_name();
        let known = self.checkpoints.iter().find(|(_, point)| is_meant(point));
        if let Some(step) = known.map(|(_, point)| point.step) {
            let (folder, reason) = (folder.to_owned(), reason.to_owned());
            self.record(Fact::CheckpointRefused { step, folder, reason }, effects);
        }
    }

    /// Returns the verdict after the newest attempt ended with `ended`; `None` if another attempt is due.
    pub(super) fn verdict_after(&self, ended: &AttemptEnd) -> Option<Verdict> {
        let given_up = blame_for(ended).is_some_and(|blame| self.failures.get(blame) >= blame.attempts());
        terminal_verdict(ended).or_else(|| match ended {
            AttemptEnd::Finished(_) => None,
            _ if self.stops > 0 => Some(Verdict::Stopped),
            // The same exit code twice without a new step: a restart would not help.
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

    /// Returns the verdict if machine failures have prevented progress for too long.
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

/// Returns who is to blame for the end of an attempt; `None` if it finished.
fn blame_for(ended: &AttemptEnd) -> Option<Blame> {
    match ended {
        AttemptEnd::Lost(failure) | AttemptEnd::NotLaunched(failure) => Some(Blame::of(failure)),
        AttemptEnd::Finished(_) => None,
    }
}

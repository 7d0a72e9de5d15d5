//! The state of the open attempt, as its messages report it.

use super::promise::Promise;
use super::{Millis, TrialEffect, TrialMachine, more_severe};
use crate::fact::{AttemptEnd, Fact};
use dtrain_protocol::{AttemptId, Event, Failure, Rank, ResumePoint, StampedEvent, StepId, StopReason};
use std::collections::{BTreeMap, BTreeSet};

/// Milliseconds that an agent has to end an attempt after a rank failed, before the attempt is killed.
const END_WITHIN_MS: u64 = 15_000;

/// State of the open attempt, derived from its messages. Not stored: it is read from the spool again after a
/// crash.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct AttemptReports {
    /// Number of ranks in the attempt; `None` until the agent reports it.
    pub(super) ranks: Option<u32>,
    /// Ranks that saved each step, for steps not yet committed.
    pub(super) saved: BTreeMap<StepId, BTreeSet<Rank>>,
    /// Ranks that finished, each with the reason why it stopped.
    finished: BTreeMap<Rank, StopReason>,
    /// The newest step that every rank saved and the agent could not commit.
    pub(super) uncommitted: Option<StepId>,
    /// The most severe failure so far; `None` before the first.
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

    /// Returns `true` if this attempt has a durable checkpoint of `step`. Its checkpoints are the newest, so
    /// the search stops at older ones.
    pub(super) fn is_durable(&self, step: StepId) -> bool {
        let own = self.checkpoints.iter().rev().take_while(|(attempt, _)| *attempt == self.attempt);
        own.into_iter().any(|(_, point)| point.step == step)
    }

    /// Returns the number of ranks in memory, for what they saved or finished.
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
}

//! The state of a study, built from its event log one event at a time.
//!
//! Building it from a whole log and recording the events as they happen give the same state.

use super::event::{ProposalSource, PruneDecision, StudyEvent};
use super::outcome::TrialOutcome;
use super::pruner::Pruner;
use super::pruners::Rungs;
use super::study::Study;
use super::study_trial::{StudyTrial, TrialPhase};
use super::value::TrialValue;
use std::collections::BTreeMap;

/// State of a study after the events of its log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StudyState {
    trials: Vec<StudyTrial>,
    /// Numbers of the ended trials, in the order in which they ended.
    ended: Vec<u64>,
    running: usize,
    /// Number of trials, without lost ones, for each combination of values.
    tried: BTreeMap<String, usize>,
    /// Trials that reached each rung of the pruner.
    pub(super) rungs: Rungs,
}

impl StudyState {
    /// Returns the state of a study after all events of `log`.
    pub fn of(study: &Study, log: &[StudyEvent]) -> Self {
        let mut study_state = Self::default();
        for event in log {
            study_state.record(study, event);
        }
        study_state
    }

    /// Applies one more event to the state. An impossible one, such as a report of a trial that was never
    /// launched, changes nothing.
    pub fn record(&mut self, study: &Study, event: &StudyEvent) {
        match event {
            StudyEvent::Launched { trial, values, source } => self.launched(study, *trial, values, *source),
            StudyEvent::Reported { trial, progress: at, value } => {
                self.reported(&study.pruner, *trial, *at, *value);
            }
            StudyEvent::Paused { trial, .. } => {
                self.change_phase(*trial, &TrialPhase::Running, TrialPhase::Paused);
            }
            StudyEvent::Resumed { trial } => {
                self.change_phase(*trial, &TrialPhase::Paused, TrialPhase::Running);
            }
            StudyEvent::Ended { trial, outcome } => self.end_trial(*trial, outcome),
        }
    }

    /// Returns all trials in the order of launch.
    pub fn trials(&self) -> &[StudyTrial] {
        &self.trials
    }

    /// Returns the trial with the number `trial`. Panics when it was never launched.
    pub fn trial(&self, trial: u64) -> &StudyTrial {
        self.find(trial).unwrap_or_else(|| panic!("trial {trial} was never launched"))
    }

    /// Returns the trials that have ended, with their numbers, in the order in which they ended.
    pub fn ended(&self) -> impl Iterator<Item = (u64, &StudyTrial)> {
        self.ended.iter().map(|trial| (*trial, self.trial(*trial)))
    }

    /// Returns the number of trials that are running.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Returns the number of trials that were lost because their machines failed.
    pub fn lost(&self) -> u64 {
        self.trials.iter().map(|seen| u64::from(seen.is_lost())).sum()
    }

    /// Returns the numbers of the trials that are paused.
    pub fn paused(&self) -> impl Iterator<Item = u64> {
        (0..).zip(&self.trials).filter(|(_, seen)| seen.status == TrialPhase::Paused).map(|(trial, _)| trial)
    }

    /// Returns `true` if a trial that is not lost has the values `values`.
    pub fn is_tried(&self, values: &[TrialValue]) -> bool {
        self.tried.contains_key(&values_key(values))
    }

    /// Returns a paused trial that is now among the best of its rung, from the highest rung that has one, and
    /// the units of training at the next rung.
    pub(super) fn promotable(&self, pruner: &Pruner) -> Option<(u64, Option<u64>)> {
        self.rungs.highest_first().find_map(|(rung, seen)| {
            let (_, first) = seen.first()?;
            let (_, asha) = pruner.rungs(*first)?;
            let waits = |trial: u64| {
                let seen = self.trial(trial);
                seen.status == TrialPhase::Paused && seen.rungs == rung + 1
            };
            let best = seen.iter().take(asha.promoted(seen.len()));
            let (_, trial) = best.into_iter().find(|(value, trial)| value.is_finite() && waits(*trial))?;
            Some((*trial, asha.level(rung + 1)))
        })
    }

    fn find(&self, trial: u64) -> Option<&StudyTrial> {
        self.trials.get(usize::try_from(trial).ok()?)
    }

    fn find_mut(&mut self, trial: u64) -> Option<&mut StudyTrial> {
        self.trials.get_mut(usize::try_from(trial).ok()?)
    }

    fn launched(&mut self, study: &Study, trial: u64, values: &[TrialValue], source: ProposalSource) {
        if usize::try_from(trial) != Ok(self.trials.len()) {
            return;
        }
        *self.tried.entry(values_key(values)).or_insert(0) += 1;
        self.running += 1;
        self.trials.push(StudyTrial {
            values: values.to_vec(),
            place: study.space.coordinates(values),
            source,
            reports: Vec::new(),
            status: TrialPhase::Running,
            decision: PruneDecision::Continue,
            rungs: 0,
        });
    }

    fn reported(&mut self, pruner: &Pruner, trial: u64, at: u64, value: f64) {
        let value = if value.is_finite() { value } else { f64::INFINITY };
        let Some(seen) = self.find_mut(trial) else { return };
        // A trial that went back to a checkpoint repeats its reports.
        let is_ahead = seen.reports.last().is_none_or(|(done, _)| at > *done);
        if matches!(seen.status, TrialPhase::Ended(_)) || !is_ahead {
            return;
        }
        seen.reports.push((at, value));
        if let Some((bracket, asha)) = pruner.rungs(trial) {
            let rungs = std::mem::replace(&mut seen.rungs, asha.reached(at))..asha.reached(at);
            for rung in rungs {
                self.rungs.add(bracket, rung, value, trial);
            }
        }
        if self.trial(trial).decision == PruneDecision::Continue {
            let decision = pruner.prune_decision(trial, &self.trials, &self.rungs);
            self.find_mut(trial).expect("it was just found").decision = decision;
        }
    }

    fn change_phase(&mut self, trial: u64, from: &TrialPhase, to: TrialPhase) {
        let Some(seen) = self.find_mut(trial).filter(|seen| seen.status == *from) else { return };
        seen.status = to;
        match from {
            TrialPhase::Running => self.running -= 1,
            TrialPhase::Paused | TrialPhase::Ended(_) => {
                seen.decision = PruneDecision::Continue;
                self.running += 1;
            }
        }
    }

    fn end_trial(&mut self, trial: u64, outcome: &TrialOutcome) {
        let Some(seen) = self.find_mut(trial) else { return };
        let was = seen.status.clone();
        // A lost trial may still come back with a value.
        let was_lost = seen.is_lost();
        if matches!(was, TrialPhase::Ended(_)) && !was_lost {
            return;
        }
        seen.status = TrialPhase::Ended(outcome.clone());
        let is_lost = seen.is_lost();
        let key = values_key(&seen.values);
        if was == TrialPhase::Running {
            self.running -= 1;
        }
        if was_lost {
            self.ended.retain(|other| *other != trial);
            *self.tried.entry(key.clone()).or_insert(0) += 1;
        }
        self.ended.push(trial);
        if is_lost && let Some(count) = self.tried.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.tried.remove(&key);
            }
        }
    }
}

/// Returns `values` as text that is equal only for equal values.
fn values_key(values: &[TrialValue]) -> String {
    serde_json::to_string(values).expect("values are plain")
}

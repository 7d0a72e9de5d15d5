//! A runner of toy trials that run in parallel, report intermediate values, and are interrupted.

use super::toys::Toy;
use crate::tune::{Proposal, PruneDecision, StudyEvent, TrialOutcome, TrialRunner, TrialValue};
use dtrain_protocol::shuffle::splitmix64;

/// Toy trials. The next event depends only on which trials run.
pub(super) struct Runs {
    pub(super) toy: Toy,
    pub(super) slots: usize,
    /// Number of reports of a trial before it ends.
    pub(super) units: u64,
    /// Number of events until the study is stopped.
    pub(super) left: usize,
    /// Proposals received.
    pub(super) proposed: Vec<Proposal>,
    pub(super) trials: Vec<Run>,
}

pub(super) struct Run {
    values: Vec<TrialValue>,
    at: u64,
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Running,
    Paused,
    /// The trial was asked to pause or stop.
    Leaving(PruneDecision),
    Over,
}

impl Runs {
    pub(super) fn new(toy: Toy, slots: usize) -> Self {
        Self { toy, slots, units: 0, left: usize::MAX, proposed: Vec::new(), trials: Vec::new() }
    }

    /// Restores the trials from a log.
    pub(super) fn after(self, log: &[StudyEvent]) -> Self {
        let mut trials: Vec<Run> = Vec::new();
        for event in log {
            let place = usize::try_from(event.trial()).expect("a few trials");
            match event {
                StudyEvent::Launched { values, .. } => {
                    trials.push(Run { values: values.clone(), at: 0, mode: Mode::Running });
                }
                StudyEvent::Reported { progress: at, .. } => trials[place].at = *at,
                StudyEvent::Paused { .. } => trials[place].mode = Mode::Paused,
                StudyEvent::Resumed { .. } => trials[place].mode = Mode::Running,
                StudyEvent::Ended { .. } => trials[place].mode = Mode::Over,
            }
        }
        Self { trials, ..self }
    }

    fn find(&mut self, trial: u64) -> &mut Run {
        &mut self.trials[usize::try_from(trial).expect("a few trials")]
    }

    /// Returns the value of a trial after `at` units: it starts three above its final value.
    fn value(&self, trial: u64, at: u64) -> Option<f64> {
        let run = &self.trials[usize::try_from(trial).expect("a few trials")];
        let TrialOutcome::Done { value } = self.toy.outcome(trial, &run.values) else { return None };
        #[expect(clippy::cast_precision_loss, reason = "small counts")]
        Some(value + 3.0 * (1.0 - at as f64 / self.units.max(1) as f64))
    }
}

impl TrialRunner for Runs {
    fn slots(&self) -> usize {
        self.slots
    }

    fn launch(&mut self, proposal: &Proposal) {
        assert_eq!(proposal.trial, self.trials.len() as u64, "trials are numbered in their order");
        self.proposed.push(proposal.clone());
        self.trials.push(Run { values: proposal.values.clone(), at: 0, mode: Mode::Running });
    }

    fn resume(&mut self, trial: u64, _: Option<u64>) {
        assert_eq!(std::mem::replace(&mut self.find(trial).mode, Mode::Running), Mode::Paused);
    }

    fn reattach(&mut self, trial: u64) {
        assert_eq!(self.find(trial).mode, Mode::Running);
    }

    fn stop(&mut self, trial: u64, how: PruneDecision) {
        self.find(trial).mode = Mode::Leaving(how);
    }

    fn next_event(&mut self) -> Option<StudyEvent> {
        self.left = self.left.checked_sub(1)?;
        let goes = |(_, run): &(u64, &Run)| matches!(run.mode, Mode::Running | Mode::Leaving(_));
        let turn = |trial: u64, run: &Run| splitmix64(splitmix64(self.toy.seed, trial), run.at);
        let next = (0..).zip(&self.trials).filter(goes).min_by_key(|(trial, run)| turn(*trial, run));
        let (trial, _) = next.expect("a study with no running trial must not wait");
        let (at, mode) = (self.find(trial).at, self.find(trial).mode);
        let value = self.value(trial, at);
        let pruned = value.map(|value| TrialOutcome::Pruned { value });
        let values = self.find(trial).values.clone();
        let outcome = self.toy.outcome(trial, &values);
        let event = match (mode, pruned) {
            (Mode::Leaving(PruneDecision::Pause), _) => {
                self.find(trial).mode = Mode::Paused;
                return Some(StudyEvent::Paused { trial, progress: at });
            }
            (Mode::Leaving(PruneDecision::Stop), Some(outcome)) => StudyEvent::Ended { trial, outcome },
            (_, Some(_)) if at < self.units => {
                self.find(trial).at += 1;
                let value = self.value(trial, at + 1).expect("it does not fail");
                return Some(StudyEvent::Reported { trial, progress: at + 1, value });
            }
            (_, _) => StudyEvent::Ended { trial, outcome },
        };
        self.find(trial).mode = Mode::Over;
        Some(event)
    }
}

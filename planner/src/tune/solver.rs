//! A study as a solver of argmin: one iteration fills the free slots with trials, then handles one event.

use super::event::{Proposal, ProposalSource, PruneDecision, SlotAction, StudyEvent};
use super::outcome::{TrialOutcome, TrialResult};
use super::study::{Recommendation, Study};
use super::study_state::{StudyState, TrialPhase};
use super::value::TrialValue;
use argmin::core::{Error, Executor, IterState, KV, Problem, Solver, TerminationReason, TerminationStatus};
use serde::{Deserialize, Serialize};

/// Whoever runs trials, as many side by side as there are slots, and writes down what happens to them.
///
/// An event is written down before it is told, [`StudyEvent::Launched`] and [`StudyEvent::Resumed`] before the trial begins:
/// a study that is taken up again from what was written goes on as if it had not been interrupted.
pub trait TrialRunner {
    /// How many trials may run side by side.
    fn slots(&self) -> usize;

    /// Whether values may be proposed at all; asked before a trial exists.
    fn is_allowed(&self, _values: &[TrialValue]) -> bool {
        true
    }

    /// Begins a trial. One that cannot be begun ends: [`TrialRunner::next_event`] says how.
    fn launch(&mut self, proposal: &Proposal);

    /// Goes on with a trial that was paused, until it has trained for `until` units, or to its end.
    fn resume(&mut self, trial: u64, until: Option<u64>);

    /// Sees to a trial that was under way when the study was interrupted: it may still run, or has to be begun again.
    fn reattach(&mut self, trial: u64);

    /// Pauses or stops a trial that runs, or prunes one that is paused. [`StudyEvent::Paused`] follows, or an end as
    /// [`TrialOutcome::Pruned`]. May be said of a trial again, until that comes.
    fn stop(&mut self, trial: u64, how: PruneDecision);

    /// Waits for what happens next; `None` when the study shall stop. A trial that fails has an outcome like any other.
    fn next_event(&mut self) -> Option<StudyEvent>;
}

impl<T: TrialRunner> TrialRunner for &mut T {
    fn slots(&self) -> usize {
        (**self).slots()
    }

    fn is_allowed(&self, values: &[TrialValue]) -> bool {
        (**self).is_allowed(values)
    }

    fn launch(&mut self, proposal: &Proposal) {
        (**self).launch(proposal);
    }

    fn resume(&mut self, trial: u64, until: Option<u64>) {
        (**self).resume(trial, until);
    }

    fn reattach(&mut self, trial: u64) {
        (**self).reattach(trial);
    }

    fn stop(&mut self, trial: u64, how: PruneDecision) {
        (**self).stop(trial, how);
    }

    fn next_event(&mut self) -> Option<StudyEvent> {
        (**self).next_event()
    }
}

/// Why a search is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// As many trials ended as there was budget for.
    Budget,
    /// Everything has been tried, or everything that is allowed as far as a bounded number of draws can tell.
    Exhausted,
    /// Whoever runs trials wanted no more.
    Stopped,
}

/// A study on its way. The log is all it remembers: a search made of it anew goes on as this one would.
#[derive(Clone, Debug, PartialEq)]
pub struct StudySolver {
    study: Study,
    log: Vec<StudyEvent>,
    /// The log, folded.
    study_state: StudyState,
    finish: Option<FinishReason>,
}

/// The host's view of a search: the trial that ended last and the best one.
pub type SolverState = IterState<Vec<TrialValue>, (), (), (), (), f64>;

impl StudySolver {
    /// Takes a study up after what is in its log (nothing for a new one).
    pub fn new(study: Study, log: Vec<StudyEvent>) -> Self {
        let study_state = StudyState::of(&study, &log);
        Self { study, log, study_state, finish: None }
    }

    /// What is searched.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// Everything that happened.
    pub fn log(&self) -> &[StudyEvent] {
        &self.log
    }

    /// How the study stands.
    pub fn study_state(&self) -> &StudyState {
        &self.study_state
    }

    /// The trials that ended, in the order in which they did.
    pub fn ended(&self) -> Vec<TrialResult> {
        let ended = self.study_state.ended().filter_map(|(_, seen)| match &seen.status {
            TrialPhase::Ended(outcome) => {
                Some(TrialResult { values: seen.values.clone(), outcome: outcome.clone() })
            }
            TrialPhase::Running | TrialPhase::Paused => None,
        });
        ended.collect()
    }

    /// What the study found so far.
    pub fn recommend(&self) -> Option<Recommendation> {
        self.study.recommend_from(&self.study_state)
    }

    /// Why it is at its end; `None` while it is not.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// An executor of this search, for whoever wants to observe it. It leaves Ctrl-C to others and has no limit of its own.
    pub fn executor<T: TrialRunner>(self, trials: T) -> Executor<T, Self, SolverState> {
        Executor::new(trials, self).ctrlc(false)
    }

    /// Runs trials until the budget is used up, everything has been tried, or `trials` wants no more.
    pub fn run<T: TrialRunner>(self, trials: T) -> Self {
        self.executor(trials).run().expect("trials that fail are outcomes, not errors").solver
    }

    /// Sees to the trials that were under way when the study was interrupted.
    fn reattach(&self, trials: &mut dyn TrialRunner) {
        for (trial, seen) in (0..).zip(self.study_state.trials()) {
            match (&seen.status, seen.decision) {
                (TrialPhase::Running, PruneDecision::Continue) => trials.reattach(trial),
                (TrialPhase::Running, how) => trials.stop(trial, how),
                (TrialPhase::Paused | TrialPhase::Ended(_), _) => {}
            }
        }
    }

    /// Fills the free slots.
    fn fill(&mut self, trials: &mut dyn TrialRunner) {
        while self.study_state.running() < trials.slots() {
            match self.study.next_from(&self.study_state, &|values| trials.is_allowed(values)) {
                SlotAction::Launch(proposal) => {
                    trials.launch(&proposal);
                    self.record(proposal.launched());
                }
                SlotAction::Resume { trial, until } => {
                    trials.resume(trial, until);
                    self.record(StudyEvent::Resumed { trial });
                }
                SlotAction::Wait => return,
                SlotAction::Finished(finish) => {
                    let mut paused = self.study_state.paused().peekable();
                    if paused.peek().is_none() {
                        self.finish = Some(finish);
                    }
                    paused.for_each(|trial| trials.stop(trial, PruneDecision::Stop));
                    return;
                }
            }
        }
    }

    /// Handles one event; `None` when there was none.
    fn handle(&mut self, trials: &mut dyn TrialRunner) -> Option<StudyEvent> {
        let Some(event) = trials.next_event() else {
            self.finish = Some(FinishReason::Stopped);
            return None;
        };
        self.record(event.clone());
        if let StudyEvent::Reported { trial, .. } = event {
            let seen = self.study_state.trial(trial);
            if seen.status == TrialPhase::Running && seen.decision != PruneDecision::Continue {
                trials.stop(trial, seen.decision);
            }
        }
        Some(event)
    }

    fn record(&mut self, event: StudyEvent) {
        self.study_state.record(&self.study, &event);
        self.log.push(event);
    }
}

/// The state with a trial in it; one without a value is above all others.
fn with_trial(state: SolverState, values: &[TrialValue], outcome: &TrialOutcome) -> SolverState {
    let ended = TrialResult { values: values.to_vec(), outcome: outcome.clone() };
    state.cost(ended.value().unwrap_or(f64::INFINITY)).param(ended.values)
}

/// What observers are told of a trial beside its values and its cost.
fn trial_kv(trial: u64, source: ProposalSource) -> KV {
    let mut told = argmin::kv!("trial" => trial;);
    let (name, figure) = match source {
        ProposalSource::Given => ("given", None),
        ProposalSource::Grid => ("grid", None),
        ProposalSource::Random => ("random", None),
        ProposalSource::Sobol => ("sobol", None),
        ProposalSource::Model { improvement } => ("model", Some(("improvement", improvement.into()))),
        ProposalSource::Tpe { log_ratio } => ("tpe", Some(("log_ratio", log_ratio.into()))),
        ProposalSource::CmaEs { step } => ("cma_es", Some(("step", step.into()))),
        ProposalSource::Swarm { particle } => ("swarm", Some(("particle", particle.into()))),
        ProposalSource::Mutated { parent } => ("mutated", Some(("parent", parent.into()))),
    };
    told.insert("source", name.to_owned().into());
    if let Some((key, value)) = figure {
        told.insert(key, value);
    }
    told
}

impl<T: TrialRunner> Solver<T, SolverState> for StudySolver {
    fn name(&self) -> &str {
        "study"
    }

    /// Takes up what was under way. The best of the trials that ended before is the best so far.
    fn init(
        &mut self,
        problem: &mut Problem<T>,
        state: SolverState,
    ) -> Result<(SolverState, Option<KV>), Error> {
        let trials = problem.problem.as_mut().expect("the executor holds the problem while it runs");
        self.reattach(trials);
        let done = self.ended().into_iter().filter_map(|trial| Some((trial.value()?, trial)));
        let best = done.min_by(|a, b| a.0.total_cmp(&b.0));
        let state = best.map_or(state.clone(), |(_, trial)| with_trial(state, &trial.values, &trial.outcome));
        Ok((state, None))
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<T>,
        state: SolverState,
    ) -> Result<(SolverState, Option<KV>), Error> {
        let trials = problem.problem.as_mut().expect("the executor holds the problem while it runs");
        self.fill(trials);
        if self.finish.is_some() {
            return Ok((state, None));
        }
        match self.handle(trials) {
            Some(StudyEvent::Ended { trial, outcome }) => {
                let seen = self.study_state.trial(trial);
                Ok((with_trial(state, &seen.values, &outcome), Some(trial_kv(trial, seen.source))))
            }
            _ => Ok((state, None)),
        }
    }

    fn terminate(&mut self, _: &SolverState) -> TerminationStatus {
        match self.finish {
            None => TerminationStatus::NotTerminated,
            Some(FinishReason::Budget) => TerminationStatus::Terminated(TerminationReason::MaxItersReached),
            Some(FinishReason::Exhausted) => {
                TerminationStatus::Terminated(TerminationReason::SolverConverged)
            }
            Some(FinishReason::Stopped) => TerminationStatus::Terminated(TerminationReason::Interrupt),
        }
    }
}

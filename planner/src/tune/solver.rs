//! A study as a solver of argmin, in which one iteration starts trials in the free slots, then handles one
//! event.

use super::ask::{FinishReason, SlotAction};
use super::event::{Proposal, ProposalSource, PruneDecision, StudyEvent};
use super::outcome::{TrialOutcome, TrialResult};
use super::recommend::Recommendation;
use super::study::Study;
use super::study_state::StudyState;
use super::study_trial::TrialPhase;
use super::value::TrialValue;
use argmin::core::{Error, Executor, IterState, KV, Problem, Solver, TerminationReason, TerminationStatus};

/// Runs the trials of a study in parallel slots and stores their events.
///
/// An event is stored before it is reported, [`StudyEvent::Launched`] and [`StudyEvent::Resumed`] before the
/// trial starts. So a study resumed from the stored events goes on as if it had not been interrupted.
pub trait TrialRunner {
    /// Returns the number of trials that may run in parallel.
    fn slots(&self) -> usize;

    /// Returns `true` if `_values` may be proposed at all; called before a trial exists.
    fn is_allowed(&self, _values: &[TrialValue]) -> bool {
        true
    }

    /// Starts the proposed trial. If it cannot start, [`TrialRunner::next_event`] reports its failure.
    fn launch(&mut self, proposal: &Proposal);

    /// Resumes a paused trial until it has trained for `until` units, or to its end if that is `None`.
    fn resume(&mut self, trial: u64, until: Option<u64>);

    /// Takes over a trial that was running when the study was interrupted: waits for it, or starts it again.
    fn reattach(&mut self, trial: u64);

    /// Pauses or stops a running trial, or prunes a paused one. [`StudyEvent::Paused`] follows, or an end as
    /// [`TrialOutcome::Pruned`]. May be called again for a trial until then.
    fn stop(&mut self, trial: u64, how: PruneDecision);

    /// Waits for the next event of any trial; `None` stops the study. A failed trial is an event like any
    /// other.
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

/// A study that is running. It can be rebuilt from its event log.
#[derive(Clone, Debug, PartialEq)]
pub struct StudySolver {
    study: Study,
    log: Vec<StudyEvent>,
    /// State of the study, built from the log.
    study_state: StudyState,
    finish: Option<FinishReason>,
}

/// State of argmin's solver: the trial that ended last, and the best one.
pub type SolverState = IterState<Vec<TrialValue>, (), (), (), (), f64>;

impl StudySolver {
    /// Creates a solver that resumes a study after the events of `log`, which is empty for a new study.
    pub fn new(study: Study, log: Vec<StudyEvent>) -> Self {
        let study_state = StudyState::of(&study, &log);
        Self { study, log, study_state, finish: None }
    }

    /// Returns the definition of the study.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// Returns all events of the study so far.
    pub fn log(&self) -> &[StudyEvent] {
        &self.log
    }

    /// Returns the state of the study after all events so far.
    pub fn study_state(&self) -> &StudyState {
        &self.study_state
    }

    /// Returns the trials that have ended, in the order in which they ended.
    pub fn ended(&self) -> Vec<TrialResult> {
        let ended = self.study_state.ended().filter_map(|(_, seen)| match &seen.status {
            TrialPhase::Ended(outcome) => {
                Some(TrialResult { values: seen.values.clone(), outcome: outcome.clone() })
            }
            TrialPhase::Running | TrialPhase::Paused => None,
        });
        ended.collect()
    }

    /// Returns the trial that the study recommends so far; `None` while none has completed.
    pub fn recommend(&self) -> Option<Recommendation> {
        self.study.recommend_from(&self.study_state)
    }

    /// Returns the reason why the study ended; `None` while it goes on.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish
    }

    /// Returns argmin's executor for this study, to which observers can be added. It does not handle Ctrl-C
    /// and has no limit of its own.
    pub fn executor<T: TrialRunner>(self, trials: T) -> Executor<T, Self, SolverState> {
        Executor::new(trials, self).ctrlc(false)
    }

    /// Runs trials until the budget is used up, everything has been tried, or `trials` stops the study.
    pub fn run<T: TrialRunner>(self, trials: T) -> Self {
        self.executor(trials).run().expect("trials that fail are outcomes, not errors").solver
    }

    /// Reattaches to the trials that were running when the study was interrupted.
    fn reattach(&self, trials: &mut dyn TrialRunner) {
        for (trial, seen) in (0..).zip(self.study_state.trials()) {
            match (&seen.status, seen.decision) {
                (TrialPhase::Running, PruneDecision::Continue) => trials.reattach(trial),
                (TrialPhase::Running, how) => trials.stop(trial, how),
                (TrialPhase::Paused | TrialPhase::Ended(_), _) => {}
            }
        }
    }

    /// Starts or resumes trials in the free slots.
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

    /// Handles one event of a trial; `None` when the runner of the trials stops the study.
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

/// Returns argmin's state after a trial with the given result; a trial without a value ranks last.
fn with_trial(state: SolverState, values: &[TrialValue], outcome: &TrialOutcome) -> SolverState {
    let ended = TrialResult { values: values.to_vec(), outcome: outcome.clone() };
    state.cost(ended.value().unwrap_or(f64::INFINITY)).param(ended.values)
}

/// Returns the key-value pairs that observers get besides the values and the cost of a trial.
fn trial_kv(trial: u64, source: ProposalSource) -> KV {
    let mut told = KV::new();
    told.insert("trial", trial.into());
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

    /// Reattaches to running trials, and takes the best of the ended trials as the best so far.
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

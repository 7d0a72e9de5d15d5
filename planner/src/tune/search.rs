//! A study as a solver of argmin: one iteration fills the free slots with trials, then handles one event.

use super::event::{Judgement, Next, Proposal, Source, StudyEvent};
use super::outcome::{Ended, Outcome};
use super::standing::{Standing, Status};
use super::study::{Recommended, Study};
use super::value::Value;
use argmin::core::{Error, Executor, IterState, KV, Problem, Solver, TerminationReason, TerminationStatus};
use serde::{Deserialize, Serialize};

/// Whoever runs trials, as many side by side as there are slots, and writes down what happens to them.
///
/// An event is written down before it is told, [`StudyEvent::Launched`] and [`StudyEvent::Resumed`] before the trial begins:
/// a study that is taken up again from what was written goes on as if it had not been interrupted.
pub trait Trials {
    /// How many trials may run side by side.
    fn slots(&self) -> usize;

    /// Whether values may be proposed at all; asked before a trial exists.
    fn is_allowed(&self, _values: &[Value]) -> bool {
        true
    }

    /// Begins a trial. One that cannot be begun ends: [`Trials::next_event`] says how.
    fn launch(&mut self, proposal: &Proposal);

    /// Goes on with a trial that was paused, until it has trained for `until` units, or to its end.
    fn resume(&mut self, trial: u64, until: Option<u64>);

    /// Sees to a trial that was under way when the study was interrupted: it may still run, or has to be begun again.
    fn take_up(&mut self, trial: u64);

    /// Pauses or stops a trial that runs, or prunes one that is paused. [`StudyEvent::Paused`] follows, or an end as
    /// [`Outcome::Pruned`]. May be said of a trial again, until that comes.
    fn stop(&mut self, trial: u64, how: Judgement);

    /// Waits for what happens next; `None` when the study shall stop. A trial that fails has an outcome like any other.
    fn next_event(&mut self) -> Option<StudyEvent>;
}

impl<T: Trials> Trials for &mut T {
    fn slots(&self) -> usize {
        (**self).slots()
    }

    fn is_allowed(&self, values: &[Value]) -> bool {
        (**self).is_allowed(values)
    }

    fn launch(&mut self, proposal: &Proposal) {
        (**self).launch(proposal);
    }

    fn resume(&mut self, trial: u64, until: Option<u64>) {
        (**self).resume(trial, until);
    }

    fn take_up(&mut self, trial: u64) {
        (**self).take_up(trial);
    }

    fn stop(&mut self, trial: u64, how: Judgement) {
        (**self).stop(trial, how);
    }

    fn next_event(&mut self) -> Option<StudyEvent> {
        (**self).next_event()
    }
}

/// Why a search is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// As many trials ended as there was budget for.
    Budget,
    /// Everything has been tried, or everything that is allowed as far as a bounded number of draws can tell.
    Exhausted,
    /// Whoever runs trials wanted no more.
    Stopped,
}

/// A study on its way. The log is all it remembers: a search made of it anew goes on as this one would.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    study: Study,
    log: Vec<StudyEvent>,
    /// The log, folded.
    standing: Standing,
    finish: Option<Finish>,
}

/// The host's view of a search: the trial that ended last and the best one.
pub type Progress = IterState<Vec<Value>, (), (), (), (), f64>;

impl Search {
    /// Takes a study up after what is in its log (nothing for a new one).
    pub fn new(study: Study, log: Vec<StudyEvent>) -> Self {
        let standing = Standing::of(&study, &log);
        Self { study, log, standing, finish: None }
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
    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    /// The trials that ended, in the order in which they did.
    pub fn ended(&self) -> Vec<Ended> {
        let ended = self.standing.ended().filter_map(|(_, seen)| match &seen.status {
            Status::Ended(outcome) => Some(Ended { values: seen.values.clone(), outcome: outcome.clone() }),
            Status::Running | Status::Paused => None,
        });
        ended.collect()
    }

    /// What the study found so far.
    pub fn recommend(&self) -> Option<Recommended> {
        self.study.recommend_from(&self.standing)
    }

    /// Why it is at its end; `None` while it is not.
    pub fn finish(&self) -> Option<Finish> {
        self.finish
    }

    /// An executor of this search, for whoever wants to observe it. It leaves Ctrl-C to others and has no limit of its own.
    pub fn executor<T: Trials>(self, trials: T) -> Executor<T, Self, Progress> {
        Executor::new(trials, self).ctrlc(false)
    }

    /// Runs trials until the budget is used up, everything has been tried, or `trials` wants no more.
    pub fn run<T: Trials>(self, trials: T) -> Self {
        self.executor(trials).run().expect("trials that fail are outcomes, not errors").solver
    }

    /// Sees to the trials that were under way when the study was interrupted.
    fn take_up(&self, trials: &mut dyn Trials) {
        for (trial, seen) in (0..).zip(self.standing.trials()) {
            match (&seen.status, seen.judgement) {
                (Status::Running, Judgement::Continue) => trials.take_up(trial),
                (Status::Running, how) => trials.stop(trial, how),
                (Status::Paused | Status::Ended(_), _) => {}
            }
        }
    }

    /// Fills the free slots.
    fn fill(&mut self, trials: &mut dyn Trials) {
        while self.standing.running() < trials.slots() {
            match self.study.next_from(&self.standing, &|values| trials.is_allowed(values)) {
                Next::Launch(proposal) => {
                    trials.launch(&proposal);
                    self.note(proposal.launched());
                }
                Next::Resume { trial, until } => {
                    trials.resume(trial, until);
                    self.note(StudyEvent::Resumed { trial });
                }
                Next::Wait => return,
                Next::Finished(finish) => {
                    let mut paused = self.standing.paused().peekable();
                    if paused.peek().is_none() {
                        self.finish = Some(finish);
                    }
                    paused.for_each(|trial| trials.stop(trial, Judgement::Stop));
                    return;
                }
            }
        }
    }

    /// Handles one event; `None` when there was none.
    fn handle(&mut self, trials: &mut dyn Trials) -> Option<StudyEvent> {
        let Some(event) = trials.next_event() else {
            self.finish = Some(Finish::Stopped);
            return None;
        };
        self.note(event.clone());
        if let StudyEvent::Reported { trial, .. } = event {
            let seen = self.standing.trial(trial);
            if seen.status == Status::Running && seen.judgement != Judgement::Continue {
                trials.stop(trial, seen.judgement);
            }
        }
        Some(event)
    }

    fn note(&mut self, event: StudyEvent) {
        self.standing.note(&self.study, &event);
        self.log.push(event);
    }
}

/// The state with a trial in it; one without a value is above all others.
fn with(state: Progress, values: &[Value], outcome: &Outcome) -> Progress {
    let ended = Ended { values: values.to_vec(), outcome: outcome.clone() };
    state.cost(ended.value().unwrap_or(f64::INFINITY)).param(ended.values)
}

/// What observers are told of a trial beside its values and its cost.
fn told(trial: u64, source: Source) -> KV {
    let mut told = argmin::kv!("trial" => trial;);
    let (name, figure) = match source {
        Source::Given => ("given", None),
        Source::Grid => ("grid", None),
        Source::Random => ("random", None),
        Source::Sobol => ("sobol", None),
        Source::Model { improvement } => ("model", Some(("improvement", improvement.into()))),
        Source::Tpe { log_ratio } => ("tpe", Some(("log_ratio", log_ratio.into()))),
        Source::CmaEs { step } => ("cma_es", Some(("step", step.into()))),
        Source::Swarm { particle } => ("swarm", Some(("particle", particle.into()))),
        Source::Mutated { parent } => ("mutated", Some(("parent", parent.into()))),
    };
    told.insert("source", name.to_owned().into());
    if let Some((key, value)) = figure {
        told.insert(key, value);
    }
    told
}

impl<T: Trials> Solver<T, Progress> for Search {
    fn name(&self) -> &str {
        "study"
    }

    /// Takes up what was under way. The best of the trials that ended before is the best so far.
    fn init(&mut self, problem: &mut Problem<T>, state: Progress) -> Result<(Progress, Option<KV>), Error> {
        let trials = problem.problem.as_mut().expect("the executor holds the problem while it runs");
        self.take_up(trials);
        let done = self.ended().into_iter().filter_map(|trial| Some((trial.value()?, trial)));
        let best = done.min_by(|a, b| a.0.total_cmp(&b.0));
        let state = best.map_or(state.clone(), |(_, trial)| with(state, &trial.values, &trial.outcome));
        Ok((state, None))
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<T>,
        state: Progress,
    ) -> Result<(Progress, Option<KV>), Error> {
        let trials = problem.problem.as_mut().expect("the executor holds the problem while it runs");
        self.fill(trials);
        if self.finish.is_some() {
            return Ok((state, None));
        }
        match self.handle(trials) {
            Some(StudyEvent::Ended { trial, outcome }) => {
                let seen = self.standing.trial(trial);
                Ok((with(state, &seen.values, &outcome), Some(told(trial, seen.source))))
            }
            _ => Ok((state, None)),
        }
    }

    fn terminate(&mut self, _: &Progress) -> TerminationStatus {
        match self.finish {
            None => TerminationStatus::NotTerminated,
            Some(Finish::Budget) => TerminationStatus::Terminated(TerminationReason::MaxItersReached),
            Some(Finish::Exhausted) => TerminationStatus::Terminated(TerminationReason::SolverConverged),
            Some(Finish::Stopped) => TerminationStatus::Terminated(TerminationReason::Interrupt),
        }
    }
}

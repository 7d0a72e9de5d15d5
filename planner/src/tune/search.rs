//! A study as a solver of argmin: one iteration proposes a trial, has it run, and notes how it ended.

use super::outcome::{Ended, Outcome};
use super::space::Value;
use super::study::{Proposal, Source, Study};
use argmin::core::{Error, Executor, IterState, KV, Problem, Solver, TerminationReason, TerminationStatus};
use serde::{Deserialize, Serialize};

/// Whoever runs trials.
pub trait Trials {
    /// Runs a trial to its end; `None` when the study shall stop before it ended. A trial that fails is an outcome like
    /// any other. A study that is taken up again proposes an unfinished trial again, under the same number.
    fn run(&mut self, proposal: &Proposal) -> Option<Outcome>;
}

impl<T: Trials> Trials for &mut T {
    fn run(&mut self, proposal: &Proposal) -> Option<Outcome> {
        (**self).run(proposal)
    }
}

/// Why a search is at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// As many trials ended as there was budget for.
    Budget,
    /// Everything has been tried.
    Exhausted,
    /// Whoever runs trials wanted no more.
    Stopped,
}

/// A study on its way. The trials that ended are all it remembers: a search made of them anew goes on as this one would.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Search {
    study: Study,
    ended: Vec<Ended>,
    /// Trials in all, those that ended before included.
    budget: u64,
    finish: Option<Finish>,
}

/// The host's view of a search: the trial that ended last and the best one.
pub type Progress = IterState<Vec<Value>, (), (), (), (), f64>;

impl Search {
    /// Takes a study up after `ended` (none for a new one), until `budget` trials have ended in all.
    pub fn new(study: Study, ended: Vec<Ended>, budget: u64) -> Self {
        let mut search = Self { study, ended, budget, finish: None };
        search.settle();
        search
    }

    /// What is searched.
    pub fn study(&self) -> &Study {
        &self.study
    }

    /// The trials that ended, in their order.
    pub fn ended(&self) -> &[Ended] {
        &self.ended
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

    /// Notes whether the budget is used up.
    fn settle(&mut self) {
        let count = u64::try_from(self.ended.len()).expect("trials are counted in 64 bits");
        if count >= self.budget {
            self.finish = Some(Finish::Budget);
        }
    }

    /// Proposes, runs, notes; `None` when there was nothing to note.
    fn advance(&mut self, trials: &mut dyn Trials) -> Option<Proposal> {
        let Some(proposal) = self.study.propose(&self.ended) else {
            self.finish = Some(Finish::Exhausted);
            return None;
        };
        let Some(outcome) = trials.run(&proposal) else {
            self.finish = Some(Finish::Stopped);
            return None;
        };
        self.ended.push(Ended { values: proposal.values.clone(), outcome });
        self.settle();
        Some(proposal)
    }
}

/// The state with a trial in it; one without a value is above all others.
fn with(state: Progress, trial: &Ended) -> Progress {
    state.param(trial.values.clone()).cost(trial.value().unwrap_or(f64::INFINITY))
}

/// What observers are told of a trial beside its values and its cost.
fn told(proposal: &Proposal) -> KV {
    let mut told = argmin::kv!("trial" => proposal.index;);
    match proposal.source {
        Source::Given => told.insert("source", "given".to_string().into()),
        Source::Random => told.insert("source", "random".to_string().into()),
        Source::Sobol => told.insert("source", "sobol".to_string().into()),
        Source::Model { improvement } => {
            told.insert("source", "model".to_string().into());
            told.insert("improvement", improvement.into())
        }
    };
    told
}

impl<T: Trials> Solver<T, Progress> for Search {
    fn name(&self) -> &str {
        "study"
    }

    /// The best of the trials that ended before is the best so far.
    fn init(&mut self, _: &mut Problem<T>, state: Progress) -> Result<(Progress, Option<KV>), Error> {
        let done = self.ended.iter().filter_map(|trial| Some((trial.value()?, trial)));
        let best = done.min_by(|a, b| a.0.total_cmp(&b.0));
        Ok((best.map_or(state.clone(), |(_, trial)| with(state, trial)), None))
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<T>,
        state: Progress,
    ) -> Result<(Progress, Option<KV>), Error> {
        let trials = problem.problem.as_mut().expect("the executor holds the problem while it runs");
        let proposal = self.advance(trials);
        let state = self.ended.last().map_or(state.clone(), |trial| with(state, trial));
        Ok((state, proposal.as_ref().map(told)))
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

//! Exhaustive search: prices every candidate of a space.

use super::Ranking;
use crate::layout::space::CandidateId;
use crate::price::cost_model::{CostModel, Feasibility};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use std::borrow::Borrow;

/// Number of candidates priced in one iteration: enough to hide argmin's overhead, few enough to stop
/// quickly.
const CHUNK: usize = 4096;

/// Prices a candidate for argmin. One that does not fit is a result, never an `Err`, which would end the
/// whole search.
impl CostFunction for &CostModel<'_> {
    type Param = CandidateId;
    type Output = Feasibility;

    fn cost(&self, id: &CandidateId) -> Result<Feasibility, Error> {
        Ok(self.feasibility(*id))
    }

    fn bulk_cost<P: Borrow<CandidateId>>(&self, ids: &[P]) -> Result<Vec<Feasibility>, Error> {
        Ok(self.feasibilities(ids))
    }
}

/// A solver for argmin that visits all candidates of a space, a chunk in each iteration.
pub struct Exhaustive {
    /// Number of possible micro-batch sizes of each layout option.
    micros: Vec<u32>,
    next: Option<CandidateId>,
    chunk: Vec<CandidateId>,
    ranking: Ranking,
}

type ExhaustiveState = IterState<CandidateId, (), (), (), (), f64>;

impl Exhaustive {
    /// Creates the solver for the space of `cost_model`, keeping the best `keep` candidates.
    pub fn new(cost_model: &CostModel<'_>, keep: usize) -> Self {
        let space = cost_model.space();
        let count = |option| u32::try_from(space.micros(option).len()).expect("divisors are few");
        Self {
            micros: space.options.iter().map(count).collect(),
            next: (!space.is_empty()).then_some(CandidateId { option: 0, micro: 0 }),
            chunk: Vec::with_capacity(CHUNK),
            ranking: Ranking::new(space, keep),
        }
    }

    /// Returns the candidate after `id` in the order of the space; `None` after the last.
    fn after(&self, id: CandidateId) -> Option<CandidateId> {
        if id.micro + 1 < self.micros[id.option as usize] {
            return Some(CandidateId { micro: id.micro + 1, ..id });
        }
        ((id.option as usize) + 1 < self.micros.len())
            .then_some(CandidateId { option: id.option + 1, micro: 0 })
    }
}

impl<O: CostFunction<Param = CandidateId, Output = Feasibility>> Solver<O, ExhaustiveState> for Exhaustive {
    fn name(&self) -> &str {
        "exhaustive"
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        state: ExhaustiveState,
    ) -> Result<(ExhaustiveState, Option<KV>), Error> {
        self.chunk.clear();
        while let Some(id) = self.next.filter(|_| self.chunk.len() < CHUNK) {
            self.chunk.push(id);
            self.next = self.after(id);
        }
        let verdicts = problem.bulk_cost(&self.chunk)?;
        for (id, verdict) in self.chunk.iter().zip(verdicts) {
            self.ranking.record(*id, verdict);
        }
        let state = match self.ranking.best.first() {
            Some((seconds, id)) => state.param(*id).cost(*seconds),
            None => state,
        };
        Ok((state, None))
    }

    fn terminate(&mut self, _: &ExhaustiveState) -> TerminationStatus {
        match self.next {
            Some(_) => TerminationStatus::NotTerminated,
            None => TerminationStatus::Terminated(TerminationReason::SolverConverged),
        }
    }
}

/// Ranks every candidate in the space of `cost_model`, keeping the best `keep`.
pub fn rank(cost_model: &CostModel<'_>, keep: usize) -> Ranking {
    let solver = Exhaustive::new(cost_model, keep);
    if solver.next.is_none() {
        return solver.ranking;
    }
    let result = Executor::new(cost_model, solver).ctrlc(false).run();
    result.expect("pricing has no error to return").solver.ranking
}

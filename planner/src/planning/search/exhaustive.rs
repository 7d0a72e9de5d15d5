//! Prices every candidate.

use super::Ranking;
use crate::layout::space::Place;
use crate::price::judge::{Judge, Verdict};
use argmin::core::{CostFunction, Error, Executor, IterState, KV, Problem, Solver};
use argmin::core::{TerminationReason, TerminationStatus};
use std::borrow::Borrow;

/// Candidates priced in one iteration: enough to hide the host's own cost, few enough to stop quickly.
const CHUNK: usize = 4096;

/// A candidate that does not fit is an answer, never an `Err`: an error would end the whole search.
impl CostFunction for &Judge<'_> {
    type Param = Place;
    type Output = Verdict;

    fn cost(&self, place: &Place) -> Result<Verdict, Error> {
        Ok(self.verdict(*place))
    }

    fn bulk_cost<P: Borrow<Place>>(&self, places: &[P]) -> Result<Vec<Verdict>, Error> {
        Ok(self.verdicts(places))
    }
}

/// Walks over all places of a space, a chunk in each iteration.
pub struct Exhaustive {
    /// Number of micro-batches of every way.
    micros: Vec<u32>,
    next: Option<Place>,
    chunk: Vec<Place>,
    ranking: Ranking,
}

type Progress = IterState<Place, (), (), (), (), f64>;

impl Exhaustive {
    /// Over the judge's space, keeping the best `keep`.
    pub fn new(judge: &Judge<'_>, keep: usize) -> Self {
        let space = judge.space();
        let count = |way| u32::try_from(space.micros(way).len()).expect("divisors are few");
        Self {
            micros: space.ways.iter().map(count).collect(),
            next: (!space.is_empty()).then_some(Place { way: 0, micro: 0 }),
            chunk: Vec::with_capacity(CHUNK),
            ranking: Ranking::new(space, keep),
        }
    }

    /// The place after `place`.
    fn after(&self, place: Place) -> Option<Place> {
        if place.micro + 1 < self.micros[place.way as usize] {
            return Some(Place { micro: place.micro + 1, ..place });
        }
        ((place.way as usize) + 1 < self.micros.len()).then_some(Place { way: place.way + 1, micro: 0 })
    }
}

impl<O: CostFunction<Param = Place, Output = Verdict>> Solver<O, Progress> for Exhaustive {
    fn name(&self) -> &str {
        "exhaustive"
    }

    fn next_iter(
        &mut self,
        problem: &mut Problem<O>,
        state: Progress,
    ) -> Result<(Progress, Option<KV>), Error> {
        self.chunk.clear();
        while let Some(place) = self.next.filter(|_| self.chunk.len() < CHUNK) {
            self.chunk.push(place);
            self.next = self.after(place);
        }
        let verdicts = problem.bulk_cost(&self.chunk)?;
        for (place, verdict) in self.chunk.iter().zip(verdicts) {
            self.ranking.note(*place, verdict);
        }
        let state = match self.ranking.best.first() {
            Some((seconds, place)) => state.param(*place).cost(*seconds),
            None => state,
        };
        Ok((state, None))
    }

    fn terminate(&mut self, _: &Progress) -> TerminationStatus {
        match self.next {
            Some(_) => TerminationStatus::NotTerminated,
            None => TerminationStatus::Terminated(TerminationReason::SolverConverged),
        }
    }
}

/// Ranks every candidate of the judge's space.
pub fn rank(judge: &Judge<'_>, keep: usize) -> Ranking {
    let solver = Exhaustive::new(judge, keep);
    if solver.next.is_none() {
        return solver.ranking;
    }
    let result = Executor::new(judge, solver).ctrlc(false).run();
    result.expect("pricing has no error to return").solver.ranking
}

//! Simulated annealing, for spaces too large to search exhaustively.

use super::Ranking;
use crate::layout::space::{CandidateId, CandidateSpace};
use crate::price::cost_model::{CostModel, Feasibility};
use crate::rng::SearchRng;
use argmin::core::{CostFunction, Error, Executor};
use argmin::solver::simulatedannealing::{Anneal, SATempFunc, SimulatedAnnealing};
use dtrain_protocol::shuffle::splitmix64;
use std::cell::{Cell, RefCell};

/// Number of candidates that annealing tries in one search.
pub const ITERATIONS: u64 = 200_000;

/// Ranks the candidates that annealing visits in `iterations` steps, keeping the best `keep`. Deterministic
/// for a seed.
pub fn rank(cost_model: &CostModel<'_>, seed: u64, keep: usize, iterations: u64) -> Ranking {
    let objective = AnnealingObjective {
        cost_model,
        ranking: RefCell::new(Ranking::new(cost_model.space(), keep)),
        stream: Cell::new(SearchRng::new(splitmix64(seed, 1))),
    };
    if cost_model.space().is_empty() {
        return objective.ranking.into_inner();
    }
    let cooling = 1e-4f64.powf(1.0 / f64::from(u32::try_from(iterations.max(2)).unwrap_or(u32::MAX)));
    let solver = SimulatedAnnealing::new_with_rng(1.0, SearchRng::new(splitmix64(seed, 2)))
        .expect("the temperature is positive")
        .with_temp_func(SATempFunc::Exponential(cooling));
    let start = CandidateId { option: 0, micro: 0 };
    let mut result = Executor::new(objective, solver)
        .configure(|state| state.param(start).max_iters(iterations))
        .ctrlc(false)
        .run()
        .expect("pricing has no error to return");
    let objective = result.problem.take_problem().expect("the executor gives the problem back");
    objective.ranking.into_inner()
}

/// Objective that annealing minimizes: the logarithm of the step time, with a penalty for missing memory.
struct AnnealingObjective<'a> {
    cost_model: &'a CostModel<'a>,
    ranking: RefCell<Ranking>,
    stream: Cell<SearchRng>,
}

impl CostFunction for AnnealingObjective<'_> {
    type Param = CandidateId;
    type Output = f64;

    fn cost(&self, id: &CandidateId) -> Result<f64, Error> {
        let verdict = self.cost_model.feasibility(*id);
        self.ranking.borrow_mut().record(*id, verdict);
        Ok(match verdict {
            Feasibility::Fits(cost) => cost.step_seconds.max(1e-12).ln(),
            // Above any step time, and lower the less memory is missing.
            #[expect(clippy::cast_precision_loss, reason = "only an order of magnitude")]
            Feasibility::TooMuch(missing) => 30.0 + (missing.0.max(1) as f64).ln(),
        })
    }
}

impl Anneal for AnnealingObjective<'_> {
    type Param = CandidateId;
    type Output = CandidateId;
    type Float = f64;

    fn anneal(&self, id: &CandidateId, _: f64) -> Result<CandidateId, Error> {
        let mut stream = self.stream.get();
        let next = neighbour(self.cost_model.space(), *id, &mut stream);
        self.stream.set(stream);
        Ok(next)
    }
}

/// Returns a random candidate near `id`: the next micro-batch size, an option close in the list, or (one time
/// in eight) any candidate.
fn neighbour(space: &CandidateSpace, id: CandidateId, stream: &mut SearchRng) -> CandidateId {
    let options = u64::try_from(space.options.len()).expect("counts fit");
    let option = match stream.below(8) {
        0 => stream.below(options),
        1..=3 => {
            let reach = 1 + stream.below(8);
            let at = u64::from(id.option);
            if stream.below(2) == 0 { at.saturating_sub(reach) } else { (at + reach).min(options - 1) }
        }
        _ => u64::from(id.option),
    };
    let option = u32::try_from(option).expect("ways are counted in 32 bits");
    let micros =
        u32::try_from(space.micros(&space.options[option as usize]).len()).expect("divisors are few");
    let stay = id.micro.min(micros - 1);
    let micro = match stream.below(3) {
        0 => stay.saturating_sub(1),
        1 => (stay + 1).min(micros - 1),
        _ => stay,
    };
    CandidateId { option, micro }
}

//! Searches over a space, hosted by argmin: every one is a `Solver` over a `CostFunction`.

pub mod anneal;
pub mod exhaustive;
pub mod ranking;

use crate::price::cost_model::CostModel;
pub use ranking::Ranking;

/// Spaces up to this many candidates are searched whole.
pub const EXHAUSTIVE_MOST: u64 = 2_000_000;

/// Ranks the candidates of the cost model's space: whole when it is small enough, by annealing otherwise.
pub fn rank(cost_model: &CostModel<'_>, seed: u64, keep: usize) -> Ranking {
    if cost_model.space().len() <= EXHAUSTIVE_MOST {
        exhaustive::rank(cost_model, keep)
    } else {
        anneal::rank(cost_model, seed, keep, anneal::ITERATIONS)
    }
}

#[cfg(test)]
mod tests;

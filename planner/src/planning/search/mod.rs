//! Search algorithms over a space of candidates; each is an argmin `Solver` over a `CostFunction`.

pub mod anneal;
pub mod exhaustive;
pub mod ranking;

use crate::price::cost_model::CostModel;
pub use ranking::Ranking;

/// Number of candidates in the largest space that is searched exhaustively.
pub const EXHAUSTIVE_MOST: u64 = 2_000_000;

/// Ranks the candidates in the space of `cost_model`, keeping the best `keep`: exhaustively when the space is
/// small enough, by annealing otherwise.
pub fn rank(cost_model: &CostModel<'_>, seed: u64, keep: usize) -> Ranking {
    if cost_model.space().len() <= EXHAUSTIVE_MOST {
        exhaustive::rank(cost_model, keep)
    } else {
        anneal::rank(cost_model, seed, keep, anneal::ITERATIONS)
    }
}

#[cfg(test)]
mod tests;

//! Searches over a space, hosted by argmin: every one is a `Solver` over a `CostFunction`.

pub mod anneal;
pub mod exhaustive;
pub mod ranking;

use crate::price::judge::Judge;
pub use ranking::Ranking;

/// Spaces up to this many candidates are searched whole.
pub const EXHAUSTIVE_MOST: u64 = 2_000_000;

/// Ranks the candidates of the judge's space: whole when it is small enough, by annealing otherwise.
pub fn rank(judge: &Judge<'_>, seed: u64, keep: usize) -> Ranking {
    if judge.space().len() <= EXHAUSTIVE_MOST {
        exhaustive::rank(judge, keep)
    } else {
        anneal::rank(judge, seed, keep, anneal::ITERATIONS)
    }
}

#[cfg(test)]
mod tests;

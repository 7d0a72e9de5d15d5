//! Searches the layouts of heterogeneous clusters: each group of equal hosts runs some stages of one
//! pipeline, with layers in proportion to its speed and memory.
//!
//! A stage lies on one group; tensor, context, expert and data degrees are the same for all stages. Devices
//! that do not speed up a step stay idle. Data parallelism across groups (unequal shares of the batch) is not
//! searched.

mod anneal;
mod best_n;
mod exhaustive;
mod grouped_layout;
mod moves;
mod partition;
mod price;
mod space;

#[cfg(test)]
mod tests;

pub use anneal::{ITERATIONS, anneal};
pub use best_n::{GroupedSearchResult, PricedGroupedLayout};
pub use exhaustive::search_exhaustively;
pub use grouped_layout::{GroupStages, GroupedLayout};
pub use partition::{StageCapacity, partition};
pub use price::{PricedStages, Pricer};
pub use space::GroupedProblem;

/// Number of layouts below which all layouts are priced.
const FEW: u64 = 20_000;

/// Returns the best `keep` layouts of a heterogeneous cluster: by exhaustive search if the space is small,
/// otherwise by simulated annealing from `seed`.
pub fn search(grouped: &GroupedProblem, seed: u64, keep: usize) -> GroupedSearchResult {
    if grouped.layouts(FEW) < FEW {
        search_exhaustively(grouped, keep)
    } else {
        anneal(grouped, seed, keep, ITERATIONS)
    }
}

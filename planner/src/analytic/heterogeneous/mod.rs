//! Layouts of clusters whose hosts are not alike: every group of equal hosts has stages of one pipeline, each with as many layers
//! as it has time and memory for.
//!
//! A stage is wholly on one group, and all stages have the same tensor, context, expert and data degrees; devices that help
//! nobody stay idle. Shares of the batch by speed, where replicas and not stages are on different groups, are not searched.

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

/// Layouts up to which all of them are priced.
const FEW: u64 = 20_000;

/// The best `keep` layouts of a grouped: of all layouts where they are few, otherwise of those that annealing with `seed`
/// comes across.
pub fn search(grouped: &GroupedProblem, seed: u64, keep: usize) -> GroupedSearchResult {
    if grouped.layouts(FEW) < FEW {
        search_exhaustively(grouped, keep)
    } else {
        anneal(grouped, seed, keep, ITERATIONS)
    }
}

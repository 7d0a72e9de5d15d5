//! Layouts of clusters whose hosts are not alike: every group of equal hosts has stages of one pipeline, each with as many layers
//! as it has time and memory for.
//!
//! A stage is wholly on one group, and all stages have the same tensor, context, expert and data degrees; devices that help
//! nobody stay idle. Shares of the batch by speed, where replicas and not stages are on different groups, are not searched.

mod anneal;
mod every;
mod kept;
mod layout;
mod moves;
mod partition;
mod price;
mod space;

#[cfg(test)]
mod tests;

pub use anneal::{ITERATIONS, anneal};
pub use every::every;
pub use kept::{Choice, Found};
pub use layout::{Layout, Run};
pub use partition::{Room, partition};
pub use price::{Pricer, Stages};
pub use space::Mixture;

/// Layouts up to which all of them are priced.
const FEW: u64 = 20_000;

/// The best `keep` layouts of a mixture: of all layouts where they are few, otherwise of those that annealing with `seed`
/// comes across.
pub fn search(mixture: &Mixture, seed: u64, keep: usize) -> Found {
    if mixture.layouts(FEW) < FEW { every(mixture, keep) } else { anneal(mixture, seed, keep, ITERATIONS) }
}

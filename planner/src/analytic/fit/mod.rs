//! Constants of the cost model from published runs: those that explain measured step times best without straying far from
//! what is known of each ([`Priors`]).
//!
//! Residuals are `ln(predicted / measured)` over [`SPREAD`], with a soft-L1 loss, and `ln(constant / prior)` over the prior's
//! spread. A source with many rows counts as the square root of their number. `cargo bench --bench fit` prints what comes out.

mod objective;
mod observed;
mod priors;
mod solver;

pub use objective::{Fit, Objective, SPREAD, fit, page};
pub use observed::{Observed, observed};
pub use priors::{Prior, Priors};

#[cfg(test)]
mod tests;

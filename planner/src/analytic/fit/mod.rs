//! Constants of the cost model from published runs: those that explain measured step times best without straying far from
//! what is known of each ([`ConstantPriors`]).
//!
//! Residuals are `ln(predicted / measured)` over [`SPREAD`], with a soft-L1 loss, and `ln(constant / prior)` over the prior's
//! spread. A source with many rows counts as the square root of their number. `cargo bench --bench fit` prints what comes out.

mod measured_runs;
mod objective;
mod priors;
mod solver;

pub use measured_runs::{MeasuredRun, measured_runs};
pub use objective::{CalibrationLoss, CalibrationResult, SPREAD, covariance_file, fit};
pub use priors::{ConstantPrior, ConstantPriors};

#[cfg(test)]
mod tests;

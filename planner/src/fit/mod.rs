//! Fits the constants of the cost model to published runs, regularized by priors ([`ConstantPriors`]).
//!
//! Residuals are `ln(predicted / measured)` over [`SPREAD`], with a soft-L1 loss, and `ln(constant / prior)`
//! over the prior's spread. A source with many rows counts as the square root of their number. `cargo bench
//! --bench fit` prints the result.

mod measured_runs;
mod objective;
mod priors;
mod solver;

pub use measured_runs::{MeasuredRun, measured_runs};
pub use objective::{CalibrationLoss, CalibrationResult, SPREAD, covariance_file, fit};
pub use priors::{ConstantPrior, ConstantPriors};

#[cfg(test)]
mod tests;

//! The loss function of the fit, and its minimization.

use super::measured_runs::MeasuredRun;
use super::priors::ConstantPriors;
use super::solver::{GaussNewton, NormalEquations};
use crate::analytic::constants::covariance::{Covariance, CovarianceFile};
use crate::analytic::constants::fitted::with_constants;
use crate::analytic::{Constants, StepInputs, StepTimes};
use crate::linear_algebra::{Cholesky, dot};
use argmin::core::{CostFunction, Error, Executor, Hessian, State as _};

/// Standard deviation of ln(predicted step time): the unit of residuals.
pub const SPREAD: f64 = 0.05;

/// Change of a z-score in numeric derivatives.
const STEP: f64 = 1e-4;

/// Iteration limit of one fit; about ten iterations are needed.
const ITERATIONS: u64 = 60;

/// The loss of the fit: residuals of measured runs and of priors, as a function of the z-scores of the
/// constants.
#[derive(Clone, Debug)]
pub struct CalibrationLoss<'a> {
    /// Measured runs to fit the constants to.
    pub observed: &'a [MeasuredRun<'a>],
    /// Priors of the fitted constants.
    pub priors: &'a ConstantPriors,
    /// Constants of the cost model, for those that are not fitted.
    pub constants: &'a Constants,
}

/// Result of a fit of the constants.
#[derive(Clone, Debug)]
pub struct CalibrationResult {
    /// Constants of the cost model at the minimum of the loss.
    pub constants: Constants,
    /// Z-scores of the fitted constants at the minimum.
    pub z_scores: Vec<f64>,
    /// Loss at the minimum.
    pub cost: f64,
    /// Number of iterations of the fit.
    pub iterations: u64,
}

impl CalibrationLoss<'_> {
    /// Returns `ln(predicted / measured)` of each run under `constants`.
    pub fn residuals(&self, constants: &Constants) -> Vec<f64> {
        self.observed
            .iter()
            .map(|row| seconds(&row.training.case(), row, constants).ln() - row.measured)
            .collect()
    }

    /// Returns the Jacobian of ln(predicted step time): a row per run, a column per z-score.
    pub fn slopes(&self, z_scores: &[f64]) -> Vec<Vec<f64>> {
        let here = self.priors.constants(z_scores, self.constants);
        let moved: Vec<Constants> = (0..z_scores.len())
            .map(|i| {
                let mut moved = z_scores.to_vec();
                moved[i] += STEP;
                self.priors.constants(&moved, self.constants)
            })
            .collect();
        let row = |row: &MeasuredRun<'_>| {
            let case = row.training.case();
            let now = seconds(&case, row, &here).ln();
            let slope = |(prior, moved): (&super::ConstantPrior, &Constants)| {
                if prior.constant.concerns(&case, row.training.gpu) {
                    (seconds(&case, row, moved).ln() - now) / STEP
                } else {
                    0.0
                }
            };
            self.priors.0.iter().zip(&moved).map(slope).collect()
        };
        self.observed.iter().map(row).collect()
    }

    fn normal(&self, z_scores: &[f64]) -> NormalEquations {
        let size = z_scores.len();
        let residuals = self.residuals(&self.priors.constants(z_scores, self.constants));
        // Terms of the priors.
        let mut slope = z_scores.to_vec();
        let mut curvature = vec![0.0; size * size];
        for i in 0..size {
            curvature[i * size + i] = 1.0;
        }
        for ((slopes, residual), row) in self.slopes(z_scores).iter().zip(&residuals).zip(self.observed) {
            let z = residual / SPREAD;
            // Derivative of the soft-L1 loss with respect to the squared residual.
            let weight = row.weight / (1.0 + z * z).sqrt();
            for i in 0..size {
                let own = slopes[i] / SPREAD;
                if own == 0.0 {
                    continue;
                }
                slope[i] += weight * own * z;
                for j in 0..=i {
                    curvature[i * size + j] += weight * own * slopes[j] / SPREAD;
                }
            }
        }
        for i in 0..size {
            for j in 0..i {
                curvature[j * size + i] = curvature[i * size + j];
            }
        }
        NormalEquations { slope, curvature }
    }
}

/// Returns the predicted seconds per step of the run `row`, whose inputs are `case`, under other `constants`.
fn seconds(case: &StepInputs<'_>, row: &MeasuredRun<'_>, constants: &Constants) -> f64 {
    StepTimes::of(&with_constants(case, row.training.gpu, constants)).total()
}

impl CostFunction for &CalibrationLoss<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, z_scores: &Vec<f64>) -> Result<f64, Error> {
        let residuals = self.residuals(&self.priors.constants(z_scores, self.constants));
        let loss = |(residual, row): (&f64, &MeasuredRun<'_>)| {
            let z = residual / SPREAD;
            row.weight * ((1.0 + z * z).sqrt() - 1.0)
        };
        let rows: f64 = residuals.iter().zip(self.observed).map(loss).sum();
        Ok(rows + 0.5 * dot(z_scores, z_scores))
    }
}

impl Hessian for &CalibrationLoss<'_> {
    type Param = Vec<f64>;
    type Hessian = NormalEquations;

    fn hessian(&self, z_scores: &Vec<f64>) -> Result<NormalEquations, Error> {
        Ok(self.normal(z_scores))
    }
}

/// Minimizes the loss from the z-scores `start`.
///
/// # Errors
/// If no step is possible from there.
pub fn fit(objective: &CalibrationLoss<'_>, start: &[f64]) -> Result<CalibrationResult, String> {
    let executor = Executor::new(objective, GaussNewton::new()).ctrlc(false);
    let start = start.to_vec();
    let result = executor
        .configure(|state| state.param(start).max_iters(ITERATIONS))
        .run()
        .map_err(|error| error.to_string())?;
    let z_scores = result.state.get_best_param().ok_or("nothing was found")?.clone();
    let mut constants = objective.priors.constants(&z_scores, objective.constants);
    constants.covariance = covariance(objective, &z_scores).ok_or("the minimum is flat")?;
    let (cost, iterations) = (result.state.get_best_cost(), result.state.get_iter());
    Ok(CalibrationResult { constants, z_scores, cost, iterations })
}

/// Returns the covariance of the z-scores at a minimum: the inverse of the loss's curvature.
fn covariance(objective: &CalibrationLoss<'_>, z_scores: &[f64]) -> Option<Covariance> {
    Covariance::of(covariance_file(objective, z_scores)?).ok()
}

/// Returns the contents of the covariance file for the minimum at `z_scores`; `None` if the curvature cannot
/// be inverted.
pub fn covariance_file(objective: &CalibrationLoss<'_>, z_scores: &[f64]) -> Option<CovarianceFile> {
    let (size, priors) = (z_scores.len(), &objective.priors.0);
    let half = Cholesky::of(objective.normal(z_scores).curvature, size)?.inverse();
    let at = |i: usize, j: usize| {
        half[i.max(j) * (i.max(j) + 1) / 2 + i.min(j)] * priors[i].spread * priors[j].spread
    };
    let all = (0..size).flat_map(|i| (0..size).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect();
    let factor = Cholesky::of(all, size)?;
    Some(CovarianceFile {
        names: priors.iter().map(|prior| prior.constant.name.clone()).collect(),
        factor: (0..size).map(|i| factor.row(i)[..=i].to_vec()).collect(),
    })
}

//! What is minimised, and the minimum.

use super::observed::Observed;
use super::priors::Priors;
use super::solver::{GaussNewton, Normal};
use crate::analytic::constants::covariance::{Covariance, CovariancePage};
use crate::analytic::constants::fitted::under;
use crate::analytic::{Case, Constants, Step};
use crate::tune::linear::{Cholesky, dot};
use argmin::core::{CostFunction, Error, Executor, Hessian, State as _};

/// Deviation of the logarithm of a predicted time that counts as one.
pub const SPREAD: f64 = 0.05;

/// Step of a derivative, in spreads of a prior.
const STEP: f64 = 1e-4;

/// Steps of one search; about ten are needed.
const ITERATIONS: u64 = 60;

/// The sum of the losses of rows and priors over places of constants, in spreads of their priors.
#[derive(Clone, Debug)]
pub struct Objective<'a> {
    /// The rows.
    pub observed: &'a [Observed<'a>],
    /// The priors.
    pub priors: &'a Priors,
    /// Constants that are not fitted.
    pub constants: &'a Constants,
}

/// A minimum.
#[derive(Clone, Debug)]
pub struct Fit {
    /// The constants there.
    pub constants: Constants,
    /// Their places.
    pub places: Vec<f64>,
    /// The objective there.
    pub cost: f64,
    /// Steps that were taken.
    pub iterations: u64,
}

impl Objective<'_> {
    /// `ln(predicted / measured)` of each row.
    pub fn residuals(&self, constants: &Constants) -> Vec<f64> {
        self.observed
            .iter()
            .map(|row| seconds(&row.training.case(), row, constants).ln() - row.measured)
            .collect()
    }

    /// Derivatives of the logarithms of all predictions, a row each, with regard to the places of all constants.
    pub fn slopes(&self, places: &[f64]) -> Vec<Vec<f64>> {
        let here = self.priors.constants(places, self.constants);
        let moved: Vec<Constants> = (0..places.len())
            .map(|i| {
                let mut moved = places.to_vec();
                moved[i] += STEP;
                self.priors.constants(&moved, self.constants)
            })
            .collect();
        let row = |row: &Observed<'_>| {
            let case = row.training.case();
            let now = seconds(&case, row, &here).ln();
            let slope = |(prior, moved): (&super::Prior, &Constants)| {
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

    fn normal(&self, places: &[f64]) -> Normal {
        let size = places.len();
        let residuals = self.residuals(&self.priors.constants(places, self.constants));
        // The priors.
        let mut slope = places.to_vec();
        let mut curvature = vec![0.0; size * size];
        for i in 0..size {
            curvature[i * size + i] = 1.0;
        }
        for ((slopes, residual), row) in self.slopes(places).iter().zip(&residuals).zip(self.observed) {
            let z = residual / SPREAD;
            // The derivative of the soft-L1 loss by the square.
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
        Normal { slope, curvature }
    }
}

/// Seconds of a step of `row`, whose case is `case`, under other constants.
fn seconds(case: &Case<'_>, row: &Observed<'_>, constants: &Constants) -> f64 {
    Step::of(&under(case, row.training.gpu, constants)).total()
}

impl CostFunction for &Objective<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, places: &Vec<f64>) -> Result<f64, Error> {
        let residuals = self.residuals(&self.priors.constants(places, self.constants));
        let loss = |(residual, row): (&f64, &Observed<'_>)| {
            let z = residual / SPREAD;
            row.weight * ((1.0 + z * z).sqrt() - 1.0)
        };
        let rows: f64 = residuals.iter().zip(self.observed).map(loss).sum();
        Ok(rows + 0.5 * dot(places, places))
    }
}

impl Hessian for &Objective<'_> {
    type Param = Vec<f64>;
    type Hessian = Normal;

    fn hessian(&self, places: &Vec<f64>) -> Result<Normal, Error> {
        Ok(self.normal(places))
    }
}

/// The minimum of an objective, from the means of the priors.
///
/// # Errors
/// Where no step can be taken from there.
pub fn fit(objective: &Objective<'_>, start: &[f64]) -> Result<Fit, String> {
    let executor = Executor::new(objective, GaussNewton::new()).ctrlc(false);
    let start = start.to_vec();
    let result = executor
        .configure(|state| state.param(start).max_iters(ITERATIONS))
        .run()
        .map_err(|error| error.to_string())?;
    let places = result.state.get_best_param().ok_or("nothing was found")?.clone();
    let mut constants = objective.priors.constants(&places, objective.constants);
    constants.covariance = covariance(objective, &places).ok_or("the minimum is flat")?;
    let (cost, iterations) = (result.state.get_best_cost(), result.state.get_iter());
    Ok(Fit { constants, places, cost, iterations })
}

/// The covariance at a minimum: the inverse of the curvature there.
fn covariance(objective: &Objective<'_>, places: &[f64]) -> Option<Covariance> {
    Covariance::of(page(objective, places)?).ok()
}

/// The page of the covariance at a minimum.
pub fn page(objective: &Objective<'_>, places: &[f64]) -> Option<CovariancePage> {
    let (size, priors) = (places.len(), &objective.priors.0);
    let half = Cholesky::of(objective.normal(places).curvature, size)?.inverse();
    let at = |i: usize, j: usize| {
        half[i.max(j) * (i.max(j) + 1) / 2 + i.min(j)] * priors[i].spread * priors[j].spread
    };
    let all = (0..size).flat_map(|i| (0..size).map(move |j| (i, j))).map(|(i, j)| at(i, j)).collect();
    let factor = Cholesky::of(all, size)?;
    Some(CovariancePage {
        names: priors.iter().map(|prior| prior.constant.name.clone()).collect(),
        factor: (0..size).map(|i| factor.row(i)[..=i].to_vec()).collect(),
    })
}

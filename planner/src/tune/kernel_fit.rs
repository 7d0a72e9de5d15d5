//! Fits the parameters of a kernel to measured values, by maximum a posteriori estimation.
//!
//! Maximizes the evidence of a Gaussian process (Rasmussen and Williams 2006, equation 5.8) times a
//! log-normal prior of every parameter, by L-BFGS with analytic gradients (equation 5.9).

use super::kernel::{MaternKernel, squares};
use crate::linear_algebra::{Cholesky, dot};
use argmin::core::{CostFunction, Error, Executor, Gradient};
use argmin::solver::linesearch::MoreThuenteLineSearch;
use argmin::solver::quasinewton::LBFGS;
use std::cell::RefCell;
use std::f64::consts::TAU;

/// Iteration limit of one L-BFGS search; the evidence is flat long before.
const ITERATIONS: u64 = 40;

/// A log-normal prior: the logarithm of a parameter has mean `middle` and standard deviation `spread`.
#[derive(Clone, Copy, Debug)]
struct LogNormalPrior {
    middle: f64,
    spread: f64,
}

/// Returns the prior of a length scale in a space of `dimensions` dimensions: about half the unit cube,
/// longer with more dimensions, as all points are then farther apart (Hvarfner et al. 2024).
fn length(dimensions: usize) -> LogNormalPrior {
    #[expect(clippy::cast_precision_loss, reason = "a few dimensions")]
    let root = (dimensions as f64).sqrt();
    LogNormalPrior { middle: (0.5 * root).ln(), spread: 1.0 }
}

/// Prior of the variance of standardized values.
const AMPLITUDE: LogNormalPrior = LogNormalPrior { middle: 0.0, spread: 1.0 };

/// Prior of the noise variance: about 10 % of the total spread, with room for almost none and for all of it.
const NOISE: LogNormalPrior = LogNormalPrior { middle: -4.5, spread: 2.5 };

/// Returns the kernel with the highest posterior density for standardized `values` at `points`.
/// Deterministic.
///
/// Searches from the middle of the priors and from length scales a fifth of that; costs `n³` operations for
/// each of about a hundred evaluations.
pub fn fit(points: &[Vec<f64>], values: &[f64], named: &[bool]) -> MaternKernel {
    let posterior = NegativeLogPosterior::new(points, values, named);
    let middle: Vec<f64> = posterior.priors.iter().map(|prior| prior.middle).collect();
    let short = |(k, log): (usize, &f64)| if k < named.len() { log - 5f64.ln() } else { *log };
    let wiggly: Vec<f64> = middle.iter().enumerate().map(short).collect();
    for start in [&middle, &wiggly] {
        posterior.climb(start);
    }
    let (_, best) = posterior.best.into_inner();
    MaternKernel::of(&best)
}

/// The negative log posterior as a function of the logarithms of the kernel's parameters.
struct NegativeLogPosterior<'a> {
    values: &'a [f64],
    priors: Vec<LogNormalPrior>,
    /// Squared coordinate differences of each pair of points `i > j`, row after row.
    squares: Vec<Vec<f64>>,
    /// Lowest cost found so far and its parameters, which a failed line search would lose.
    best: RefCell<(f64, Vec<f64>)>,
    /// Latest evaluation, as the search asks for the cost and the gradient at one point in two calls.
    last: RefCell<Option<(Vec<f64>, CostAndGradient)>>,
}

/// The negative log posterior and its gradient at one point.
#[derive(Clone)]
struct CostAndGradient {
    cost: f64,
    gradient: Vec<f64>,
}

impl<'a> NegativeLogPosterior<'a> {
    fn new(points: &[Vec<f64>], values: &'a [f64], named: &[bool]) -> Self {
        let dimensions = named.len();
        let mut priors = vec![length(dimensions); dimensions];
        priors.extend([AMPLITUDE, NOISE]);
        let middle = priors.iter().map(|prior| prior.middle).collect();
        let pairs = (0..points.len()).flat_map(|i| (0..i).map(move |j| (i, j)));
        let squares = pairs.map(|(i, j)| squares(&points[i], &points[j], named)).collect();
        let best = RefCell::new((f64::INFINITY, middle));
        Self { values, priors, squares, best, last: RefCell::new(None) }
    }

    /// Minimizes the negative log posterior from `start`; stores the result in `best`.
    fn climb(&self, start: &[f64]) {
        let solver = LBFGS::new(MoreThuenteLineSearch::new(), 7).with_tolerance_grad(1e-3);
        let solver = solver.and_then(|solver| solver.with_tolerance_cost(1e-7));
        // A line search that fails ends the search with an error; `best` keeps its result all the same.
        let _found = solver.and_then(|solver| {
            let executor = Executor::new(self, solver).ctrlc(false);
            executor.configure(|state| state.param(start.to_vec()).max_iters(ITERATIONS)).run()
        });
    }

    /// Returns the contribution of the priors to the cost and to its gradient.
    fn prior(&self, logarithms: &[f64]) -> CostAndGradient {
        let away = |(log, prior): (&f64, &LogNormalPrior)| (log - prior.middle) / prior.spread;
        let aways: Vec<f64> = logarithms.iter().zip(&self.priors).map(away).collect();
        let slopes = aways.iter().zip(&self.priors).map(|(away, prior)| away / prior.spread);
        CostAndGradient { cost: 0.5 * dot(&aways, &aways), gradient: slopes.collect() }
    }

    /// Returns the cost and its gradient, which share most of the work. The cost is infinite where the
    /// evidence is undefined.
    fn evaluated(&self, logarithms: &[f64]) -> CostAndGradient {
        if let Some((at, evaluated)) = &*self.last.borrow()
            && at == logarithms
        {
            return evaluated.clone();
        }
        let evaluated = self.evaluate(logarithms);
        *self.last.borrow_mut() = Some((logarithms.to_vec(), evaluated.clone()));
        evaluated
    }

    fn evaluate(&self, logarithms: &[f64]) -> CostAndGradient {
        let prior = self.prior(logarithms);
        let kernel = MaternKernel::of(logarithms);
        let Some(factor) = Cholesky::of(self.matrix(&kernel), self.values.len()) else {
            return CostAndGradient { cost: f64::INFINITY, ..prior };
        };
        let weights = factor.solve(self.values);
        #[expect(clippy::cast_precision_loss, reason = "at most a few hundred places")]
        let constant = self.values.len() as f64 * TAU.ln();
        let misfit = dot(self.values, &weights);
        let cost = prior.cost + 0.5 * (misfit + factor.log_determinant() + constant);
        let slopes = self.slopes(&kernel, &weights, &factor.inverse());
        let gradient = prior.gradient.iter().zip(slopes).map(|(a, b)| a + b).collect();
        self.record_best(cost, logarithms);
        CostAndGradient { cost, gradient }
    }

    /// Returns the lower triangle of the covariance matrix of the measured values.
    fn matrix(&self, kernel: &MaternKernel) -> Vec<f64> {
        let n = self.values.len();
        let mut matrix = vec![0.0; n * n];
        let mut squares = self.squares.iter();
        for i in 0..n {
            for j in 0..i {
                let squares = squares.next().expect("there is one for every pair");
                matrix[i * n + j] = kernel.covariance(kernel.distance(squares));
            }
            matrix[i * n + i] = kernel.covariance(0.0) + kernel.noise;
        }
        matrix
    }

    /// Returns the gradient of the evidence's contribution to the cost: `½·tr((K⁻¹ − w·wᵀ)·∂K)` with the
    /// weights `w = K⁻¹·y`.
    fn slopes(&self, kernel: &MaternKernel, weights: &[f64], inverse: &[f64]) -> Vec<f64> {
        let dimensions = kernel.lengths.len();
        let mut slopes = vec![0.0; dimensions + 2];
        let (mut pair, mut entry) = (0, 0);
        for i in 0..weights.len() {
            for j in 0..i {
                // Factor 2 for the two halves of the matrix.
                let blame = inverse[entry] - weights[i] * weights[j];
                let squares = &self.squares[pair];
                let distance = kernel.distance(squares);
                let slope = -2.0 * blame * kernel.slope(distance);
                for ((sum, length), square) in slopes.iter_mut().zip(&kernel.lengths).zip(squares) {
                    *sum += slope * square / (length * length);
                }
                slopes[dimensions] += blame * kernel.covariance(distance);
                (pair, entry) = (pair + 1, entry + 1);
            }
            let blame = 0.5 * (inverse[entry] - weights[i] * weights[i]);
            slopes[dimensions] += blame * kernel.covariance(0.0);
            slopes[dimensions + 1] += blame * kernel.noise_slope();
            entry += 1;
        }
        slopes
    }

    fn record_best(&self, cost: f64, logarithms: &[f64]) {
        let mut best = self.best.borrow_mut();
        if cost < best.0 {
            *best = (cost, logarithms.to_vec());
        }
    }
}

impl CostFunction for &NegativeLogPosterior<'_> {
    type Param = Vec<f64>;
    type Output = f64;

    fn cost(&self, logarithms: &Vec<f64>) -> Result<f64, Error> {
        Ok(self.evaluated(logarithms).cost)
    }
}

impl Gradient for &NegativeLogPosterior<'_> {
    type Param = Vec<f64>;
    type Gradient = Vec<f64>;

    fn gradient(&self, logarithms: &Vec<f64>) -> Result<Vec<f64>, Error> {
        Ok(self.evaluated(logarithms).gradient)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::sobol::Sobol;
    use dtrain_protocol::shuffle::splitmix64;
    use proptest::prelude::*;

    fn points(count: u32) -> Vec<Vec<f64>> {
        let sobol = Sobol::new(3, 4);
        let named = |mut point: Vec<f64>| {
            point[2] = if point[2] < 0.5 { 0.25 } else { 0.75 };
            point
        };
        (0..count).map(|index| named(sobol.point(index))).collect()
    }

    const NAMED: [bool; 3] = [false, false, true];

    fn wave(point: &[f64]) -> f64 {
        (7.0 * point[0]).sin() + if point[2] < 0.5 { 0.5 } else { -0.5 }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn gradients_are_those_of_finite_differences(
            away in prop::collection::vec(-1.5f64..1.5, 5),
            values in prop::collection::vec(-2.0f64..2.0, 12),
        ) {
            let points = points(12);
            let posterior = NegativeLogPosterior::new(&points, &values, &NAMED);
            let place: Vec<f64> = posterior.priors.iter().zip(&away).map(|(prior, a)| prior.middle + a).collect();
            let gradient = posterior.evaluated(&place).gradient;
            for k in 0..place.len() {
                let at = |step: f64| {
                    let mut moved = place.clone();
                    moved[k] += step;
                    posterior.evaluated(&moved).cost
                };
                let step = 1e-4;
                // A fourth-order difference, so that a step of this length is exact enough.
                let numeric = (8.0 * (at(step) - at(-step)) - at(2.0 * step) + at(-2.0 * step)) / (12.0 * step);
                let allowed = 1e-6 * (1.0 + numeric.abs() + posterior.evaluated(&place).cost.abs());
                prop_assert!((numeric - gradient[k]).abs() < allowed, "{k}: {numeric} {}", gradient[k]);
            }
        }
    }

    #[test]
    fn the_evidence_of_one_value_is_its_density() {
        let posterior = NegativeLogPosterior::new(&[vec![0.5]], &[0.7], &[false]);
        let middle: Vec<f64> = posterior.priors.iter().map(|prior| prior.middle).collect();
        let kernel = MaternKernel::of(&middle);
        let variance = kernel.amplitude + kernel.noise;
        let wanted = 0.5 * (0.7 * 0.7 / variance + variance.ln() + TAU.ln());
        assert!((posterior.evaluated(&middle).cost - wanted).abs() < 1e-12, "the priors cost nothing there");
    }

    #[test]
    fn what_matters_gets_a_short_length_and_what_does_not_a_long_one() {
        let points = points(40);
        let values: Vec<f64> = points.iter().map(|point| wave(point)).collect();
        let kernel = fit(&points, &values, &NAMED);
        assert!(kernel.lengths[0] < 1.2, "{kernel:?}");
        assert!(kernel.lengths[1] > 4.0 * kernel.lengths[0], "{kernel:?}");
        assert!(kernel.noise < 1e-3, "{kernel:?}");
        assert_eq!(kernel, fit(&points, &values, &NAMED), "the same values give the same kernel");
    }

    #[test]
    fn noise_is_told_from_the_function() {
        let points = points(80);
        let jitter = |k| if splitmix64(1, k).is_multiple_of(2) { 0.3 } else { -0.3 };
        let values: Vec<f64> = points.iter().zip(0..).map(|(point, k)| wave(point) + jitter(k)).collect();
        let kernel = fit(&points, &values, &NAMED);
        assert!((0.03..0.3).contains(&kernel.noise), "0.09 was added: {kernel:?}");
    }

    #[test]
    fn a_search_never_ends_worse_than_it_began() {
        let points = points(20);
        for values in [vec![0.0; 20], (0u32..20).map(|k| f64::from(k % 2)).collect::<Vec<_>>()] {
            let posterior = NegativeLogPosterior::new(&points, &values, &NAMED);
            let middle: Vec<f64> = posterior.priors.iter().map(|prior| prior.middle).collect();
            let before = posterior.evaluated(&middle).cost;
            posterior.climb(&middle);
            let (after, _) = *posterior.best.borrow();
            assert!(after < before - 0.1, "{before} {after}");
        }
    }
}

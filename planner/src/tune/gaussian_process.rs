//! Gaussian process regression: predicts the mean and the variance of a function at points not yet evaluated.

use super::kernel::MaternKernel;
use super::kernel_fit;
use crate::linear_algebra::{Cholesky, dot};

/// Highest number of points that a process is fitted to: the cost of fitting grows with its third power.
pub const PLACES_MOST: usize = 150;

/// A Gaussian process conditioned on the values of a function at some points.
#[derive(Clone, Debug)]
pub struct GaussianProcess {
    kernel: MaternKernel,
    named: Vec<bool>,
    points: Vec<Vec<f64>>,
    factor: Cholesky,
    /// Product `K⁻¹·y` of the inverse covariance and the values.
    weights: Vec<f64>,
}

/// Predicted distribution of the function's value at one point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Posterior {
    /// Mean of the function's value.
    pub mean: f64,
    /// Variance of the function's value, positive, without the measurement noise.
    pub variance: f64,
}

impl GaussianProcess {
    /// Fits a process of mean 0 to `values` at `points`, at most [`PLACES_MOST`]; `named` is true for
    /// categorical dimensions.
    pub fn fit(points: Vec<Vec<f64>>, values: &[f64], named: Vec<bool>) -> Self {
        assert_eq!(points.len(), values.len(), "a value for every place");
        assert!(points.len() <= PLACES_MOST, "at most {PLACES_MOST} places");
        let kernel = kernel_fit::fit(&points, values, &named);
        Self::with(kernel, points, values, named)
    }

    /// Builds a process with the given kernel, conditioned on `values` at `points`.
    pub fn with(kernel: MaternKernel, points: Vec<Vec<f64>>, values: &[f64], named: Vec<bool>) -> Self {
        let factor = factorize(&kernel, &points, &named);
        let weights = factor.solve(values);
        Self { kernel, named, points, factor, weights }
    }

    /// Returns the process conditioned on all of `points`, its own and more, with the same kernel; `values`
    /// has one value for each of them.
    pub fn with_more(self, points: Vec<Vec<f64>>, values: &[f64]) -> Self {
        let points = self.points.into_iter().chain(points).collect();
        Self::with(self.kernel, points, values, self.named)
    }

    /// Returns the covariance kernel of the process.
    pub fn kernel(&self) -> &MaternKernel {
        &self.kernel
    }

    /// Returns the points that the process is conditioned on.
    pub fn points(&self) -> &[Vec<f64>] {
        &self.points
    }

    /// Returns the predicted distribution of the function's value at `point`.
    pub fn posterior(&self, point: &[f64]) -> Posterior {
        let covariances: Vec<f64> =
            self.points.iter().map(|seen| covariance(&self.kernel, seen, point, &self.named)).collect();
        let known = self.factor.solve_lower(&covariances);
        // Rounding may make the variance negative at a point that was measured.
        let least = 1e-12 * self.kernel.amplitude;
        let variance = (self.kernel.covariance(0.0) - dot(&known, &known)).max(least);
        Posterior { mean: dot(&covariances, &self.weights), variance }
    }
}

fn covariance(kernel: &MaternKernel, a: &[f64], b: &[f64], named: &[bool]) -> f64 {
    kernel.covariance(kernel.between(a, b, named))
}

/// Returns the Cholesky factor of the covariance of the measurements; adds noise until the matrix is positive
/// definite.
fn factorize(kernel: &MaternKernel, points: &[Vec<f64>], named: &[bool]) -> Cholesky {
    let n = points.len();
    let between = |i: usize, j: usize| match j.cmp(&i) {
        std::cmp::Ordering::Less => covariance(kernel, &points[i], &points[j], named),
        std::cmp::Ordering::Equal => kernel.covariance(0.0) + kernel.noise,
        std::cmp::Ordering::Greater => 0.0,
    };
    let mut matrix: Vec<f64> = (0..n * n).map(|entry| between(entry / n, entry % n)).collect();
    let mut more = 1e-10 * kernel.amplitude;
    for _ in 0..60 {
        if let Some(factor) = Cholesky::of(matrix.clone(), n) {
            return factor;
        }
        for i in 0..n {
            matrix[i * n + i] += more;
        }
        more *= 2.0;
    }
    unreachable!("a diagonal that grows sixty times outweighs everything else")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::sobol::Sobol;

    fn line(count: u32) -> Vec<Vec<f64>> {
        (0..count).map(|k| vec![(f64::from(k) + 0.5) / f64::from(count)]).collect()
    }

    fn smooth(point: &[f64]) -> f64 {
        (5.0 * point[0]).sin() + 0.5 * point.get(1).map_or(0.0, |y| (3.0 * y).cos())
    }

    #[test]
    fn a_process_of_one_value_is_known_in_closed_form() {
        let kernel = MaternKernel { lengths: vec![0.5], amplitude: 2.0, noise: 0.5 };
        let process = GaussianProcess::with(kernel, vec![vec![0.2]], &[3.0], vec![false]);
        let Posterior { mean, variance } = process.posterior(&[0.2]);
        assert!((mean - 2.0 / 2.5 * 3.0).abs() < 1e-12 && (variance - (2.0 - 4.0 / 2.5)).abs() < 1e-12);
        let far = process.posterior(&[1e6]);
        assert!(far.mean.abs() < 1e-12 && (far.variance - 2.0).abs() < 1e-12, "far away nothing is known");
    }

    #[test]
    fn what_was_seen_is_met_and_what_was_not_is_foretold() {
        let sobol = Sobol::new(2, 0);
        let points: Vec<_> = (0..40).map(|index| sobol.point(index)).collect();
        let values: Vec<f64> = points.iter().map(|point| smooth(point)).collect();
        let process = GaussianProcess::fit(points.clone(), &values, vec![false; 2]);
        for (point, value) in points.iter().zip(&values) {
            assert!((process.posterior(point).mean - value).abs() < 0.02, "{point:?}");
        }
        for index in 40..80 {
            let point = sobol.point(index);
            let Posterior { mean, variance } = process.posterior(&point);
            assert!((mean - smooth(&point)).abs() < 0.1, "{point:?}: {mean}");
            assert!(
                (mean - smooth(&point)).abs() < 5.0 * variance.sqrt() + 0.01,
                "{point:?}: {mean} ± {variance}"
            );
        }
    }

    #[test]
    fn more_is_known_near_what_was_seen() {
        let kernel = MaternKernel { lengths: vec![0.2], amplitude: 1.0, noise: 1e-4 };
        let process = GaussianProcess::with(kernel, line(4), &[0.0; 4], vec![false]);
        assert!(process.posterior(&[0.125]).variance < 0.1 * process.posterior(&[0.25]).variance);
        assert!(process.posterior(&[0.25]).variance < process.posterior(&[1.0]).variance);
    }

    #[test]
    fn places_that_were_tried_often_do_no_harm() {
        let points = vec![vec![0.5]; 30];
        let kernel = MaternKernel { lengths: vec![1.0], amplitude: 1.0, noise: 0.0 };
        let process = GaussianProcess::with(kernel, points, &[1.0; 30], vec![false]);
        assert!((process.posterior(&[0.5]).mean - 1.0).abs() < 1e-3);
    }

    #[test]
    fn names_share_what_they_have_in_common() {
        // One function of the first dimension under two names, with more points under the first name.
        let mut points: Vec<Vec<f64>> = line(12).into_iter().map(|p| vec![p[0], 0.25]).collect();
        points.extend(line(3).into_iter().map(|p| vec![p[0], 0.75]));
        let values: Vec<f64> = points.iter().map(|p| smooth(&p[..1]) + p[1]).collect();
        let process = GaussianProcess::fit(points, &values, vec![false, true]);
        let wanted = smooth(&[0.3]) + 0.75;
        assert!(
            (process.posterior(&[0.3, 0.75]).mean - wanted).abs() < 0.25,
            "{:?}",
            process.posterior(&[0.3, 0.75])
        );
    }
}

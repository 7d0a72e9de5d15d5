//! The covariance kernel of the Gaussian process: Matérn with smoothness 5/2 and one length scale for each
//! dimension.

/// Parameters of the Matérn covariance kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct MaternKernel {
    /// Length scale of each dimension, in widths of the unit cube.
    pub lengths: Vec<f64>,
    /// Variance of the function, without noise.
    pub amplitude: f64,
    /// Variance of the measurement noise.
    pub noise: f64,
}

/// Lowest variance of the noise of standardized values, which keeps matrices positive definite.
const NOISE_LEAST: f64 = 1e-6;

impl MaternKernel {
    /// Builds the kernel from the logarithms of its parameters: the lengths, then the amplitude, then the
    /// noise.
    pub fn of(logarithms: &[f64]) -> Self {
        let (lengths, [amplitude, noise]) = logarithms.split_last_chunk().expect("two follow the lengths");
        Self {
            lengths: lengths.iter().map(|log| log.exp()).collect(),
            amplitude: amplitude.exp(),
            noise: NOISE_LEAST + noise.exp(),
        }
    }

    /// Returns the derivative of the noise variance with respect to its logarithm.
    pub fn noise_slope(&self) -> f64 {
        self.noise - NOISE_LEAST
    }

    /// Returns the squared distance of two points in length scales, from the `squares` of their coordinate
    /// differences.
    pub fn distance(&self, squares: &[f64]) -> f64 {
        self.lengths.iter().zip(squares).map(|(length, square)| square / (length * length)).sum()
    }

    /// Returns the squared distance of the points `a` and `b` in length scales; equals `distance` of their
    /// [`squares`], without allocating.
    pub fn between(&self, a: &[f64], b: &[f64], named: &[bool]) -> f64 {
        let pairs = a.iter().zip(b).zip(named).zip(&self.lengths);
        pairs.map(|(((a, b), named), length)| square(*a, *b, *named) / (length * length)).sum()
    }

    /// Returns the covariance of two points whose squared distance, in length scales, is `distance`.
    pub fn covariance(&self, distance: f64) -> f64 {
        let root = (5.0 * distance).sqrt();
        self.amplitude * (1.0 + root + 5.0 / 3.0 * distance) * (-root).exp()
    }

    /// Returns the derivative of the covariance with respect to the squared distance; it is finite at
    /// distance 0 too.
    pub fn slope(&self, distance: f64) -> f64 {
        let root = (5.0 * distance).sqrt();
        -5.0 / 6.0 * self.amplitude * (1.0 + root) * (-root).exp()
    }
}

/// Returns the squared coordinate differences of the points `a` and `b`; two different names are 1 apart.
pub fn squares(a: &[f64], b: &[f64], named: &[bool]) -> Vec<f64> {
    a.iter().zip(b).zip(named).map(|((a, b), named)| square(*a, *b, *named)).collect()
}

fn square(a: f64, b: f64, named: bool) -> f64 {
    match named {
        true if cells_differ(a, b) => 1.0,
        true => 0.0,
        false => (a - b) * (a - b),
    }
}

/// Returns `true` if two coordinates of a categorical dimension, each in the middle of its cell, are in
/// different cells.
fn cells_differ(a: f64, b: f64) -> bool {
    (a - b).abs() > 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covariance_falls_from_the_amplitude_with_the_slope_it_says() {
        let kernel = MaternKernel::of(&[0.5f64.ln(), 2.0f64.ln(), 1e-3f64.ln()]);
        assert!((kernel.covariance(0.0) - 2.0).abs() < 1e-12);
        // Computed with 30 digits: at r = 1 the correlation is (1 + √5 + 5/3)·e^(−√5).
        assert!((kernel.covariance(1.0) / 2.0 - 0.523_994_108_831_820_3).abs() < 1e-12);
        for distance in [0.01, 0.3, 1.0, 9.0] {
            let step = 1e-6;
            let numeric =
                (kernel.covariance(distance + step) - kernel.covariance(distance - step)) / (2.0 * step);
            assert!((numeric - kernel.slope(distance)).abs() < 1e-7, "{distance}");
        }
    }

    #[test]
    fn names_are_all_equally_far() {
        let squares = squares(&[0.1, 0.1], &[0.5, 0.9], &[false, true]);
        assert!((squares[0] - 0.16).abs() < 1e-12 && (squares[1] - 1.0).abs() < 1e-12);
        let kernel = MaternKernel::of(&[0.5f64.ln(), 2.0f64.ln(), 0.0, 0.0]);
        let between = kernel.between(&[0.1, 0.1], &[0.5, 0.9], &[false, true]);
        assert!((between - kernel.distance(&squares)).abs() < 1e-12);
    }
}

//! Calibrates estimates to a site: one correction factor from a few measured steps on its cluster.

/// A correction factor for estimated step times, with its uncertainty.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SiteCalibration {
    /// Factor by which estimated step times are multiplied.
    pub factor: f64,
    /// Share of an estimate's own standard deviation that remains after the correction.
    pub left: f64,
    /// Standard deviation of the logarithm of the factor.
    pub doubt: f64,
}

impl SiteCalibration {
    /// No correction, as without measurements.
    pub const NONE: Self = Self { factor: 1.0, left: 1.0, doubt: 0.0 };

    /// Computes the correction from pairs of `ln(measured / estimated)` and its standard deviation: a robust
    /// mean (Huber) with shrinkage (James-Stein), so that a correction smaller than its own error is not
    /// made.
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        if pairs.is_empty() {
            return Self::NONE;
        }
        let ratios: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
        let doubts: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
        let middle = median(&ratios);
        let apart: Vec<f64> = ratios.iter().map(|ratio| (ratio - middle).abs()).collect();
        let spread = (1.4826 * median(&apart)).max(0.5 * median(&doubts));
        let mean = robust(&ratios, middle, spread);
        #[expect(clippy::cast_precision_loss, reason = "a handful")]
        let error = spread * spread / ratios.len() as f64;
        let worth = (1.0 - 2.0 * error / (mean * mean).max(1e-12)).max(0.0);
        Self { factor: (mean * worth).exp(), left: 0.7, doubt: error.sqrt() }
    }

    /// Returns the standard deviation of an estimate after the correction, from its `own` before.
    pub fn corrected_deviation(&self, own: f64) -> f64 {
        if *self == Self::NONE { own } else { (self.left * own).hypot(self.doubt) }
    }
}

/// Returns Huber's robust mean of `values`, iterated from `start`, for deviations of scale `spread`.
fn robust(values: &[f64], start: f64, spread: f64) -> f64 {
    (0..20).fold(start, |mean, _| {
        let weight = |value: f64| (1.5 * spread / (value - mean).abs().max(1e-9)).min(1.0);
        let (sum, weights) = values
            .iter()
            .fold((0.0, 0.0), |(sum, all), value| (sum + weight(*value) * value, all + weight(*value)));
        sum / weights
    })
}

/// Returns the median of `values`: the mean of the two middle ones if their count is even, 0 if there are
/// none.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (n, half) = (sorted.len(), sorted.len() / 2);
    match n {
        0 => 0.0,
        _ if n % 2 == 1 => sorted[half],
        _ => 0.5 * (sorted[half - 1] + sorted[half]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clear_difference_is_corrected_and_noise_is_not() {
        let slow: Vec<_> = (0..8).map(|i| (0.2 + 0.01 * f64::from(i % 3), 0.06)).collect();
        let site = SiteCalibration::of(&slow);
        assert!((site.factor.ln() - 0.21).abs() < 0.02, "{site:?}");
        let noise: Vec<_> = [0.05, -0.06, 0.04, -0.03, 0.01, -0.05, 0.06, -0.01].map(|r| (r, 0.06)).to_vec();
        assert!(SiteCalibration::of(&noise).factor.ln().abs() < 1e-3, "{:?}", SiteCalibration::of(&noise));
        assert_eq!(SiteCalibration::of(&[]), SiteCalibration::NONE);
    }

    #[test]
    fn one_wild_measurement_among_eight_moves_little() {
        let mut pairs: Vec<_> = (0..7).map(|_| (0.1, 0.05)).collect();
        pairs.push((2.0, 0.05));
        assert!(
            (SiteCalibration::of(&pairs).factor.ln() - 0.1).abs() < 0.03,
            "{:?}",
            SiteCalibration::of(&pairs)
        );
    }
}

//! Gradient noise scale: the batch size above which more samples help little.

use super::{BoxError, MetricSample, points};
use dtrain_protocol::Rank;
use rusqlite::Connection;
use serde::{Deserialize, Serialize};

/// Key of the series with the gradient's signal, from which the noise scale is estimated.
pub(super) const SIGNAL: &str = "gradient_signal";
pub(super) const NOISE: &str = "gradient_noise";

/// Fewest steps from which the noise scale is estimated.
const FEWEST: usize = 20;

/// Number of jackknife parts: each is left out once to estimate the error.
const PARTS: usize = 10;

/// Noise scale: the batch size at which half of the gradient is chance (McCandlish et al. 2018), over the
/// second half of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    /// Estimate of the noise scale, in samples.
    pub samples: f64,
    /// Lower bound in samples: the estimate minus two standard errors, at least 0.
    pub low: f64,
    /// Upper bound in samples: the estimate plus two standard errors.
    pub high: f64,
    /// Number of steps that the estimate is computed from.
    pub steps: u64,
}

/// Returns the noise scale of a trial; `None` if the trial measured too little, or there is only noise.
pub(super) fn of_trial(database: &Connection, trial: i64) -> Result<Option<NoiseScale>, BoxError> {
    let signal = points::joined_attempts(database, trial, SIGNAL, Rank(0))?;
    let noise = points::joined_attempts(database, trial, NOISE, Rank(0))?;
    Ok(estimate(&signal, &noise))
}

/// Estimates the noise scale as the ratio of the summed noise to the summed signal, as a mean of ratios would
/// be biased; its error is from the jackknife.
fn estimate(signal: &[MetricSample], noise: &[MetricSample]) -> Option<NoiseScale> {
    let pairs = signal.iter().zip(noise).map(|(signal, noise)| (signal.value, noise.value));
    let pairs: Vec<_> = pairs.filter(|(signal, noise)| signal.is_finite() && noise.is_finite()).collect();
    let late = &pairs[pairs.len() / 2..];
    if late.len() < FEWEST {
        return None;
    }
    let sums =
        |part: &[(f64, f64)]| part.iter().fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
    let ratio = |(signal, noise): (f64, f64)| (signal > 0.0 && noise > 0.0).then_some(noise / signal);
    let all = sums(late);
    let samples = ratio(all)?;
    let without = late.chunks(late.len().div_ceil(PARTS)).map(|part| {
        let part = sums(part);
        ratio((all.0 - part.0, all.1 - part.1))
    });
    let without = without.collect::<Option<Vec<_>>>()?;
    let count = without.len() as f64;
    let mean = without.iter().sum::<f64>() / count;
    let squares: f64 = without.iter().map(|value| (value - mean).powi(2)).sum();
    let error = ((count - 1.0) / count * squares).sqrt();
    Some(NoiseScale {
        samples,
        low: (samples - 2.0 * error).max(0.0),
        high: samples + 2.0 * error,
        steps: late.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(values: impl Iterator<Item = f64>) -> Vec<MetricSample> {
        let sample = |(step, value)| MetricSample { step: step as u64, at_ms: 0, value };
        values.enumerate().map(sample).collect()
    }

    #[test]
    fn the_second_half_counts_and_its_spread_is_told() {
        let swing = |step: usize| if step.is_multiple_of(2) { 1.0 } else { -1.0 };
        let signal = series((0..200).map(|step| if step < 100 { 100.0 } else { 2.0 + swing(step / 10) }));
        let noise = series((0..200).map(|step| 60.0 + swing(step)));
        let found = estimate(&signal, &noise).expect("there is enough");
        assert_eq!((found.samples, found.steps), (30.0, 100));
        // Ten parts of 10 steps each, with a signal of 1 or 3: their mean has an error of 1/3.
        assert!((found.high - found.low) / 4.0 > 4.5 && (found.high - found.low) / 4.0 < 5.5, "{found:?}");
        assert_eq!(estimate(&signal[..38], &noise[..38]), None, "too few");
    }

    #[test]
    fn where_chance_is_all_there_is_no_scale() {
        let all = |value: f64| series(std::iter::repeat_n(value, 60));
        assert_eq!(estimate(&all(-1.0), &all(5.0)), None);
        assert_eq!(estimate(&all(1.0), &all(-5.0)), None);
        assert_eq!(estimate(&[], &[]), None);
    }
}

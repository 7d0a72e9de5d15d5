//! Corrects the recommended learning rate by optima that studies have measured.

use super::decision::Decision;
use super::learning_rate::round;
use serde::{Deserialize, Serialize};

/// Measured error of the recommended learning rate at one batch size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Samples of one optimizer step.
    pub batch: u64,
    /// Best measured learning rate, divided by the one recommended for the same batch and tokens.
    pub ratio: f64,
    /// Name of the study that measured the learning rate.
    pub study: String,
}

/// Multiplies a recommended learning rate by the measured ratio: that of the nearest measured batch, or
/// between two batches the geometric interpolation over the logarithm of the batch. Of several studies at one
/// batch the last counts.
pub fn apply_corrections(
    recommended: Decision<f64>,
    batch: u64,
    corrections: &[Correction],
) -> Decision<f64> {
    let mut known: Vec<&Correction> =
        corrections.iter().filter(|one| one.ratio > 0.0 && one.batch > 0).collect();
    // A stable sort: the last study of a batch stays the last.
    known.sort_by_key(|one| one.batch);
    known.reverse();
    known.dedup_by_key(|one| one.batch);
    known.reverse();
    let above = known.iter().find(|one| one.batch >= batch);
    let below = known.iter().rev().find(|one| one.batch <= batch);
    let (ratio, nearest) = match (below, above) {
        (None, None) => return recommended,
        (Some(one), None) | (None, Some(one)) => (one.ratio, one),
        (Some(low), Some(high)) if low.batch == high.batch => (low.ratio, low),
        (Some(low), Some(high)) => {
            let log = |count: u64| log(count);
            let share = (log(batch) - log(low.batch)) / (log(high.batch) - log(low.batch));
            let ratio = (low.ratio.ln() * (1.0 - share) + high.ratio.ln() * share).exp();
            (ratio, if share < 0.5 { low } else { high })
        }
    };
    let scaled = |rate: f64| round(rate * ratio);
    let Decision { value, low, high, reason } = recommended;
    let reason = format!(
        "times {ratio:.2}, as the study {} found at a batch of {}; {reason}",
        nearest.study, nearest.batch
    );
    Decision { value: scaled(value), low: scaled(low), high: scaled(high), reason }
}

#[expect(clippy::cast_precision_loss, reason = "batches are far below 2^52")]
fn log(count: u64) -> f64 {
    (count as f64).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule() -> Decision<f64> {
        Decision { value: 1e-3, low: 3.3e-4, high: 3e-3, reason: "a rule".into() }
    }

    fn measured(batch: u64, ratio: f64, study: &str) -> Correction {
        Correction { batch, ratio, study: study.into() }
    }

    #[test]
    fn nothing_measured_changes_nothing() {
        assert_eq!(apply_corrections(rule(), 32, &[]), rule());
    }

    #[test]
    fn one_measured_batch_corrects_all_batches() {
        let found = apply_corrections(rule(), 512, &[measured(32, 2.0, "s")]);
        assert_eq!((found.value, found.low, found.high), (2e-3, 6.6e-4, 6e-3));
        assert!(found.reason.contains("study s") && found.reason.ends_with("a rule"), "{}", found.reason);
    }

    #[test]
    fn between_two_batches_the_correction_is_interpolated() {
        let all = [measured(64, 4.0, "b"), measured(16, 1.0, "a")];
        for (batch, ratio) in [(8, 1.0), (16, 1.0), (32, 2.0), (64, 4.0), (256, 4.0)] {
            let found = apply_corrections(rule(), batch, &all);
            assert!((found.value / 1e-3 / ratio - 1.0).abs() < 0.02, "{batch}: {found:?}");
        }
    }

    #[test]
    fn the_newest_study_of_a_batch_counts() {
        let found = apply_corrections(rule(), 16, &[measured(16, 3.0, "old"), measured(16, 0.5, "new")]);
        assert_eq!(found.value, 5e-4);
        assert!(found.reason.contains("study new"));
    }
}

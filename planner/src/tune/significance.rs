//! Paired t-test, which tells if one setting is better than another from trials of both with the same seeds.
//!
//! Trials with the same seed have the same initial weights and data order, so their difference has less noise
//! than either of them.

use super::outcome::TrialOutcome;
use serde::{Deserialize, Serialize};

/// Result of a paired t-test of two settings, where each pair of trials has the same seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedTest {
    /// Number of pairs in which both trials have a cost.
    pub pairs: usize,
    /// Mean cost of the first setting minus that of the second; 0 without pairs.
    pub difference: f64,
    /// Half-width of the 90 % confidence interval of the difference (Student's t); `None` for fewer than two
    /// pairs.
    pub margin: Option<f64>,
    /// Numbers of trials that failed: with the first setting, and with the second.
    pub failed: (usize, usize),
    /// The better of the two settings, if the test tells one.
    pub verdict: BetterSetting,
}

/// The better of two settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BetterSetting {
    /// The first setting is better.
    First,
    /// The second setting is better.
    Second,
    /// The test tells neither: the confidence interval contains 0, or there are too few pairs for one.
    NotDistinguishable,
}

impl PairedTest {
    /// Compares two settings, from `pairs` of results with the same seed: of the first setting, and of the
    /// second.
    ///
    /// A setting that fails with more seeds than the other is worse. Otherwise the costs of complete pairs
    /// decide.
    pub fn of(pairs: &[(TrialOutcome, TrialOutcome)]) -> Self {
        let has_failed =
            |outcome: &TrialOutcome| !matches!(outcome, TrialOutcome::Done { value } if value.is_finite());
        let failed = (
            pairs.iter().filter(|(first, _)| has_failed(first)).count(),
            pairs.iter().filter(|(_, second)| has_failed(second)).count(),
        );
        let differences: Vec<f64> = pairs
            .iter()
            .filter_map(|pair| match pair {
                (TrialOutcome::Done { value: first }, TrialOutcome::Done { value: second }) => {
                    Some(first - second)
                }
                _ => None,
            })
            .filter(|difference| difference.is_finite())
            .collect();
        let (difference, margin) = confidence_interval(&differences);
        let verdict = match (failed.0.cmp(&failed.1), margin) {
            (std::cmp::Ordering::Greater, _) => BetterSetting::Second,
            (std::cmp::Ordering::Less, _) => BetterSetting::First,
            (_, Some(margin)) if difference < -margin => BetterSetting::First,
            (_, Some(margin)) if difference > margin => BetterSetting::Second,
            _ => BetterSetting::NotDistinguishable,
        };
        Self { pairs: differences.len(), difference, margin, failed, verdict }
    }

    /// Returns `true` if the first setting is better, or not distinguishable and cheaper on average.
    pub fn prefers_first(&self) -> bool {
        match self.verdict {
            BetterSetting::First => true,
            BetterSetting::Second => false,
            BetterSetting::NotDistinguishable => self.difference <= 0.0,
        }
    }
}

/// Returns the mean of `differences`, 0 if there are none, and the half-width of its 90 % confidence
/// interval, `None` if there are fewer than two.
#[expect(clippy::cast_precision_loss, reason = "a few pairs")]
pub fn confidence_interval(differences: &[f64]) -> (f64, Option<f64>) {
    let count = differences.len();
    if count == 0 {
        return (0.0, None);
    }
    let mean = differences.iter().sum::<f64>() / count as f64;
    let margin = (count > 1).then(|| {
        let squares: f64 = differences.iter().map(|one| (one - mean).powi(2)).sum();
        let deviation = (squares / (count - 1) as f64).sqrt();
        student_t_quantile(count - 1) * deviation / (count as f64).sqrt()
    });
    (mean, margin)
}

/// Returns the 95 % quantile of Student's t distribution with `freedom` degrees of freedom.
fn student_t_quantile(freedom: usize) -> f64 {
    const FIRST: [f64; 10] = [6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812];
    const NORMAL: f64 = 1.6449;
    match FIRST.get(freedom - 1) {
        Some(quantile) => *quantile,
        // The expansion of Abramowitz and Stegun 1964, equation 26.7.5, to its second term.
        None => {
            #[expect(clippy::cast_precision_loss, reason = "a few pairs")]
            let freedom = freedom as f64;
            let cubic = (NORMAL.powi(3) + NORMAL) / 4.0;
            let fifth = (5.0 * NORMAL.powi(5) + 16.0 * NORMAL.powi(3) + 3.0 * NORMAL) / 96.0;
            NORMAL + cubic / freedom + fifth / (freedom * freedom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::TrialFailure;

    fn pairs(costs: &[(f64, f64)]) -> Vec<(TrialOutcome, TrialOutcome)> {
        costs
            .iter()
            .map(|(first, second)| (TrialOutcome::done(*first), TrialOutcome::done(*second)))
            .collect()
    }

    #[test]
    fn a_difference_beyond_its_interval_is_one() {
        // Means 1 apart, deviation of the difference 0.1: 2.920·0.1/√3 = 0.169.
        let found = PairedTest::of(&pairs(&[(1.0, 2.0), (3.1, 4.0), (2.0, 3.1)]));
        assert!((found.difference + 1.0).abs() < 1e-12);
        assert!((found.margin.expect("three pairs") - 2.920 * 0.1 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!((found.pairs, found.verdict), (3, BetterSetting::First));
        let turned = PairedTest::of(&pairs(&[(2.0, 1.0), (4.0, 3.1), (3.1, 2.0)]));
        assert_eq!(turned.verdict, BetterSetting::Second);
        assert!(found.prefers_first() && !turned.prefers_first());
    }

    #[test]
    fn noise_is_not_distinguishable() {
        let found = PairedTest::of(&pairs(&[(1.0, 2.0), (2.0, 1.0), (1.4, 1.5)]));
        assert_eq!(found.verdict, BetterSetting::NotDistinguishable);
        assert!(found.prefers_first(), "it costs less on average: {found:?}");
        let single = PairedTest::of(&pairs(&[(1.0, 2.0)]));
        assert_eq!((single.margin, single.verdict), (None, BetterSetting::NotDistinguishable));
        assert_eq!(PairedTest::of(&[]).verdict, BetterSetting::NotDistinguishable);
    }

    #[test]
    fn a_setting_that_fails_more_often_is_worse_whatever_the_others_cost() {
        let mut both = pairs(&[(1.0, 2.0), (1.1, 2.1)]);
        both.push((TrialOutcome::Failed { reason: TrialFailure::Diverged }, TrialOutcome::done(2.0)));
        let found = PairedTest::of(&both);
        assert_eq!((found.pairs, found.failed, found.verdict), (2, (1, 0), BetterSetting::Second));
    }

    #[test]
    fn quantiles_are_those_of_the_tables() {
        for (freedom, wanted) in [(1, 6.314), (4, 2.132), (15, 1.753), (30, 1.697), (120, 1.658)] {
            assert!(
                (student_t_quantile(freedom) - wanted).abs() < 2e-3,
                "{freedom}: {}",
                student_t_quantile(freedom)
            );
        }
    }
}

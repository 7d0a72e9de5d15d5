//! Series of one metric's values in bounded memory.

/// Maximum number of points kept; beyond it, every other point is dropped.
const MOST: usize = 4096;

/// Values of a metric by step: the latest exactly, older ones thinned evenly.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ThinnedSeries {
    points: Vec<(u64, f64)>,
    /// Exponent of thinning: one of `1 << thinned` points is kept.
    thinned: u32,
    /// Number of points since the last one that was kept, including the newest.
    passed: u64,
    newest: Option<(u64, f64)>,
}

impl ThinnedSeries {
    /// Adds a point. A step that is not new replaces that step and all later points: training restarted from
    /// a checkpoint.
    pub(crate) fn push(&mut self, step: u64, value: f64) {
        if self.newest.is_some_and(|(newest, _)| step <= newest) {
            let kept = self.points.partition_point(|(known, _)| *known < step);
            self.points.truncate(kept);
            self.passed = 0;
        }
        self.newest = Some((step, value));
        self.passed += 1;
        if self.passed < 1 << self.thinned && !self.points.is_empty() {
            return;
        }
        self.passed = 0;
        self.points.push((step, value));
        if self.points.len() > MOST {
            let mut is_kept = false;
            self.points.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.thinned += 1;
        }
    }

    /// Returns the latest step and its value; `None` if there is none.
    pub(crate) fn newest(&self) -> Option<(u64, f64)> {
        self.newest
    }

    /// Returns step and value of all kept points and of the latest, by step.
    pub(crate) fn points(&self) -> impl Iterator<Item = (u64, f64)> {
        let last = self.points.last().map(|(step, _)| *step);
        let newest = self.newest.filter(|(step, _)| Some(*step) != last);
        self.points.iter().copied().chain(newest)
    }

    /// Returns the first and the last step; `None` without points.
    pub(crate) fn steps(&self) -> Option<(u64, u64)> {
        Some((self.points.first()?.0, self.newest?.0))
    }

    /// Returns the means over `count` equal parts of the range `steps`; `None` for a part without points.
    pub(crate) fn means(&self, steps: (u64, u64), count: usize) -> Vec<Option<f64>> {
        #![expect(clippy::cast_precision_loss, reason = "a drawing")]
        let mut sums = vec![(0.0, 0u32); count];
        let span = (steps.1.saturating_sub(steps.0) + 1) as f64;
        for (step, value) in self.points().filter(|(step, value)| *step >= steps.0 && value.is_finite()) {
            let share = (step - steps.0) as f64 / span;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of a few columns"
            )]
            let at = (share * count as f64) as usize;
            if let Some(sum) = sums.get_mut(at) {
                *sum = (sum.0 + value, sum.1 + 1);
            }
        }
        sums.into_iter().map(|(sum, many)| (many > 0).then(|| sum / f64::from(many))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_is_thinned_evenly_and_keeps_its_newest_point() {
        let mut series = ThinnedSeries::default();
        for step in 1..=1_000_000u64 {
            series.push(step, step as f64);
        }
        let points: Vec<_> = series.points().collect();
        assert!((MOST / 2..=MOST + 1).contains(&points.len()), "{}", points.len());
        assert_eq!(points.last(), Some(&(1_000_000, 1e6)));
        let gaps: Vec<u64> = points.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let (least, most) = (gaps.iter().min(), gaps[..gaps.len() - 1].iter().max());
        assert!(most <= Some(&512) && least > Some(&0), "{least:?} {most:?}");
        let means = series.means((1, 1_000_000), 4);
        assert!(
            means
                .iter()
                .flatten()
                .zip([125e3, 375e3, 625e3, 875e3])
                .all(|(mean, at)| (mean - at).abs() < 2e3)
        );
    }

    #[test]
    fn steps_that_are_trained_again_replace_the_old_ones() {
        let mut series = ThinnedSeries::default();
        for step in 1..=20 {
            series.push(step, 1.0);
        }
        series.push(11, 2.0);
        assert_eq!(series.newest(), Some((11, 2.0)));
        assert_eq!(series.points().count(), 11);
        assert_eq!(series.steps(), Some((1, 11)));
    }
}

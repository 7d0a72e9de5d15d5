//! Reduces curves to few points, for small drawings.

use crate::ledger::MetricSample;

/// Returns the mean of the finite points in each of `count` equal parts of a range of steps (both ends
/// included); `None` for a part without any.
pub fn buckets(samples: &[MetricSample], (first, last): (u64, u64), count: usize) -> Vec<Option<f64>> {
    let mut sums = vec![(0.0, 0u64); count];
    let span = u128::from(last.saturating_sub(first)) + 1;
    for sample in samples.iter().filter(|sample| sample.value.is_finite()) {
        if sample.step < first || sample.step > last {
            continue;
        }
        let place = u128::from(sample.step - first) * count as u128 / span;
        if let Some((sum, points)) = usize::try_from(place).ok().and_then(|place| sums.get_mut(place)) {
            *sum += sample.value;
            *points += 1;
        }
    }
    sums.into_iter().map(|(sum, points)| (points > 0).then(|| sum / points as f64)).collect()
}

/// Returns the trailing moving average of a series over `window` points. Points that are not finite are left
/// out.
pub fn smoothed(samples: &[MetricSample], window: usize) -> Vec<MetricSample> {
    let finite: Vec<_> = samples.iter().filter(|sample| sample.value.is_finite()).collect();
    let window = window.max(1);
    (0..finite.len())
        .map(|end| {
            let part = &finite[end.saturating_sub(window - 1)..=end];
            let mean = part.iter().map(|sample| sample.value).sum::<f64>() / part.len() as f64;
            MetricSample { value: mean, ..*finite[end] }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Vec<MetricSample> {
        values
            .iter()
            .enumerate()
            .map(|(i, value)| MetricSample { step: i as u64 + 1, at_ms: 0, value: *value })
            .collect()
    }

    #[test]
    fn a_bucket_is_the_mean_of_its_finite_points() {
        let all = samples(&[1.0, 3.0, f64::NAN, 5.0, 7.0, 9.0]);
        assert_eq!(buckets(&all, (1, 6), 3), [Some(2.0), Some(5.0), Some(8.0)]);
        assert_eq!(buckets(&all, (1, 12), 3), [Some(3.0), Some(8.0), None]);
        assert_eq!(buckets(&all, (2, 2), 2), [Some(3.0), None]);
        assert_eq!(buckets(&all, (0, u64::MAX), 2), [Some(5.0), None]);
    }

    #[test]
    fn smoothing_looks_back_only() {
        let smooth: Vec<_> =
            smoothed(&samples(&[4.0, 2.0, f64::INFINITY, 0.0]), 2).iter().map(|s| s.value).collect();
        assert_eq!(smooth, [4.0, 3.0, 1.0]);
    }
}

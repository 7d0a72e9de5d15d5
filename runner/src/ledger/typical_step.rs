//! Typical step of a trial: its duration, and the time of each phase.

use super::{BoxError, History, MetricSample, lookup, points};
use crate::fact::LedgerError;
use dtrain_protocol::{PhaseTimes, Rank, TrialId};
use rusqlite::Connection;
use std::collections::BTreeMap;

/// Most ranks whose typical step is computed, spread evenly over all.
const RANKS_MOST: usize = 64;

/// Times of a typical step of one rank. The phases add up to the step, as far as the rank measures them.
#[derive(Clone, Debug, PartialEq)]
pub struct TypicalStep {
    /// Rank that the times belong to.
    pub rank: Rank,
    /// Means over the typical steps of the rank, in seconds.
    pub times: PhaseTimes,
}

/// Returns the number of warm-up points at the beginning of a series: a fifth of them, at most ten.
pub(super) fn warm_up(samples: &[MetricSample]) -> usize {
    (samples.len() / 5).min(10)
}

/// Returns the typical points of a series: without warm-up, the middle fifth of the finite values. Their mean
/// is close to the median, and means of other series over the same steps are consistent with it.
pub(super) fn typical(samples: &[MetricSample]) -> Vec<MetricSample> {
    let mut sorted: Vec<_> =
        samples[warm_up(samples)..].iter().filter(|sample| sample.value.is_finite()).copied().collect();
    sorted.sort_by(|a, b| a.value.total_cmp(&b.value));
    let left_out = if sorted.len() < 5 { sorted.len().saturating_sub(1) / 2 } else { sorted.len() * 2 / 5 };
    sorted[left_out..sorted.len() - left_out].to_vec()
}

/// Returns the mean of the values; `None` if there are none.
#[expect(clippy::cast_precision_loss, reason = "a trial has fewer than 2^52 steps")]
pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

impl History {
    /// Returns a typical step of each rank that reports step times, ordered by rank.
    pub fn typical_steps(&self, trial: &TrialId) -> Result<Vec<TypicalStep>, LedgerError> {
        self.read("read figures from", |database| {
            let trial = lookup::row_of(database, trial)?;
            let ranks = points::ranks(database, trial, "step_seconds")?;
            let every = ranks.len().div_ceil(RANKS_MOST).max(1);
            let found = ranks.into_iter().step_by(every).map(|rank| of_rank(database, trial, rank));
            found.filter_map(Result::transpose).collect()
        })
    }
}

/// Returns a typical step of a rank; `None` if it reports no step times.
fn of_rank(database: &Connection, trial: i64, rank: Rank) -> Result<Option<TypicalStep>, BoxError> {
    let steps = typical(&points::joined_attempts(database, trial, "step_seconds", rank)?);
    let Some(step) = mean(&steps.iter().map(|step| step.value).collect::<Vec<_>>()) else { return Ok(None) };
    let phase = |key: &str| -> Result<f64, BoxError> {
        let all: BTreeMap<u64, f64> = points::joined_attempts(database, trial, key, rank)?
            .into_iter()
            .map(|sample| (sample.step, sample.value))
            .collect();
        let values: Vec<f64> = steps.iter().filter_map(|step| all.get(&step.step).copied()).collect();
        Ok(mean(&values).unwrap_or_default())
    };
    let times = PhaseTimes {
        step,
        data: phase("data_seconds")?,
        forward: phase("forward_seconds")?,
        backward: phase("backward_seconds")?,
        communication: phase("communication_seconds")?,
        bubble: phase("bubble_seconds")?,
        optimizer: phase("optimizer_seconds")?,
    };
    Ok(Some(TypicalStep { rank, times }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(all: &[f64]) -> Vec<f64> {
        let samples: Vec<_> =
            (1..).zip(all).map(|(step, value)| MetricSample { step, at_ms: 0, value: *value }).collect();
        typical(&samples).iter().map(|sample| sample.value).collect()
    }

    #[test]
    fn the_middle_is_typical_whatever_lies_at_the_ends() {
        assert_eq!(values(&[]), [0.0; 0]);
        assert_eq!(values(&[2.0]), [2.0]);
        assert_eq!(values(&[2.0, 9.0]), [2.0, 9.0]);
        assert_eq!(values(&[9.0, 2.0, 3.0]), [3.0]);
        assert_eq!(values(&[f64::NAN, 2.0, f64::INFINITY]), [2.0]);
        // The first two are warm-up; of the other ten, four at each end are left out.
        let mut ten = vec![700.0, 900.0, 1.0, 1.1, 1.2, 80.0, 1.3, 90.0, 1.15, 1.25, 60.0, 1.05];
        assert_eq!(values(&ten), [1.2, 1.25]);
        ten.reverse();
        assert!(values(&ten).iter().all(|value| *value < 100.0), "{:?}", values(&ten));
    }
}

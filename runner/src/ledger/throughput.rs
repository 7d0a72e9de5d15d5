//! Throughput of a trial: its typical step time and its tokens per second, as measured.

use super::{BoxError, History, MetricSample, lookup, points, typical_step};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use rusqlite::{Connection, Transaction, params};
use serde::{Deserialize, Serialize};

/// Typical value of a series, with its spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MedianWithSpread {
    /// Median of the values, or mean of the values next to it.
    pub typical: f64,
    /// Median absolute deviation of the values.
    pub spread: f64,
}

impl MedianWithSpread {
    /// Returns the median and the spread of the finite `values`; `None` if there are none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<_> = values.into_iter().filter(|value| value.is_finite()).collect();
        let median = median_or_mean(values.clone())?;
        Self::with_spread(median, values)
    }

    /// Returns the typical value and the spread of a series: the mean of its typical points, which
    /// [`TypicalStep`](super::TypicalStep) uses too.
    pub fn steady(samples: &[MetricSample]) -> Option<Self> {
        let values = |samples: &[MetricSample]| -> Vec<f64> {
            samples.iter().map(|sample| sample.value).filter(|value| value.is_finite()).collect()
        };
        let middle = typical_step::mean(&values(&typical_step::typical(samples)))?;
        Self::with_spread(middle, values(&samples[typical_step::warm_up(samples)..]))
    }

    fn with_spread(typical: f64, values: Vec<f64>) -> Option<Self> {
        let spread = median_or_mean(values.into_iter().map(|value| (value - typical).abs()).collect())?;
        Some(Self { typical, spread })
    }
}

/// Returns the median of the values; of an even number the mean of the two in the middle.
fn median_or_mean(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    Some(if values.len().is_multiple_of(2) { f64::midpoint(values[half - 1], upper) } else { upper })
}

/// Updates the step time and the throughput in the row of a trial from its steps so far.
pub(super) fn update_throughput(transaction: &Transaction<'_>, trial: i64) -> Result<(), BoxError> {
    let step = steady(transaction, trial, "step_seconds")?;
    let speed = steady(transaction, trial, "tokens_per_second")?;
    transaction.execute(
        "UPDATE trial SET measured_step_seconds = ?2, measured_step_spread = ?3, measured_tokens_per_second = ?4
         WHERE id = ?1",
        params![trial, step.map(|m| m.typical), step.map(|m| m.spread), speed.map(|m| m.typical)],
    )?;
    Ok(())
}

/// Returns the typical value of the series `key`, from the lowest rank that reports it.
fn steady(database: &Connection, trial: i64, key: &str) -> Result<Option<MedianWithSpread>, BoxError> {
    Ok(MedianWithSpread::steady(&points::curve(database, trial, key)?))
}

impl History {
    /// Returns the typical value of the series `key` without warm-up steps, from the lowest rank that reports
    /// it.
    pub fn measured(&self, trial: &TrialId, key: &str) -> Result<Option<MedianWithSpread>, LedgerError> {
        self.read("read figures from", |database| steady(database, lookup::row_of(database, trial)?, key))
    }
}

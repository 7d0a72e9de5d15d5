//! Running summary of a series over all attempts, updated point by point.

use super::{BoxError, MetricSample, stored, unstored};
use dtrain_protocol::AttemptId;
use rusqlite::{Connection, OptionalExtension, params};

/// Running summary of a series. Extremes and sum are over the finite points.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct RunningSummary {
    points: u64,
    finite: u64,
    sum: f64,
    /// Attempt, step and value of the newest point.
    last: Option<(AttemptId, u64, f64)>,
    /// Value and step of the smallest point.
    least: Option<(f64, u64)>,
    most: Option<(f64, u64)>,
}

impl RunningSummary {
    /// Reads the stored summary of a series; an empty one if there is none.
    pub(super) fn stored(database: &Connection, trial: i64, key: i64, rank: u32) -> Result<Self, BoxError> {
        let found = database
            .prepare_cached(
                "SELECT points, finite, sum, last_attempt, last_step, last, min, min_step, max, max_step
                 FROM main.summary WHERE trial = ?1 AND key = ?2 AND rank = ?3",
            )?
            .query_row(params![trial, key, rank], |row| {
                let last: Option<f64> = row.get(5)?;
                let (attempt, step) = (AttemptId(unstored(row.get(3)?)), unstored(row.get(4)?));
                let extreme = |value: Option<f64>, step: Option<i64>| Some((value?, unstored(step?)));
                Ok(Self {
                    points: unstored(row.get(0)?),
                    finite: unstored(row.get(1)?),
                    sum: row.get(2)?,
                    // SQLite has no NaN: NULL stands for it.
                    last: Some((attempt, step, last.unwrap_or(f64::NAN))),
                    least: extreme(row.get(6)?, row.get(7)?),
                    most: extreme(row.get(8)?, row.get(9)?),
                })
            })
            .optional()?;
        Ok(found.unwrap_or_default())
    }

    /// Adds points of an attempt to the summary.
    pub(super) fn add(&mut self, attempt: AttemptId, samples: &[MetricSample]) {
        for MetricSample { step, value, .. } in samples {
            let (step, value) = (*step, *value);
            self.points += 1;
            if self.last.is_none_or(|(newest, last, _)| (attempt, step) >= (newest, last)) {
                self.last = Some((attempt, step, value));
            }
            if value.is_finite() {
                self.finite += 1;
                self.sum += value;
                self.least = Some(self.least.filter(|(least, _)| *least <= value).unwrap_or((value, step)));
                self.most = Some(self.most.filter(|(most, _)| *most >= value).unwrap_or((value, step)));
            }
        }
    }

    /// Writes the summary to the table `summary`, replacing an older one: in the history, or in a temporary
    /// table of that name.
    pub(super) fn write(
        &self,
        database: &Connection,
        trial: i64,
        key: i64,
        rank: u32,
    ) -> Result<(), BoxError> {
        let Some((attempt, step, last)) = self.last else { return Ok(()) };
        database
            .prepare_cached(
                "INSERT OR REPLACE INTO summary(trial, key, rank, points, finite, sum, last, last_step,
                     last_attempt, min, min_step, max, max_step)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                trial,
                key,
                rank,
                stored(self.points),
                stored(self.finite),
                self.sum,
                (!last.is_nan()).then_some(last),
                stored(step),
                stored(attempt.0),
                self.least.map(|(value, _)| value),
                self.least.map(|(_, step)| stored(step)),
                self.most.map(|(value, _)| value),
                self.most.map(|(_, step)| stored(step)),
            ])?;
        Ok(())
    }
}

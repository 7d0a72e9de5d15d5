//! Series of points: the newest as rows, older ones sealed by 512, and one summary line for each series.

use super::{Fault, History, chunk, create, keep, stored, unstored};
use crate::fact::{LedgerError, Point};
use dtrain_protocol::{AttemptId, Rank, TrialId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One figure of a series.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Steps completed; for figures of the host, seconds since the Unix epoch.
    pub step: u64,
    /// Milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// The figure; may be infinite or not a number.
    pub value: f64,
}

impl History {
    /// The points of one series by step; where attempts overlap, the last attempt wins.
    pub fn series(&self, trial: &TrialId, key: &str, rank: Rank) -> Result<Vec<Sample>, LedgerError> {
        self.read("read a series from", |database| {
            let trial = keep::row_of(database, trial)?;
            joined(database, trial, key, rank)
        })
    }

    /// The points of one series attempt by attempt, overlaps included.
    pub fn series_by_attempt(
        &self,
        trial: &TrialId,
        key: &str,
        rank: Rank,
    ) -> Result<Vec<(AttemptId, Vec<Sample>)>, LedgerError> {
        self.read("read a series from", |database| {
            let trial = keep::row_of(database, trial)?;
            by_attempt(database, trial, key, rank)
        })
    }

    /// Names and ranks of all series of a trial, sorted.
    pub fn series_names(&self, trial: &TrialId) -> Result<Vec<(String, Rank)>, LedgerError> {
        self.read("read the names of series from", |database| {
            let trial = keep::row_of(database, trial)?;
            let mut select = database.prepare_cached(
                "SELECT DISTINCT key.name, series.rank FROM series JOIN key ON key.id = series.key
                 WHERE trial = ?1 ORDER BY key.name, series.rank",
            )?;
            let rows = select.query_map([trial], |row| Ok((row.get(0)?, Rank(row.get(1)?))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// One series by step, the last attempt wins.
pub(super) fn joined(database: &Connection, trial: i64, key: &str, rank: Rank) -> Result<Vec<Sample>, Fault> {
    let mut attempts = by_attempt(database, trial, key, rank)?;
    if attempts.len() == 1 {
        return Ok(attempts.remove(0).1);
    }
    let samples = attempts.into_iter().flat_map(|(_, samples)| samples);
    Ok(samples.map(|sample| (sample.step, sample)).collect::<BTreeMap<_, _>>().into_values().collect())
}

fn by_attempt(
    database: &Connection,
    trial: i64,
    key: &str,
    rank: Rank,
) -> Result<Vec<(AttemptId, Vec<Sample>)>, Fault> {
    let mut select = database.prepare_cached(
        "SELECT series.id, series.attempt FROM series JOIN key ON key.id = series.key
         WHERE trial = ?1 AND key.name = ?2 AND rank = ?3 ORDER BY attempt",
    )?;
    let rows = select.query_map(params![trial, key, rank.0], |row| {
        Ok((row.get::<_, i64>(0)?, AttemptId(unstored(row.get(1)?))))
    })?;
    rows.map(|row| {
        let (series, attempt) = row?;
        Ok((attempt, whole(database, series)?))
    })
    .collect()
}

/// All points of a stored series by step; of two with the same step, the later wins.
fn whole(database: &Connection, series: i64) -> Result<Vec<Sample>, Fault> {
    let mut select = database.prepare_cached("SELECT data FROM chunk WHERE series = ?1 ORDER BY number")?;
    let mut samples = Vec::new();
    let mut rows = select.query([series])?;
    while let Some(row) = rows.next()? {
        let data = row.get_ref(0)?.as_blob()?;
        samples.extend(chunk::decode(data).ok_or("a chunk of points is damaged")?);
    }
    samples.extend(tail(database, series)?);
    if samples.is_sorted_by(|a: &Sample, b| a.step < b.step) {
        return Ok(samples);
    }
    Ok(merged(samples))
}

/// Points by step; of two with the same step, the later in the list wins.
fn merged(samples: Vec<Sample>) -> Vec<Sample> {
    samples
        .into_iter()
        .map(|sample| (sample.step, sample))
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .collect()
}

fn tail(database: &Connection, series: i64) -> Result<Vec<Sample>, Fault> {
    let mut select =
        database.prepare_cached("SELECT step, at_ms, value FROM tail WHERE series = ?1 ORDER BY step")?;
    let rows = select.query_map([series], |row| {
        let value: Option<f64> = row.get(2)?;
        Ok(Sample {
            step: unstored(row.get(0)?),
            at_ms: unstored(row.get(1)?),
            value: value.unwrap_or(f64::NAN),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Whether a point is beyond the newest kept one of its series.
pub(super) fn is_newer(database: &Connection, trial: i64, point: &Point) -> Result<bool, Fault> {
    let last: Option<i64> = database
        .prepare_cached(
            "SELECT last_step FROM series JOIN key ON key.id = series.key
             WHERE trial = ?1 AND key.name = ?2 AND rank = ?3 AND attempt = ?4",
        )?
        .query_row(params![trial, point.key, point.rank.0, stored(point.attempt.0)], |row| row.get(0))
        .optional()?;
    Ok(last.is_none_or(|last| stored(point.step) > last))
}

/// Adds points to their series and summaries.
pub(super) fn append(transaction: &Transaction<'_>, trial: i64, fresh: &[Point]) -> Result<(), Fault> {
    let mut by_series = BTreeMap::<_, Vec<Sample>>::new();
    for point in fresh {
        by_series.entry((point.key.as_str(), point.rank, point.attempt)).or_default().push(Sample {
            step: point.step,
            at_ms: point.at_ms,
            value: point.value,
        });
    }
    for ((name, rank, attempt), samples) in by_series {
        let key = create::key(transaction, name)?;
        let series = series_of(transaction, trial, key, rank, attempt, &samples)?;
        extend(transaction, series, &samples)?;
        summarise(transaction, trial, key, rank, attempt, &samples)?;
    }
    Ok(())
}

fn series_of(
    transaction: &Transaction<'_>,
    trial: i64,
    key: i64,
    rank: Rank,
    attempt: AttemptId,
    samples: &[Sample],
) -> Result<i64, Fault> {
    let last = samples.iter().map(|sample| stored(sample.step)).max().unwrap_or(0);
    let id = transaction
        .prepare_cached(
            "INSERT INTO series(trial, key, rank, attempt, last_step) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET last_step = max(last_step, excluded.last_step) RETURNING id",
        )?
        .query_row(params![trial, key, rank.0, stored(attempt.0), last], |row| row.get(0))?;
    Ok(id)
}

/// Adds to the tail; seals whole chunks once there are enough points.
fn extend(transaction: &Transaction<'_>, series: i64, samples: &[Sample]) -> Result<(), Fault> {
    let held: i64 = transaction
        .prepare_cached("SELECT count(*) FROM tail WHERE series = ?1")?
        .query_row([series], |row| row.get(0))?;
    if unstored(held) as usize + samples.len() < chunk::POINTS {
        return add_rows(transaction, series, samples);
    }
    let mut all = tail(transaction, series)?;
    all.extend(samples);
    let all = merged(all);
    clear_tail(transaction, series)?;
    let whole = all.len() / chunk::POINTS * chunk::POINTS;
    let (sealed, rest) = all.split_at(whole);
    for points in sealed.chunks(chunk::POINTS) {
        seal(transaction, series, points)?;
    }
    add_rows(transaction, series, rest)
}

fn add_rows(transaction: &Transaction<'_>, series: i64, samples: &[Sample]) -> Result<(), Fault> {
    let mut insert = transaction
        .prepare_cached("INSERT OR REPLACE INTO tail(series, step, at_ms, value) VALUES (?1, ?2, ?3, ?4)")?;
    for sample in samples {
        // SQLite has no not-a-number: NULL stands for it.
        let value = (!sample.value.is_nan()).then_some(sample.value);
        insert.execute(params![series, stored(sample.step), stored(sample.at_ms), value])?;
    }
    Ok(())
}

fn clear_tail(transaction: &Transaction<'_>, series: i64) -> Result<(), Fault> {
    transaction.prepare_cached("DELETE FROM tail WHERE series = ?1")?.execute([series])?;
    Ok(())
}

fn seal(transaction: &Transaction<'_>, series: i64, points: &[Sample]) -> Result<(), Fault> {
    transaction
        .prepare_cached(
            "INSERT INTO chunk(series, number, data)
             VALUES (?1, (SELECT coalesce(max(number) + 1, 0) FROM chunk WHERE series = ?1), ?2)",
        )?
        .execute(params![series, chunk::encode(points)])?;
    Ok(())
}

/// Seals what the tails of an ended attempt hold.
pub(super) fn seal_attempt(
    transaction: &Transaction<'_>,
    trial: i64,
    attempt: AttemptId,
) -> Result<(), Fault> {
    let all: Vec<i64> = transaction
        .prepare_cached("SELECT id FROM series WHERE trial = ?1 AND attempt = ?2")?
        .query_map(params![trial, stored(attempt.0)], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    for series in all {
        let points = tail(transaction, series)?;
        if !points.is_empty() {
            seal(transaction, series, &points)?;
            clear_tail(transaction, series)?;
        }
    }
    Ok(())
}

/// Folds new points into the summary line of their series.
fn summarise(
    transaction: &Transaction<'_>,
    trial: i64,
    key: i64,
    rank: Rank,
    attempt: AttemptId,
    samples: &[Sample],
) -> Result<(), Fault> {
    let Some(last) = samples.iter().max_by_key(|sample| sample.step) else { return Ok(()) };
    let finite: Vec<_> = samples.iter().filter(|sample| sample.value.is_finite()).collect();
    let least = finite.iter().min_by(|a, b| a.value.total_cmp(&b.value));
    let most = finite.iter().max_by(|a, b| a.value.total_cmp(&b.value));
    let sum: f64 = finite.iter().map(|sample| sample.value).sum();
    let shown = (!last.value.is_nan()).then_some(last.value);
    transaction
        .prepare_cached(
            "INSERT INTO summary(trial, key, rank, points, finite, sum, last, last_step, last_attempt, min, min_step, max, max_step)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)
             ON CONFLICT DO UPDATE SET
                 points = points + excluded.points, finite = finite + excluded.finite, sum = sum + excluded.sum,
                 last = CASE WHEN (excluded.last_attempt, excluded.last_step) >= (last_attempt, last_step)
                             THEN excluded.last ELSE last END,
                 last_step = CASE WHEN (excluded.last_attempt, excluded.last_step) >= (last_attempt, last_step)
                             THEN excluded.last_step ELSE last_step END,
                 last_attempt = max(last_attempt, excluded.last_attempt),
                 min_step = CASE WHEN min IS NULL OR excluded.min < min THEN coalesce(excluded.min_step, min_step) ELSE min_step END,
                 min = CASE WHEN min IS NULL OR excluded.min < min THEN coalesce(excluded.min, min) ELSE min END,
                 max_step = CASE WHEN max IS NULL OR excluded.max > max THEN coalesce(excluded.max_step, max_step) ELSE max_step END,
                 max = CASE WHEN max IS NULL OR excluded.max > max THEN coalesce(excluded.max, max) ELSE max END",
        )?
        .execute(params![
            trial,
            key,
            rank.0,
            stored(samples.len() as u64),
            stored(finite.len() as u64),
            sum,
            shown,
            stored(last.step),
            stored(attempt.0),
            least.map(|sample| sample.value),
            least.map(|sample| stored(sample.step)),
            most.map(|sample| sample.value),
            most.map(|sample| stored(sample.step)),
        ])?;
    Ok(())
}

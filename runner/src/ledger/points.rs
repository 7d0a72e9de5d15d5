//! Points of a series: sealed chunks, and open points in the log of the trial.

use super::point_log::{PointLog, PointsBySeries, RecordHeader};
use super::{BoxError, Corruption, History, chunk, interned, lookup, open_points, stored, unstored};
use crate::fact::{LedgerError, MetricPoint};
use dtrain_protocol::bundle::Series;
use dtrain_protocol::series_codec::decode;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;

pub use dtrain_protocol::series_codec::MetricSample;

/// Series of the sizes of the checkpoints that a training engine saves, as dtrain's Python package reports it.
const ENGINE_CHECKPOINT: &str = "checkpoint_bytes";

impl History {
    /// Returns the points of one series by step; if attempts overlap, the last attempt wins.
    pub fn series(&self, trial: &TrialId, key: &str, rank: Rank) -> Result<Vec<MetricSample>, LedgerError> {
        self.read("read a series from", |database| {
            let trial = lookup::row_of(database, trial)?;
            joined_attempts(database, trial, key, rank)
        })
    }

    /// Returns the sizes of the checkpoints that a training engine reported for a trial, by step; empty without
    /// any.
    pub fn engine_checkpoints(&self, trial: &TrialId) -> Result<Vec<MetricSample>, LedgerError> {
        let names = self.series_names(trial)?;
        match names.into_iter().find(|(name, _)| name == ENGINE_CHECKPOINT) {
            Some((key, rank)) => self.series(trial, &key, rank),
            None => Ok(Vec::new()),
        }
    }

    /// Returns the points of one series by attempt, overlaps included.
    pub fn series_by_attempt(
        &self,
        trial: &TrialId,
        key: &str,
        rank: Rank,
    ) -> Result<Vec<(AttemptId, Vec<MetricSample>)>, LedgerError> {
        self.read("read a series from", |database| {
            let trial = lookup::row_of(database, trial)?;
            by_attempt(database, trial, key, rank)
        })
    }

    /// Returns the points of one series by step, from the lowest rank that reports it.
    pub fn curve(&self, trial: &TrialId, key: &str) -> Result<Vec<MetricSample>, LedgerError> {
        self.read("read a series from", |database| curve(database, lookup::row_of(database, trial)?, key))
    }

    /// Returns the points of one series by attempt, overlaps included, from the lowest rank that reports it.
    pub fn curve_by_attempt(
        &self,
        trial: &TrialId,
        key: &str,
    ) -> Result<Vec<(AttemptId, Vec<MetricSample>)>, LedgerError> {
        self.read("read a series from", |database| {
            let trial = lookup::row_of(database, trial)?;
            let rank = lowest_rank(database, trial, key)?;
            rank.map_or_else(|| Ok(Vec::new()), |rank| by_attempt(database, trial, key, rank))
        })
    }

    /// Lists names and ranks of all series of a trial, sorted.
    pub fn series_names(&self, trial: &TrialId) -> Result<Vec<(String, Rank)>, LedgerError> {
        self.read("read the names of series from", |database| {
            let trial = lookup::row_of(database, trial)?;
            let mut select = database.prepare_cached(
                "SELECT DISTINCT key.name, series.rank FROM series JOIN key ON key.id = series.key
                 WHERE trial = ?1 ORDER BY key.name, series.rank",
            )?;
            let rows = select.query_map([trial], |row| Ok((row.get(0)?, Rank(row.get(1)?))))?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Returns the lowest rank that reports a series; `None` if none does.
pub(super) fn lowest_rank(database: &Connection, trial: i64, key: &str) -> Result<Option<Rank>, BoxError> {
    let rank: Option<u32> = database
        .prepare_cached(
            "SELECT min(series.rank) FROM series JOIN key ON key.id = series.key
             WHERE trial = ?1 AND key.name = ?2",
        )?
        .query_row(params![trial, key], |row| row.get(0))?;
    Ok(rank.map(Rank))
}

/// Lists the ranks that report a series, in order.
pub(super) fn ranks(database: &Connection, trial: i64, key: &str) -> Result<Vec<Rank>, BoxError> {
    let mut select = database.prepare_cached(
        "SELECT DISTINCT series.rank FROM series JOIN key ON key.id = series.key
         WHERE trial = ?1 AND key.name = ?2 ORDER BY series.rank",
    )?;
    let rows = select.query_map(params![trial, key], |row| Ok(Rank(row.get(0)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the points of one series by step, from the lowest rank that reports it.
pub(super) fn curve(database: &Connection, trial: i64, key: &str) -> Result<Vec<MetricSample>, BoxError> {
    let rank = lowest_rank(database, trial, key)?;
    rank.map_or_else(|| Ok(Vec::new()), |rank| joined_attempts(database, trial, key, rank))
}

/// Returns the points of one series of `rank` by step; if attempts overlap, the last attempt wins.
pub(super) fn joined_attempts(
    database: &Connection,
    trial: i64,
    key: &str,
    rank: Rank,
) -> Result<Vec<MetricSample>, BoxError> {
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
) -> Result<Vec<(AttemptId, Vec<MetricSample>)>, BoxError> {
    let mut select = database.prepare_cached(
        "SELECT series.id, series.attempt, series.last_step FROM series JOIN key ON key.id = series.key
         WHERE trial = ?1 AND key.name = ?2 AND rank = ?3 ORDER BY attempt",
    )?;
    let rows = select.query_map(params![trial, key, rank.0], |row| {
        let of = SealedSeries { series: row.get(0)?, last_step: row.get(2)? };
        Ok((of, AttemptId(unstored(row.get(1)?))))
    })?;
    let log = open_points::read(database, trial)?;
    rows.map(|row| {
        let (series, attempt) = row?;
        Ok((attempt, all_points(database, &series, log.as_ref())?))
    })
    .collect()
}

/// Returns the points of one attempt of a series, for a bundle.
pub(super) fn of_attempt(
    database: &Connection,
    trial: i64,
    of: &Series,
) -> Result<Vec<MetricSample>, BoxError> {
    let found = find(database, trial, &of.key, Rank(of.rank), AttemptId(of.attempt))?;
    let Some((series, last_step)) = found else { return Ok(Vec::new()) };
    all_points(database, &SealedSeries { series, last_step }, open_points::read(database, trial)?.as_ref())
}

/// Row number of a series, and the last step of its sealed points; -1 if it has none.
struct SealedSeries {
    series: i64,
    last_step: i64,
}

/// Returns all points of a series by step; of two with the same step, the later wins.
fn all_points(
    database: &Connection,
    of: &SealedSeries,
    log: Option<&PointLog>,
) -> Result<Vec<MetricSample>, BoxError> {
    let mut samples = sealed_points(database, of)?;
    samples.extend(open_points::points_of(log, of.series)?);
    Ok(open_points::sorted_by_step(samples))
}

/// Returns the sealed points of a series. `Err` if a chunk is unreadable or missing: rows have no checksum of
/// their own.
fn sealed_points(database: &Connection, of: &SealedSeries) -> Result<Vec<MetricSample>, BoxError> {
    let mut select =
        database.prepare_cached("SELECT number, data FROM chunk WHERE series = ?1 ORDER BY number")?;
    let mut samples = Vec::new();
    let mut rows = select.query([of.series])?;
    let mut next = 0;
    while let Some(row) = rows.next()? {
        if row.get_ref(0)?.as_i64().ok() != Some(next) {
            return Err(Corruption("the order of the chunks of points").into());
        }
        next += 1;
        let data = row.get_ref(1)?.as_blob().map_err(|_| Corruption("a chunk of points"))?;
        samples.extend(decode(data).ok_or(Corruption("a chunk of points"))?);
    }
    let has_last = of.last_step < 0 || samples.iter().any(|sample| stored(sample.step) == of.last_step);
    if has_last { Ok(samples) } else { Err(Corruption("a series of points, whose end is missing,").into()) }
}

/// Reads all sealed points of all trials; `Err` if some are damaged.
pub(super) fn check(database: &Connection) -> Result<(), BoxError> {
    let mut select = database.prepare("SELECT id, last_step FROM series")?;
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        sealed_points(database, &SealedSeries { series: row.get(0)?, last_step: row.get(1)? })?;
    }
    Ok(())
}

/// Returns the newest points of a series in the format before 1.4: one row each.
fn unsealed_rows(database: &Connection, series: i64) -> Result<Vec<MetricSample>, BoxError> {
    let mut select =
        database.prepare_cached("SELECT step, at_ms, value FROM tail WHERE series = ?1 ORDER BY step")?;
    let rows = select.query_map([series], |row| {
        let value: Option<f64> = row.get(2)?;
        Ok(MetricSample {
            step: unstored(row.get(0)?),
            at_ms: unstored(row.get(1)?),
            // SQLite has no NaN: NULL stands for it.
            value: value.unwrap_or(f64::NAN),
        })
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Newest stored step of each series of a trial, loaded on demand.
pub(super) struct NewestSteps {
    trial: i64,
    open: BTreeMap<i64, u64>,
}

impl NewestSteps {
    /// Returns the newest steps of a trial whose open points are in `log`.
    pub(super) fn of(trial: i64, log: Option<&PointLog>) -> Result<Self, BoxError> {
        let mut open = BTreeMap::new();
        if let Some(log) = log {
            for (series, samples) in open_points::points(log)? {
                open.extend(samples.iter().map(|sample| sample.step).max().map(|step| (series, step)));
            }
        }
        Ok(Self { trial, open })
    }

    /// Returns `true` if a point is newer than all stored points of its series.
    pub(super) fn is_before(&self, database: &Connection, point: &MetricPoint) -> Result<bool, BoxError> {
        let found = find(database, self.trial, &point.key, point.rank, point.attempt)?;
        let Some((series, sealed)) = found else { return Ok(true) };
        let is_open = self.open.get(&series).is_some_and(|open| *open >= point.step);
        Ok(stored(point.step) > sealed && !is_open)
    }
}

/// Finds a series: returns its row number and the last step of its sealed points, -1 if it has none.
fn find(
    database: &Connection,
    trial: i64,
    name: &str,
    rank: Rank,
    attempt: AttemptId,
) -> Result<Option<(i64, i64)>, BoxError> {
    let found = database
        .prepare_cached(
            "SELECT series.id, last_step FROM series JOIN key ON key.id = series.key
             WHERE trial = ?1 AND key.name = ?2 AND rank = ?3 AND attempt = ?4",
        )?
        .query_row(params![trial, name, rank.0, stored(attempt.0)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found)
}

/// Returns the row number of a series; inserts a new series.
pub(super) fn series_of(
    transaction: &Transaction<'_>,
    trial: i64,
    name: &str,
    rank: Rank,
    attempt: AttemptId,
) -> Result<i64, BoxError> {
    if let Some((series, _)) = find(transaction, trial, name, rank, attempt)? {
        return Ok(series);
    }
    transaction
        .prepare_cached(
            "INSERT INTO series(trial, key, rank, attempt, last_step) VALUES (?1, ?2, ?3, ?4, -1)",
        )?
        .execute(params![trial, interned::key_id(transaction, name)?, rank.0, stored(attempt.0)])?;
    Ok(transaction.last_insert_rowid())
}

/// Appends points to the log of a trial.
pub(super) fn append(
    transaction: &Transaction<'_>,
    trial: i64,
    log: Option<PointLog>,
    head: &RecordHeader,
    fresh: &[MetricPoint],
) -> Result<(), BoxError> {
    let mut by_series = BTreeMap::<_, Vec<MetricSample>>::new();
    for point in fresh {
        by_series.entry((point.key.as_str(), point.rank, point.attempt)).or_default().push(MetricSample {
            step: point.step,
            at_ms: point.at_ms,
            value: point.value,
        });
    }
    let mut points = PointsBySeries::new();
    for ((name, rank, attempt), samples) in by_series {
        points.push((series_of(transaction, trial, name, rank, attempt)?, samples));
    }
    points.sort_by_key(|(series, _)| *series);
    open_points::append(transaction, trial, log, head, &points)
}

/// Seals the points that versions before 1.4 stored as rows.
pub(super) fn seal_rows(transaction: &Transaction<'_>) -> Result<(), BoxError> {
    let mut series = transaction.prepare("SELECT DISTINCT series FROM tail")?;
    let series: Vec<i64> = series.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for series in series {
        let samples = unsealed_rows(transaction, series)?;
        open_points::add_chunks(transaction, series, &chunk::cut(&samples, true).0)?;
    }
    transaction.execute("DELETE FROM tail", [])?;
    Ok(())
}

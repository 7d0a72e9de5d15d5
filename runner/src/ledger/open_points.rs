//! Open points of trials: each commit appends a record to the log of its trial; a full log is sealed into
//! chunks by series.
//!
//! The log is a blob that is overwritten in place, so that a commit writes only the pages it fills. Readers
//! merge its points with the sealed ones.

use super::point_log::{self, PointLog, PointsBySeries, RecordHeader};
use super::running_summary::RunningSummary;
use super::{BoxError, Corruption, MetricSample, chunk, stored};
use dtrain_protocol::{AttemptId, Rank};
use rusqlite::blob::ZeroBlob;
use rusqlite::{Connection, MAIN_DB, OptionalExtension, Transaction, params};
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};

/// Size of a new log, in bytes.
const FIRST: usize = 16 << 10;

/// Bytes of a log for each of its series, so that a full log has a full chunk of most series.
const EACH: usize = 6 << 10;

/// Largest size of a log, in bytes: to read one figure of a trial, all of its log is read.
const MOST: usize = 4 << 20;

/// Identity of a series within its trial.
struct SeriesKey {
    key: i64,
    rank: u32,
    attempt: AttemptId,
}

const DAMAGE: Corruption = Corruption("a log of open points");

/// Reads the log of open points of a trial; `None` if the trial has none.
pub(super) fn read(database: &Connection, trial: i64) -> Result<Option<PointLog>, BoxError> {
    let bytes: Option<Vec<u8>> = database
        .prepare_cached("SELECT data FROM open_points WHERE trial = ?1")?
        .query_row([trial], |row| row.get(0))
        .optional()?;
    bytes.map(|bytes| PointLog::read(bytes).ok_or(DAMAGE.into())).transpose()
}

/// Returns the open points of a trial by series, in order of arrival.
pub(super) fn points(log: &PointLog) -> Result<BTreeMap<i64, Vec<MetricSample>>, BoxError> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for (series, samples) in log.points().ok_or(DAMAGE)? {
        all.entry(series).or_default().extend(samples);
    }
    Ok(all)
}

/// Returns the open points of one series.
pub(super) fn points_of(log: Option<&PointLog>, series: i64) -> Result<Vec<MetricSample>, BoxError> {
    let Some(log) = log else { return Ok(Vec::new()) };
    let all = log.points().ok_or(DAMAGE)?;
    Ok(all.into_iter().filter(|(id, _)| *id == series).flat_map(|(_, samples)| samples).collect())
}

/// Appends a record to the log of a trial; if it does not fit, seals points or enlarges the log.
pub(super) fn append(
    transaction: &Transaction<'_>,
    trial: i64,
    log: Option<PointLog>,
    head: &RecordHeader,
    points: &PointsBySeries,
) -> Result<(), BoxError> {
    let record = point_log::record(head, points);
    let used = log.as_ref().map_or(0, PointLog::used);
    if log.as_ref().is_some_and(|log| used + record.len() <= log.capacity()) {
        return write(transaction, trial, used, &record);
    }
    let log = log.unwrap_or_default();
    let whole = [log.records(), &record].concat();
    let series = points.len().max(self::points(&log)?.len());
    let most = (series * EACH).clamp(FIRST, MOST);
    if whole.len() <= most {
        let capacity = (2 * log.capacity()).clamp(FIRST, most).max(whole.len());
        return replace_log(transaction, trial, capacity, &whole);
    }
    let capacity = log.capacity();
    let log = PointLog::read(whole).ok_or(DAMAGE)?;
    let rest = seal_full(transaction, trial, &log, false)?;
    let mut left = point_log::record(&RecordHeader::default(), &rest);
    if 2 * left.len() > most {
        let left_over = PointLog::read(left).ok_or(DAMAGE)?;
        left = point_log::record(&RecordHeader::default(), &seal_full(transaction, trial, &left_over, true)?);
    }
    if capacity >= most / 2 && left.len() <= capacity {
        return write(transaction, trial, 0, &left);
    }
    replace_log(transaction, trial, most, &left)
}

/// Seals all open points of a trial.
pub(super) fn seal(transaction: &Transaction<'_>, trial: i64) -> Result<(), BoxError> {
    if let Some(log) = read(transaction, trial)? {
        seal_full(transaction, trial, &log, true)?;
        transaction.prepare_cached("DELETE FROM open_points WHERE trial = ?1")?.execute([trial])?;
    }
    Ok(())
}

/// Overwrites the log of a trial from byte `at` on with `records`; later records are dropped.
fn write(transaction: &Transaction<'_>, trial: i64, at: usize, records: &[u8]) -> Result<(), BoxError> {
    let mut blob = transaction.blob_open(MAIN_DB, "open_points", "data", trial, false)?;
    blob.seek(SeekFrom::Start(at as u64))?;
    blob.write_all(records)?;
    let room = blob.len().saturating_sub(at + records.len()).min(4);
    blob.write_all(&[0; 4][..room])?;
    Ok(blob.close()?)
}

/// Replaces the log of a trial with one of another size.
fn replace_log(
    transaction: &Transaction<'_>,
    trial: i64,
    capacity: usize,
    records: &[u8],
) -> Result<(), BoxError> {
    transaction
        .prepare_cached(
            "INSERT INTO open_points(trial, data) VALUES (?1, ?2) ON CONFLICT DO UPDATE SET data = excluded.data",
        )?
        .execute(params![trial, ZeroBlob(capacity as u64)])?;
    write(transaction, trial, 0, records)
}

/// Moves open points into chunks and summaries: all of the points, or only full chunks. Returns the remaining
/// points.
fn seal_full(
    transaction: &Transaction<'_>,
    trial: i64,
    log: &PointLog,
    all: bool,
) -> Result<PointsBySeries, BoxError> {
    for RecordHeader { offset, heard } in log.heads() {
        if let Some((attempt, offset)) = offset {
            store_spool_offset(transaction, trial, *attempt, *offset)?;
        }
        for (attempt, rank, sequence) in heard {
            store_latest_events(transaction, trial, *attempt, *rank, *sequence)?;
        }
    }
    let mut rest = PointsBySeries::new();
    for (id, samples) in points(log)? {
        let samples = sorted_by_step(samples);
        let (chunks, sealed) = chunk::cut(&samples, all);
        if sealed > 0 {
            let series = series(transaction, id)?;
            add_chunks(transaction, id, &chunks)?;
            let last = samples[..sealed].iter().map(|sample| stored(sample.step)).max().unwrap_or(-1);
            transaction
                .prepare_cached("UPDATE series SET last_step = max(last_step, ?2) WHERE id = ?1")?
                .execute([id, last])?;
            let mut fold = RunningSummary::stored(transaction, trial, series.key, series.rank)?;
            fold.add(series.attempt, &samples[..sealed]);
            fold.write(transaction, trial, series.key, series.rank)?;
        }
        if sealed < samples.len() {
            rest.push((id, samples[sealed..].to_vec()));
        }
    }
    Ok(rest)
}

/// Stores sealed chunks of a series.
pub(super) fn add_chunks(
    transaction: &Transaction<'_>,
    series: i64,
    chunks: &[Vec<u8>],
) -> Result<(), BoxError> {
    let mut insert = transaction.prepare_cached(
        "INSERT INTO chunk(series, number, data)
         VALUES (?1, (SELECT coalesce(max(number) + 1, 0) FROM chunk WHERE series = ?1), ?2)",
    )?;
    for chunk in chunks {
        insert.execute(params![series, chunk])?;
    }
    Ok(())
}

/// Sorts samples by step; of two with the same step, the later in the list wins.
pub(super) fn sorted_by_step(samples: Vec<MetricSample>) -> Vec<MetricSample> {
    if samples.is_sorted_by(|a, b| a.step < b.step) {
        return samples;
    }
    samples
        .into_iter()
        .map(|sample| (sample.step, sample))
        .collect::<BTreeMap<_, _>>()
        .into_values()
        .collect()
}

/// Stores how many bytes of an attempt's spool are in the history.
pub(super) fn store_spool_offset(
    transaction: &Transaction<'_>,
    trial: i64,
    attempt: AttemptId,
    offset: u64,
) -> Result<(), BoxError> {
    transaction
        .prepare_cached(
            "INSERT INTO spool(trial, attempt, offset) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET offset = max(offset, excluded.offset)",
        )?
        .execute(params![trial, stored(attempt.0), stored(offset)])?;
    Ok(())
}

fn store_latest_events(
    transaction: &Transaction<'_>,
    trial: i64,
    attempt: AttemptId,
    rank: Rank,
    sequence: u64,
) -> Result<(), BoxError> {
    transaction
        .prepare_cached(
            "INSERT INTO last_event(trial, attempt, rank, sequence) VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT DO UPDATE SET sequence = max(sequence, excluded.sequence)",
        )?
        .execute(params![trial, stored(attempt.0), rank.0, stored(sequence)])?;
    Ok(())
}

fn series(database: &Connection, id: i64) -> Result<SeriesKey, BoxError> {
    let series = database.prepare_cached("SELECT key, rank, attempt FROM series WHERE id = ?1")?.query_row(
        [id],
        |row| {
            let attempt = AttemptId(super::unstored(row.get(2)?));
            Ok(SeriesKey { key: row.get(0)?, rank: row.get(1)?, attempt })
        },
    )?;
    Ok(series)
}

/// Reads the logs of all trials; `Err` if one is damaged.
pub(super) fn check(database: &Connection) -> Result<(), BoxError> {
    for trial in trials(database)? {
        read(database, trial)?.map(|log| points(&log)).transpose()?;
    }
    Ok(())
}

/// Lists the trials with open points.
pub(super) fn trials(database: &Connection) -> Result<Vec<i64>, BoxError> {
    let mut select = database.prepare_cached("SELECT trial FROM open_points")?;
    Ok(select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

/// Runs `work`, which reads the summaries of these trials only, with complete summaries: a temporary table of
/// the same name includes their open points.
pub(super) fn with_summaries<T>(
    database: &Connection,
    trials: &[i64],
    work: impl FnOnce() -> Result<T, BoxError>,
) -> Result<T, BoxError> {
    let mut logs = Vec::new();
    for trial in trials {
        logs.extend(read(database, *trial)?.map(|log| (*trial, log)));
    }
    if logs.is_empty() {
        return work();
    }
    let is_reader: bool = database.pragma_query_value(None, "query_only", |row| row.get(0))?;
    database.pragma_update(None, "query_only", false)?;
    let made = create_summary_overlay(database, &logs);
    database.pragma_update(None, "query_only", is_reader)?;
    let answer = made.and_then(|()| work());
    database.pragma_update(None, "query_only", false)?;
    let dropped = database.execute_batch("DROP TABLE IF EXISTS temp.summary");
    database.pragma_update(None, "query_only", is_reader)?;
    let answer = answer?;
    dropped?;
    Ok(answer)
}

fn create_summary_overlay(database: &Connection, logs: &[(i64, PointLog)]) -> Result<(), BoxError> {
    database.execute_batch(
        "CREATE TEMP TABLE summary AS SELECT * FROM main.summary WHERE 0;
         CREATE UNIQUE INDEX temp.summary_key ON summary(trial, key, rank);",
    )?;
    let mut copy =
        database.prepare("INSERT INTO temp.summary SELECT * FROM main.summary WHERE trial = ?1")?;
    for (trial, log) in logs {
        copy.execute([trial])?;
        let mut folds = BTreeMap::new();
        for (id, samples) in points(log)? {
            let series = series(database, id)?;
            let fold = match folds.remove(&(series.key, series.rank)) {
                Some(fold) => fold,
                None => RunningSummary::stored(database, *trial, series.key, series.rank)?,
            };
            let fold: &mut RunningSummary = folds.entry((series.key, series.rank)).or_insert(fold);
            fold.add(series.attempt, &sorted_by_step(samples));
        }
        for ((key, rank), fold) in folds {
            fold.write(database, *trial, key, rank)?;
        }
    }
    Ok(())
}

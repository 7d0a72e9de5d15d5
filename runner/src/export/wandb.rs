//! Export to offline runs of W&B: a folder per trial, for `wandb sync`.
//!
//! `run-ID.wandb` is a LevelDB log: a header of seven bytes, then blocks of 32 KiB with fragments of records.
//! The checksum is zlib's CRC-32 over the type of the fragment and its bytes. A record is a `Record` of
//! `wandb_internal.proto`. The format follows `wandb/sdk/internal/datastore.py`, and
//! `core/internal/transactionlog` in newer versions.

use super::atomic_output::{self, write_inside};
use super::names::names;
use super::protobuf::MessageBuilder;
use super::runs::{ProgressCounter, TrackedRun};
use super::{ExportError, TrialSelection, WriteProgress, WrittenRun, as_u64};
use crate::ledger::{MetricSample, TrialStatus};
use dtrain_recipes::name::file_name;
use serde_json::Value;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// File header: `:W&B`, a magic number, and version 0.
const HEAD: &[u8; 7] = b":W&B\xe1\xbe\0";

// Sizes of a block, and of the header of a fragment, in bytes.
const BLOCK: usize = 32 << 10;
const FRAGMENT: usize = 7;

/// Exports each run to the folder `to/offline-run-TIME-ID`.
pub(super) fn folders(
    request: &TrialSelection<'_>,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    let mut counter = ProgressCounter::of(request, watch)?;
    let mut written = Vec::new();
    for row in &request.trials {
        let trial = request.history.outline(row)?;
        for run in request.runs(&trial)? {
            let id = id(&run);
            let path = to.join(format!("offline-run-{}-{id}", stamp(run.time().0)));
            atomic_output::folder(&path, (request.force, is_ours), |folder| {
                // W&B expects the folder of uploaded files.
                fs::create_dir_all(folder.join("files")).map_err(atomic_output::write_error(folder))?;
                write_inside(&folder.join(format!("run-{id}.wandb")), |to| records(&run, &id, to))
            })?;
            counter.add(run.series.len(), run.points());
            written.push(WrittenRun {
                trial: row.id.clone(),
                name: run.name(),
                place: path.display().to_string(),
                series: as_u64(run.series.len()),
                points: as_u64(run.points()),
            });
        }
    }
    Ok(written)
}

/// Returns `true` if dtrain, or `wandb sync` after it, wrote a file of this name in the folder of a run.
fn is_ours(name: &str) -> bool {
    name.starts_with("run-") && (name.ends_with(".wandb") || name.ends_with(".wandb.synced"))
}

/// Returns the id of a run: the trial's id in lower case, followed by the attempt if each attempt is a run.
fn id(run: &TrackedRun<'_>) -> String {
    let id = file_name(&run.trial.row.id.0.to_lowercase());
    run.attempt.map_or(id.clone(), |attempt| format!("{id}-{attempt}"))
}

/// Formats a time given in milliseconds, such as `20261124_194954`, in UTC.
fn stamp(ms: u64) -> String {
    let (day, seconds) = (dtrain_planner::format_day(ms).replace('-', ""), ms / 1000 % 86_400);
    format!("{day}_{:02}{:02}{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Writes the records of a run: settings, points step by step, summary, exit.
fn records(run: &TrackedRun<'_>, id: &str, to: &mut dyn Write) -> io::Result<()> {
    let mut log = LevelDbLog::begin(to)?;
    let producer = concat!("dtrain ", env!("CARGO_PKG_VERSION"));
    log.record(
        21,
        &MessageBuilder::new().message(1, &MessageBuilder::new().text(1, producer).text(2, "0.0.1")),
    )?;
    log.record(17, &about(run, id))?;
    let (begun, ended) = run.time();
    let tags = names(&run.series, "/", |_| true);
    let mut last = None;
    run.each_step(|step, found| {
        let at_ms = found.iter().map(|(_, sample)| sample.at_ms).max().unwrap_or(begun);
        last = Some((step, at_ms));
        let mut history = MessageBuilder::new();
        for (series, MetricSample { value, .. }) in found {
            history = history.message(1, &item(&tags[*series], &number(*value)));
        }
        for (name, value) in clock(begun, step, at_ms) {
            history = history.message(1, &item(name, &value));
        }
        let step = i64::try_from(step).unwrap_or(i64::MAX);
        log.record(2, &history.message(2, &MessageBuilder::new().int(1, step)))
    })?;
    if let Some((step, at_ms)) = last {
        let mut summary = MessageBuilder::new();
        for (series, tag) in run.series.iter().zip(&tags) {
            if let Some(sample) = series.samples.last() {
                summary = summary.message(1, &item(tag, &number(sample.value)));
            }
        }
        for (name, value) in clock(begun, step, at_ms) {
            summary = summary.message(1, &item(name, &value));
        }
        log.record(3, &summary)?;
    }
    let status = run.trial.row.status;
    if status == TrialStatus::Created || status.is_live() {
        return Ok(());
    }
    let seconds = ended.unwrap_or(begun).saturating_sub(begun) / 1000;
    let code = i64::from(status != TrialStatus::Completed);
    log.record(18, &MessageBuilder::new().int(1, code).int(2, i64::try_from(seconds).unwrap_or(i64::MAX)))
}

/// Returns the columns that W&B adds to each row: step, timestamp and runtime.
fn clock(begun: u64, step: u64, at_ms: u64) -> [(&'static str, String); 3] {
    let seconds = |ms: u64| format!("{}.{:03}", ms / 1000, ms % 1000);
    let runtime = seconds(at_ms.saturating_sub(begun));
    [("_step", step.to_string()), ("_timestamp", seconds(at_ms)), ("_runtime", runtime)]
}

/// Builds a `RunRecord`.
fn about(run: &TrackedRun<'_>, id: &str) -> MessageBuilder {
    let trial = run.trial;
    let mut config = MessageBuilder::new();
    for param in &trial.params {
        let mut item = MessageBuilder::new();
        for part in param.path.split('.') {
            item = item.text(2, part);
        }
        config = config.message(1, &item.text(16, param.value.to_string()));
    }
    let of_dtrain = [("trial", trial.row.id.0.as_str()), ("status", trial.row.status.word())];
    for (name, value) in of_dtrain {
        let item = MessageBuilder::new().text(2, "dtrain").text(2, name);
        config = config.message(1, &item.text(16, Value::from(value).to_string()));
    }
    let (begun, _) = run.time();
    let start = MessageBuilder::new()
        .int(1, i64::try_from(begun / 1000).unwrap_or(i64::MAX))
        .int(2, i64::try_from(begun % 1000 * 1_000_000).unwrap_or(0));
    let project = trial.row.study.as_ref().unwrap_or(&trial.row.recipe);
    let notes: Vec<&str> = trial.notes.iter().map(|note| note.text.as_str()).collect();
    let mut about = MessageBuilder::new().text(1, id).text(3, project).message(4, &config);
    if run.attempt.is_some() {
        about = about.text(6, &trial.row.label);
    }
    about = about.text(8, run.name()).text(9, notes.join("\n"));
    for (name, value) in &trial.tags {
        about = about.text(10, if value == "yes" { name.clone() } else { format!("{name}={value}") });
    }
    about.message(17, &start)
}

/// Builds a `HistoryItem` or `SummaryItem`.
fn item(name: &str, json: &str) -> MessageBuilder {
    MessageBuilder::new().text(2, name).text(16, json)
}

/// Formats a number as W&B does: JSON with `NaN`, `Infinity` and `-Infinity`.
fn number(value: f64) -> String {
    if value.is_finite() {
        return Value::from(value).to_string();
    }
    let word = if value.is_nan() { "NaN" } else { "Infinity" };
    format!("{}{word}", if value == f64::NEG_INFINITY { "-" } else { "" })
}

/// LevelDB log that is being written.
struct LevelDbLog<'a> {
    to: &'a mut dyn Write,
    /// Number of bytes written so far.
    at: usize,
    /// Number of records written so far.
    records: i64,
}

impl<'a> LevelDbLog<'a> {
    fn begin(to: &'a mut dyn Write) -> io::Result<Self> {
        to.write_all(HEAD)?;
        Ok(Self { to, at: HEAD.len(), records: 0 })
    }

    /// Writes a `Record` with one field set.
    fn record(&mut self, field: u32, of: &MessageBuilder) -> io::Result<()> {
        self.records += 1;
        let record = MessageBuilder::new().int(1, self.records).message(field, of);
        self.write(record.bytes())
    }

    fn write(&mut self, record: &[u8]) -> io::Result<()> {
        let (mut rest, mut is_first) = (record, true);
        loop {
            let mut left = BLOCK - self.at % BLOCK;
            if left < FRAGMENT {
                self.put(&[0; FRAGMENT][..left])?;
                left = BLOCK;
            }
            let (part, after) = rest.split_at(rest.len().min(left - FRAGMENT));
            let kind = match (is_first, after.is_empty()) {
                (true, true) => 1_u8,
                (true, false) => 2,
                (false, false) => 3,
                (false, true) => 4,
            };
            let mut sum = crc32fast::Hasher::new();
            sum.update(&[kind]);
            sum.update(part);
            self.put(&sum.finalize().to_le_bytes())?;
            self.put(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_le_bytes())?;
            self.put(&[kind])?;
            self.put(part)?;
            (rest, is_first) = (after, false);
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.at += bytes.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_does_not_fit_is_split_at_the_end_of_its_block() {
        let mut bytes = Vec::new();
        let mut log = LevelDbLog::begin(&mut bytes).expect("memory");
        log.write(b"a").expect("memory");
        // Bytes that `DataStore` of wandb 0.25 writes.
        assert_eq!(&bytes, b":W&B\xe1\xbe\0\x70\x72\x77\x62\x01\0\x01a");

        let mut bytes = Vec::new();
        let mut log = LevelDbLog::begin(&mut bytes).expect("memory");
        log.write(&vec![b'x'; BLOCK - HEAD.len() - FRAGMENT - 3]).expect("memory");
        log.write(&vec![b'y'; 2 * BLOCK]).expect("memory");
        // Three bytes are too few for a header: they are zeros. The second record fills two blocks and begins
        // a third.
        assert_eq!(&bytes[BLOCK - 4..BLOCK], b"x\0\0\0");
        let kind = |block: usize| bytes[block * BLOCK + 6];
        assert_eq!([kind(1), kind(2), kind(3)], [2, 3, 4]);
        assert_eq!(bytes.len(), 3 * BLOCK + FRAGMENT + 2 * FRAGMENT);
    }

    #[test]
    fn times_and_numbers_are_written_as_wandb_does() {
        assert_eq!(stamp(1_795_549_794_000), "20261124_194954");
        assert_eq!(stamp(951_782_400_000), "20000229_000000");
        assert_eq!(stamp(0), "19700101_000000");
        for (value, json) in
            [(0.1, "0.1"), (f64::NAN, "NaN"), (f64::INFINITY, "Infinity"), (f64::NEG_INFINITY, "-Infinity")]
        {
            assert_eq!(number(value), json);
        }
        assert_eq!(
            clock(1000, 3, 2500),
            [("_step", "3".to_owned()), ("_timestamp", "2.500".to_owned()), ("_runtime", "1.500".to_owned()),]
        );
    }
}

//! Export to TensorBoard event files: a folder per trial.
//!
//! A file is a sequence of records (`u64` length, masked CRC-32C of it, an `Event`, masked CRC-32C of that).
//! Messages and field numbers: `tensorboard/compat/proto/{event,summary,tensor}.proto`,
//! `tensorboard/plugins/hparams/plugin_data.proto`. A scalar is a `simple_value` like in PyTorch's
//! `SummaryWriter`, which every reader supports: a 32-bit float.

use super::atomic_output::{self, write_inside};
use super::names::names;
use super::protobuf::MessageBuilder;
use super::runs::{ProgressCounter, TrackedRun};
use super::{AttemptSelection, ExportError, TrialSelection, WriteProgress, WrittenRun, as_u64};
use crate::ledger::{MetricSample, TrialRow, TrialStatus};
use dtrain_recipes::name::{file_name, is_trial_name};
use serde_json::Value;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Exports each trial to the folder `to/LABEL`, with subfolders `attempt-N` if each attempt is a run.
pub(super) fn folders(
    request: &TrialSelection<'_>,
    to: &Path,
    watch: &mut dyn FnMut(WriteProgress),
) -> Result<Vec<WrittenRun>, ExportError> {
    let mut counter = ProgressCounter::of(request, watch)?;
    // Check before hours of work, not in the middle of them.
    for row in &request.trials {
        atomic_output::is_free(&to.join(component(row)), request.force)?;
    }
    let mut written = Vec::new();
    for row in &request.trials {
        let trial = request.history.outline(row)?;
        let label = component(row);
        let runs = atomic_output::folder(&to.join(&label), (request.force, is_ours), |folder| {
            let mut written = Vec::new();
            for run in request.runs(&trial)? {
                let (name, folder) = match run.attempt {
                    Some(attempt) if request.attempts == AttemptSelection::All => {
                        (format!("{label}/attempt-{attempt}"), folder.join(format!("attempt-{attempt}")))
                    }
                    _ => (label.clone(), folder.to_path_buf()),
                };
                fs::create_dir_all(&folder).map_err(atomic_output::write_error(&folder))?;
                let file = format!("events.out.tfevents.{:010}.dtrain", run.time().0 / 1000);
                write_inside(&folder.join(file), |to| events(&run, to))?;
                counter.add(run.series.len(), run.points());
                written.push(WrittenRun {
                    trial: row.id.clone(),
                    place: to.join(&name).display().to_string(),
                    name,
                    series: as_u64(run.series.len()),
                    points: as_u64(run.points()),
                });
            }
            Ok(written)
        })?;
        written.extend(runs);
    }
    Ok(written)
}

/// Returns the folder name of a trial: its label. Histories of earlier versions may have labels that lead
/// elsewhere.
fn component(trial: &TrialRow) -> String {
    if is_trial_name(&trial.label) {
        return trial.label.clone();
    }
    file_name(&format!("{}-{}", trial.id.0.to_lowercase(), trial.label))
}

/// Returns `true` if dtrain wrote a file of this name in the folder of a trial.
fn is_ours(name: &str) -> bool {
    name.starts_with("events.out.tfevents.") && name.ends_with(".dtrain")
}

/// Writes the event file of a run: settings, points step by step, final status.
fn events(run: &TrackedRun<'_>, to: &mut dyn Write) -> io::Result<()> {
    let (begun, ended) = run.time();
    record(to, &event(begun, 0).text(3, "brain.Event:2"))?;
    record(to, &event(begun, 0).message(5, &MessageBuilder::new().message(1, &session_start(run, begun))))?;
    for (tag, text) in texts(run) {
        record(to, &event(begun, 0).message(5, &MessageBuilder::new().message(1, &text_value(&tag, &text))))?;
    }
    let tags = names(&run.series, "/", |_| true);
    run.each_step(|step, found| scalars(to, step, found, &tags))?;
    let end = MessageBuilder::new()
        .int(1, session_status(run.trial.row.status))
        .double(2, seconds(ended.unwrap_or(0)));
    let end = hparams("_hparams_/session_end_info", &MessageBuilder::new().message(4, &end));
    record(to, &event(ended.unwrap_or(begun), 0).message(5, &MessageBuilder::new().message(1, &end)))
}

/// Writes the points of one step; points of the same time are one event.
fn scalars(
    to: &mut dyn Write,
    step: u64,
    found: &[(usize, MetricSample)],
    tags: &[String],
) -> io::Result<()> {
    let mut found = found.to_vec();
    found.sort_by_key(|(_, sample)| sample.at_ms);
    for same in found.chunk_by(|a, b| a.1.at_ms == b.1.at_ms) {
        let mut summary = MessageBuilder::new();
        for (series, sample) in same {
            #[expect(clippy::cast_possible_truncation, reason = "a scalar of TensorBoard has 32 bits")]
            let value = MessageBuilder::new().text(1, &tags[*series]).float(2, sample.value as f32);
            summary = summary.message(1, &value);
        }
        record(to, &event(same[0].1.at_ms, step).message(5, &summary))?;
    }
    Ok(())
}

/// Starts an `Event` message with its time and its step.
fn event(at_ms: u64, step: u64) -> MessageBuilder {
    MessageBuilder::new().double(1, seconds(at_ms)).int(2, i64::try_from(step).unwrap_or(i64::MAX))
}

#[expect(clippy::cast_precision_loss, reason = "milliseconds of some thousand years are exact")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

/// Returns the settings of a trial for the hyperparameter table. Settings without a value are left out: the
/// plugin knows numbers, strings and booleans.
fn session_start(run: &TrackedRun<'_>, begun: u64) -> MessageBuilder {
    let mut start = MessageBuilder::new();
    for param in &run.trial.params {
        // `google.protobuf.Value`
        let value = match &param.value {
            Value::Number(number) => MessageBuilder::new().double(2, number.as_f64().unwrap_or(f64::NAN)),
            Value::String(text) => MessageBuilder::new().text(3, text),
            Value::Bool(is_set) => MessageBuilder::new().int(4, i64::from(*is_set)),
            Value::Null | Value::Array(_) | Value::Object(_) => continue,
        };
        start = start.message(1, &MessageBuilder::new().text(1, &param.path).message(2, &value));
    }
    let start = start.text(4, run.name()).double(5, seconds(begun));
    hparams("_hparams_/session_start_info", &MessageBuilder::new().message(3, &start))
}

/// Builds a `Summary.Value` for the hyperparameter plugin: data in the metadata, and an empty tensor.
fn hparams(tag: &str, data: &MessageBuilder) -> MessageBuilder {
    let empty = MessageBuilder::new()
        .int(1, 1)
        .message(2, &MessageBuilder::new().message(2, &MessageBuilder::new().int(1, 0)));
    MessageBuilder::new().text(1, tag).message(8, &empty).message(9, &plugin("hparams", data.bytes()))
}

/// Builds a `SummaryMetadata`.
fn plugin(name: &str, content: &[u8]) -> MessageBuilder {
    MessageBuilder::new().message(1, &MessageBuilder::new().text(1, name).text(2, content))
}

/// Builds a `Summary.Value` for the text plugin: a tensor with one Markdown string (`DT_STRING` is 7).
fn text_value(tag: &str, text: &str) -> MessageBuilder {
    let shape = MessageBuilder::new().message(2, &MessageBuilder::new().int(1, 1));
    let tensor = MessageBuilder::new().int(1, 7).message(2, &shape).text(8, text);
    MessageBuilder::new().text(1, tag).message(8, &tensor).message(9, &plugin("text", &[]))
}

/// Returns the properties of a trial that are shown as texts, by tag.
fn texts(run: &TrackedRun<'_>) -> Vec<(String, String)> {
    let trial = run.trial;
    let mut about = format!("* id: {}\n* status: {}\n", trial.row.id, trial.row.status);
    for (name, value) in &trial.tags {
        about += &format!("* tag {name}: {value}\n");
    }
    let mut texts = vec![("dtrain/trial".to_owned(), about)];
    if !trial.notes.is_empty() {
        let notes: Vec<&str> = trial.notes.iter().map(|note| note.text.as_str()).collect();
        texts.push(("dtrain/notes".to_owned(), notes.join("\n\n")));
    }
    texts
}

/// Returns the `tensorboard.hparams.Status` for the status of a trial: 1 is success, 2 failure, 3 running.
fn session_status(status: TrialStatus) -> i64 {
    match status {
        TrialStatus::Completed => 1,
        TrialStatus::Created | TrialStatus::Running | TrialStatus::Waiting | TrialStatus::Unattended => 3,
        TrialStatus::Lost
        | TrialStatus::Pruned
        | TrialStatus::OutOfMemory
        | TrialStatus::Diverged
        | TrialStatus::Failed
        | TrialStatus::Stopped => 2,
    }
}

/// Writes one event as a record, with its length and checksums.
fn record(to: &mut dyn Write, event: &MessageBuilder) -> io::Result<()> {
    let length = as_u64(event.bytes().len()).to_le_bytes();
    to.write_all(&length)?;
    to.write_all(&masked(&length).to_le_bytes())?;
    to.write_all(event.bytes())?;
    to.write_all(&masked(event.bytes()).to_le_bytes())
}

/// Returns the CRC-32C of `bytes`, masked as in TensorFlow's records.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_the_bytes_that_tensorboard_writes() {
        let mut bytes = Vec::new();
        let sample = |value| MetricSample { step: 7, at_ms: 1500, value };
        scalars(&mut bytes, 7, &[(0, sample(0.5))], &["loss".to_owned()]).expect("memory");
        // Bytes that `RecordWriter` of tensorboard 2.21 writes for this event.
        let expected =
            b"\x1a\0\0\0\0\0\0\0\x12\x9b\xd8\x2d\x09\0\0\0\0\0\0\xf8\x3f\x10\x07\x2a\x0d\x0a\x0b\x0a\x04loss\
            \x15\0\0\0\x3f\x79\xe1\x8f\xbb";
        assert_eq!(bytes, expected);
        bytes.clear();
        // Points of one time are one event, of two times two.
        let tags = ["a", "b", "c"].map(str::to_owned);
        let later = MetricSample { at_ms: 1501, ..sample(2.0) };
        scalars(&mut bytes, 7, &[(0, sample(1.0)), (1, later), (2, sample(3.0))], &tags).expect("memory");
        let first = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
        assert_eq!(bytes.len(), 16 + first + 16 + (first - 10), "{bytes:?}");
    }
}

//! Validates the records of a bundle before any of it is imported.

use super::{ArchiveHeader, BundleError, LONGEST_NOTE, StudyName, StudyRecord, TrialRecord, hash};
use crate::TrialId;
use dtrain_recipes::name::{is_plain_name, is_trial_name};
use serde_json::Value;
use std::collections::BTreeSet;

/// Length limit in bytes of a line, such as a key, a host name or a layout in words.
const LONGEST_LINE: usize = 4096;

/// Length limit of a param's value, in bytes.
const LONGEST_PARAM: usize = 1 << 20;

/// Largest number that a history can store.
pub(super) const LARGEST: u64 = i64::MAX.cast_unsigned();

/// Latest valid time in milliseconds since the Unix epoch: the end of the year 9999.
pub(super) const LAST_MOMENT: u64 = 253_402_300_799_999;

/// Keys of the documents that every trial has.
const DOCUMENTS: [&str; 4] = ["recipe", "plan", "candidate", "provenance"];

/// A validator of the records of a bundle: they must be valid and unique, and the texts that they name must
/// come first.
#[derive(Debug, Default)]
pub(super) struct RecordValidator {
    trials: BTreeSet<TrialId>,
    studies: BTreeSet<StudyName>,
    texts: BTreeSet<String>,
}

/// The name by which errors refer to the record being checked.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordContext(pub(super) String);

impl RecordContext {
    /// Checks the header of a bundle.
    pub(super) fn head(&self, head: &ArchiveHeader) -> Result<(), BundleError> {
        self.non_empty_line("machine", &head.machine)?;
        self.non_empty_line("host", &head.host)?;
        self.line("program", &head.program)?;
        self.number("trials", head.trials)
    }

    pub(super) fn wrong(&self, field: impl Into<String>, what: impl Into<String>) -> BundleError {
        BundleError::Invalid { of: self.0.clone(), field: field.into(), what: what.into() }
    }

    /// Checks that `text` is a valid name of a trial or a study.
    fn trial_name(&self, field: &str, text: &str) -> Result<(), BundleError> {
        if is_trial_name(text) { Ok(()) } else { Err(self.wrong(field, no_name(text))) }
    }

    fn at_most(&self, field: &str, text: &str, most: usize) -> Result<(), BundleError> {
        if text.len() <= most {
            return Ok(());
        }
        Err(self.wrong(field, format!("has {} bytes, more than {most}", text.len())))
    }

    /// Checks that `text` is a single line without control characters, and not too long.
    fn line(&self, field: &str, text: &str) -> Result<(), BundleError> {
        self.at_most(field, text, LONGEST_LINE)?;
        match text.chars().find(|c| c.is_control()) {
            Some(odd) => Err(self.wrong(field, format!("contains the control character {odd:?}"))),
            None => Ok(()),
        }
    }

    /// Checks that `text` is a valid line that is not empty.
    fn non_empty_line(&self, field: &str, text: &str) -> Result<(), BundleError> {
        if text.is_empty() { Err(self.wrong(field, "is empty")) } else { self.line(field, text) }
    }

    fn number(&self, field: &str, number: u64) -> Result<(), BundleError> {
        if number <= LARGEST { Ok(()) } else { Err(self.wrong(field, format!("is {number}, too large"))) }
    }

    fn moment(&self, field: &str, at_ms: u64) -> Result<(), BundleError> {
        if at_ms <= LAST_MOMENT {
            Ok(())
        } else {
            Err(self.wrong(field, format!("is {at_ms}, which is no date")))
        }
    }

    fn json(&self, field: &str, text: &str) -> Result<Value, BundleError> {
        serde_json::from_str(text).map_err(|error| self.wrong(field, format!("is not JSON: {error}")))
    }

    fn object(&self, field: &str, text: &str) -> Result<(), BundleError> {
        match self.json(field, text)? {
            Value::Object(_) => Ok(()),
            _ => Err(self.wrong(field, "is not a JSON object")),
        }
    }

    fn study(&self, field: &str, study: &StudyName) -> Result<(), BundleError> {
        self.trial_name(&format!("{field}.name"), &study.name)?;
        let is_digest = study.digest.len() == 32 && study.digest.bytes().all(|b| b.is_ascii_hexdigit());
        if is_digest {
            return Ok(());
        }
        Err(self
            .wrong(format!("{field}.digest"), format!("is {:?}, not 32 hexadecimal digits", study.digest)))
    }

    fn id(&self, field: &str, id: &TrialId) -> Result<(), BundleError> {
        let is_plain = |b: u8| b.is_ascii_digit() || b.is_ascii_uppercase();
        let is_id = id.0.len() == 26 && id.0.bytes().all(is_plain);
        if is_id {
            Ok(())
        } else {
            Err(self.wrong(field, format!("is {:?}, not 26 letters and digits", id.0)))
        }
    }
}

fn no_name(text: &str) -> String {
    format!("is {text:?}, which is not a plain name (letters, digits, `-`, `_` and `.`)")
}

impl RecordValidator {
    pub(super) fn text(&mut self, text: &str) {
        self.texts.insert(hash(text));
    }

    /// Checks a trial, and returns its name for errors.
    pub(super) fn trial(&mut self, trial: &TrialRecord) -> Result<RecordContext, BundleError> {
        let of = RecordContext(named("trial", &trial.name));
        of.id("id", &trial.id)?;
        if !self.trials.insert(trial.id.clone()) {
            return Err(of.wrong("id", format!("is {}, which another trial of the bundle has", trial.id)));
        }
        names(&of, trial)?;
        for (field, text) in [("patch", &trial.patch), ("environment", &trial.environment)] {
            if text.as_ref().is_some_and(|text| !self.texts.contains(text)) {
                return Err(of.wrong(field, "names a text that does not come before it"));
            }
        }
        of.number("batch", trial.batch)?;
        of.number("predicted", trial.predicted.2.unwrap_or(0))?;
        of.moment("created_ms", trial.created_ms)?;
        documents(&of, trial)?;
        params(&of, trial)?;
        for (number, (at_ms, fact)) in trial.records.iter().enumerate() {
            let field = format!("records[{number}]");
            of.moment(&field, *at_ms)?;
            of.json(&field, fact)?;
        }
        for (number, (at_ms, text)) in trial.notes.iter().enumerate() {
            let field = format!("notes[{number}]");
            of.moment(&field, *at_ms)?;
            of.at_most(&field, text, LONGEST_NOTE)?;
        }
        for (name, value) in &trial.tags {
            of.non_empty_line("tags", name)?;
            of.at_most(&format!("tags.{name}"), value, LONGEST_NOTE)?;
        }
        series(&of, trial)?;
        Ok(of)
    }

    pub(super) fn study(&mut self, study: &StudyRecord) -> Result<(), BundleError> {
        let of = RecordContext(named("study", &study.name.name));
        of.study("name", &study.name)?;
        if !self.studies.insert(study.name.clone()) {
            return Err(of.wrong("name", "is in the bundle twice"));
        }
        of.object("json", &study.json)?;
        of.moment("created_ms", study.created_ms)?;
        let mut numbers = BTreeSet::new();
        for tried in &study.trials {
            let field = format!("trials[{}]", tried.number);
            of.number(&field, tried.number)?;
            once(&of, &field, &mut numbers, tried.number)?;
            of.object(&field, &tried.json)?;
            tried.trial.as_ref().map_or(Ok(()), |trial| of.id(&field, trial))?;
        }
        let mut numbers = BTreeSet::new();
        for (number, at_ms, json) in &study.events {
            let field = format!("events[{number}]");
            of.number(&field, *number)?;
            once(&of, &field, &mut numbers, *number)?;
            of.moment(&field, *at_ms)?;
            of.json(&field, json)?;
        }
        Ok(())
    }
}

/// Returns the name of a record for error messages; an invalid name is replaced.
pub(super) fn named(kind: &str, name: &str) -> String {
    match kind {
        "head" => "the head".to_owned(),
        _ if is_trial_name(name) => format!("{kind} {name}"),
        _ => format!("a {kind}"),
    }
}

fn once(
    of: &RecordContext,
    field: &str,
    numbers: &mut BTreeSet<u64>,
    number: u64,
) -> Result<(), BundleError> {
    if numbers.insert(number) { Ok(()) } else { Err(of.wrong(field, "is there twice")) }
}

/// Checks the names in a trial, which become file names and are shown on screens.
fn names(of: &RecordContext, trial: &TrialRecord) -> Result<(), BundleError> {
    of.trial_name("name", &trial.name)?;
    if trial.name == "last" {
        return Err(of.wrong("name", "is \"last\", which means the newest trial"));
    }
    if !is_plain_name(&trial.recipe) {
        return Err(of.wrong("recipe", no_name(&trial.recipe)));
    }
    trial.study.as_ref().map_or(Ok(()), |study| of.study("study", study))?;
    of.non_empty_line("machine", &trial.machine)?;
    of.non_empty_line("host", &trial.host)?;
    of.non_empty_line("objective", &trial.objective)?;
    if !matches!(trial.goal.as_str(), "min" | "max") {
        return Err(of.wrong("goal", format!("is {:?}, not `min` or `max`", trial.goal)));
    }
    for (field, text) in [
        ("layout", &trial.layout),
        ("config_hash", &trial.config_hash),
        ("host_digest", &trial.host_digest),
        ("model_digest", &trial.model_digest),
        ("program", &trial.program),
    ] {
        of.line(field, text)?;
    }
    trial.git_revision.as_ref().map_or(Ok(()), |revision| of.line("git_revision", revision))
}

fn documents(of: &RecordContext, trial: &TrialRecord) -> Result<(), BundleError> {
    if let Some(missing) = DOCUMENTS.iter().find(|kind| !trial.documents.contains_key(**kind)) {
        return Err(of.wrong(format!("documents.{missing}"), "is missing"));
    }
    for (kind, json) in &trial.documents {
        if !is_plain_name(kind) {
            return Err(of.wrong("documents", no_name(kind)));
        }
        of.object(&format!("documents.{kind}"), json)?;
    }
    Ok(())
}

fn params(of: &RecordContext, trial: &TrialRecord) -> Result<(), BundleError> {
    let mut paths = BTreeSet::new();
    for (path, value, source) in &trial.params {
        of.non_empty_line("params", path)?;
        let field = format!("params.{path}");
        if !paths.insert(path) {
            return Err(of.wrong(field, "is there twice"));
        }
        of.non_empty_line(&field, source)?;
        of.at_most(&field, value, LONGEST_PARAM)?;
        let is_value = match of.json(&field, value)? {
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => true,
        };
        if !is_value {
            return Err(of.wrong(field, "is not a number, a text or a truth value"));
        }
    }
    Ok(())
}

fn series(of: &RecordContext, trial: &TrialRecord) -> Result<(), BundleError> {
    let mut points = 0u64;
    for one in &trial.series {
        of.non_empty_line("series", &one.key)?;
        let field = format!("series[{}]", one.key);
        of.number(&field, one.attempt)?;
        points = points.saturating_add(one.points);
        of.number(&field, points)?;
    }
    if !trial.series.is_sorted_by(|a, b| (&a.key, a.rank, a.attempt) < (&b.key, b.rank, b.attempt)) {
        return Err(of.wrong("series", "are not in order"));
    }
    Ok(())
}

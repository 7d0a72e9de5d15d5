//! Validation of the contents of a bundle beyond its format: records, settings and provenance.

use super::super::{Parent, ValueSource};
use crate::fact::Fact;
use crate::provenance::Provenance;
use dtrain_protocol::AttemptId;
use dtrain_protocol::bundle::{self, ArchiveHeader, BundleError, Reader, Record};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

/// Reader of a bundle that validates each record.
pub(super) struct ValidatingReader<R> {
    reader: Reader<R>,
    /// Hashes of the texts in the bundle that are environments.
    environments: BTreeSet<String>,
}

impl<R: Read> ValidatingReader<R> {
    pub(super) fn new(from: R) -> Result<Self, BundleError> {
        Ok(Self { reader: Reader::new(from)?, environments: BTreeSet::new() })
    }

    pub(super) fn head(&self) -> &ArchiveHeader {
        self.reader.head()
    }

    /// Returns the next valid record; `None` at the end of a complete bundle.
    pub(super) fn read(&mut self) -> Result<Option<Record>, BundleError> {
        let record = self.reader.read()?;
        match &record {
            Some(Record::Text(text)) => {
                if serde_json::from_str::<BTreeMap<String, String>>(text).is_ok() {
                    self.environments.insert(bundle::hash(text));
                }
            }
            Some(Record::Trial(trial)) => self.check(trial)?,
            Some(Record::Points(_) | Record::Study(_)) | None => {}
        }
        Ok(record)
    }

    fn check(&self, trial: &bundle::TrialRecord) -> Result<(), BundleError> {
        document::<Provenance>(trial, "provenance")?;
        document::<Parent>(trial, "parent")?;
        if trial.environment.as_ref().is_some_and(|hash| !self.environments.contains(hash)) {
            return Err(wrong(trial, "environment", "names a text that is no environment"));
        }
        for (path, _, word) in &trial.params {
            source(trial, path, word)?;
        }
        check_attempts(trial)
    }
}

fn wrong(trial: &bundle::TrialRecord, field: impl Into<String>, what: impl Into<String>) -> BundleError {
    BundleError::Invalid { of: format!("trial {}", trial.name), field: field.into(), what: what.into() }
}

/// Checks that the document of the kind `kind` can be parsed, if the trial has one.
fn document<T: DeserializeOwned>(trial: &bundle::TrialRecord, kind: &str) -> Result<(), BundleError> {
    let Some(json) = trial.documents.get(kind) else { return Ok(()) };
    serde_json::from_str::<T>(json)
        .map(drop)
        .map_err(|error| wrong(trial, format!("documents.{kind}"), format!("cannot be read: {error}")))
}

/// Parses the origin of a parameter's value in a bundle.
pub(super) fn source(
    trial: &bundle::TrialRecord,
    path: &str,
    word: &str,
) -> Result<ValueSource, BundleError> {
    ValueSource::parse(word)
        .ok_or_else(|| wrong(trial, format!("params.{path}"), format!("has the unknown source {word:?}")))
}

/// Parses the records of a trial in a bundle, each with its time in milliseconds.
pub(super) fn facts(trial: &bundle::TrialRecord) -> Result<Vec<(u64, Fact)>, BundleError> {
    let read = |(number, (at_ms, json)): (usize, &(u64, String))| match serde_json::from_str(json) {
        Ok(fact) => Ok((*at_ms, fact)),
        Err(error) => Err(wrong(trial, format!("records[{number}]"), format!("cannot be read: {error}"))),
    };
    trial.records.iter().enumerate().map(read).collect()
}

/// Checks that an attempt starts once, and that only started attempts end and have series.
fn check_attempts(trial: &bundle::TrialRecord) -> Result<(), BundleError> {
    let mut started = BTreeSet::new();
    for (number, (_, fact)) in facts(trial)?.into_iter().enumerate() {
        let field = || format!("records[{number}]");
        let (attempt, step) = match &fact {
            Fact::AttemptStarted { attempt, from } => {
                if !started.insert(*attempt) {
                    return Err(wrong(trial, field(), format!("starts attempt {attempt} once more")));
                }
                (*attempt, *from)
            }
            Fact::AttemptEnded { attempt, .. } if !started.contains(attempt) => {
                return Err(wrong(trial, field(), format!("ends attempt {attempt}, which did not start")));
            }
            Fact::CheckpointCommitted { attempt, step, .. } => (*attempt, Some(*step)),
            Fact::CheckpointRefused { step, .. } => (AttemptId(0), Some(*step)),
            Fact::AttemptEnded { .. } | Fact::TrialEnded { .. } | Fact::Resumed => continue,
        };
        let largest = i64::MAX.cast_unsigned();
        if attempt.0 > largest || step.is_some_and(|step| step.0 > largest) {
            return Err(wrong(trial, field(), "has a number that is too large"));
        }
    }
    match trial.series.iter().find(|series| !started.contains(&AttemptId(series.attempt))) {
        Some(series) => {
            let what = format!("belongs to attempt {}, which did not start", series.attempt);
            Err(wrong(trial, format!("series[{}]", series.key), what))
        }
        None => Ok(()),
    }
}

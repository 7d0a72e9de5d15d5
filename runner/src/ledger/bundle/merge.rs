//! Merge of a bundle into a history.

use super::super::running_summary::RunningSummary;
use super::super::{BoxError, chunk, interned, open_points, points, stored, unstored, writer};
use super::History;
use super::check::{self, ValidatingReader};
use super::study::{put_study, study_here};
use crate::fact::LedgerError;
use dtrain_protocol::bundle::{self, ArchiveHeader, BundleError, Record};
use dtrain_protocol::series_codec::MetricSample;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use rusqlite::{ErrorCode, OptionalExtension, Transaction, params};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};

/// Changes that a merge made to a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct MergeReport {
    /// Number of trials that were new to the history.
    pub new: u64,
    /// Number of trials of other machines that have progressed since the last import.
    pub updated: u64,
    /// Number of trials that were already up to date.
    pub unchanged: u64,
    /// Number of notes and tags added to known trials.
    pub annotations: u64,
    /// Number of studies that were new to the history.
    pub studies: u64,
}

/// Error of importing bundles.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// A bundle is invalid.
    #[error("bundle {number}: {source}")]
    Bundle {
        /// Index of the invalid bundle, from 0.
        number: usize,
        /// Fault of the bundle.
        source: BundleError,
    },
    /// The history could not be written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Trial of the bundle with its points, by series.
struct TrialWithPoints {
    trial: Box<bundle::TrialRecord>,
    samples: Vec<Vec<MetricSample>>,
}

impl History {
    /// Validates a bundle without importing it; `Err` describes the fault.
    pub fn check_bundle(from: impl Read) -> Result<ArchiveHeader, BundleError> {
        let mut reader = ValidatingReader::new(from)?;
        while reader.read()?.is_some() {}
        Ok(reader.head().clone())
    }

    /// Merges bundles in one transaction: all of them, or none. `watch` is called for each trial.
    pub fn merge_bundles<R: Read>(
        &mut self,
        bundles: impl IntoIterator<Item = io::Result<R>>,
        watch: &mut dyn FnMut(&TrialId),
    ) -> Result<Vec<MergeReport>, ImportError> {
        self.known = None;
        let merged = self.write("import bundles into", |transaction| {
            let merge = |(number, from): (usize, io::Result<R>)| {
                from.map_err(BundleError::Io)
                    .map_err(BoxError::from)
                    .and_then(|from| merge(transaction, from, &mut *watch))
                    .map_err(|fault| BoxError::from(FailedBundle { number, fault }))
            };
            bundles.into_iter().enumerate().map(merge).collect()
        });
        merged.map_err(import_error)
    }
}

/// Failure of the merge of one bundle.
#[derive(Debug, thiserror::Error)]
#[error("{fault}")]
struct FailedBundle {
    number: usize,
    fault: BoxError,
}

/// Tells a failure that a bundle caused from one of the history.
fn import_error(LedgerError { doing, path, source }: LedgerError) -> ImportError {
    let FailedBundle { number, fault } = match source.downcast() {
        Ok(refused) => *refused,
        Err(source) => return LedgerError { doing, path, source }.into(),
    };
    match fault.downcast() {
        Ok(source) => ImportError::Bundle { number, source: *source },
        Err(source) => super::super::ledger_error(doing, &path, source).into(),
    }
}

/// Merges one bundle into the history, within a transaction.
fn merge(
    transaction: &Transaction<'_>,
    from: impl Read,
    watch: &mut dyn FnMut(&TrialId),
) -> Result<MergeReport, BoxError> {
    let mut reader = ValidatingReader::new(from)?;
    let (mut merged, mut texts) = (MergeReport::default(), HashMap::new());
    let mut whole: Option<TrialWithPoints> = None;
    loop {
        let next = reader.read()?;
        if let Some(Record::Points(samples)) = next {
            if let Some(whole) = &mut whole {
                whole.add(samples);
            }
            continue;
        }
        if let Some(whole) = whole.take() {
            merge_trial(transaction, &whole, &texts, &mut merged)
                .map_err(|fault| attribute_fault(&format!("trial {}", whole.trial.name), fault))?;
            watch(&whole.trial.id);
        }
        match next {
            None => return Ok(merged),
            Some(Record::Text(text)) => drop(texts.insert(bundle::hash(&text), text)),
            Some(Record::Trial(trial)) => {
                whole = Some(TrialWithPoints { samples: vec![Vec::new(); trial.series.len()], trial });
            }
            Some(Record::Study(study)) => {
                let is_new = put_study(transaction, &study)
                    .map_err(|fault| attribute_fault(&format!("study {}", study.name.name), fault))?;
                merged.studies += u64::from(is_new);
            }
            Some(Record::Points(_)) => {}
        }
    }
}

/// Attributes a fault to the bundle if the tables reject one of its values, otherwise to the history.
fn attribute_fault(record: &str, fault: BoxError) -> BoxError {
    let code = fault.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
    let is_refused =
        matches!(code, Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig));
    if is_refused || fault.is::<serde_json::Error>() {
        return BundleError::Damaged(format!("{record} cannot be kept: {fault}")).into();
    }
    fault
}

fn merge_trial(
    transaction: &Transaction<'_>,
    whole: &TrialWithPoints,
    texts: &HashMap<String, String>,
    merged: &mut MergeReport,
) -> Result<(), BoxError> {
    let (row, change) = put_trial(transaction, whole, texts)?;
    let annotations = annotate(transaction, row, &whole.trial)?;
    match change {
        MergeOutcome::New => merged.new += 1,
        MergeOutcome::Forward => merged.updated += 1,
        MergeOutcome::None => merged.unchanged += 1,
    }
    if change != MergeOutcome::None {
        label(transaction, &whole.trial.name)?;
    }
    if change != MergeOutcome::New {
        merged.annotations += annotations;
    }
    Ok(())
}

impl TrialWithPoints {
    /// Adds points of the bundle to the first series of the trial that does not have all of its points yet.
    fn add(&mut self, samples: Vec<MetricSample>) {
        let series = self.trial.series.iter().zip(&mut self.samples);
        let next = series.into_iter().find(|(series, known)| (known.len() as u64) < series.points);
        if let Some((_, known)) = next {
            known.extend(samples);
        }
    }

    fn points(&self) -> u64 {
        self.trial.series.iter().map(|series| series.points).sum()
    }
}

/// Effect of a merge on one trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MergeOutcome {
    New,
    Forward,
    None,
}

/// Inserts or updates a trial, unless the history already has all of it; returns its row number.
fn put_trial(
    transaction: &Transaction<'_>,
    whole: &TrialWithPoints,
    texts: &HashMap<String, String>,
) -> Result<(i64, MergeOutcome), BoxError> {
    let trial = &whole.trial;
    let known: Option<(i64, Option<i64>, i64)> = transaction
        .query_row(
            "SELECT trial.id, imported_trial.points, (SELECT count(*) FROM record WHERE record.trial = trial.id)
             FROM trial LEFT JOIN imported_trial ON imported_trial.trial = trial.id WHERE uid = ?1",
            [&trial.id.0],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let change = match known {
        None => MergeOutcome::New,
        Some((_, Some(points), facts))
            if (trial.records.len() as u64, whole.points()) > (unstored(facts), unstored(points)) =>
        {
            MergeOutcome::Forward
        }
        // For trials of this machine, this history is authoritative.
        Some((row, ..)) => return Ok((row, MergeOutcome::None)),
    };
    if let Some((row, ..)) = known {
        for table in
            ["document", "record", "attempt", "checkpoint", "param", "series", "summary", "imported_trial"]
        {
            transaction.execute(&format!("DELETE FROM {table} WHERE trial = ?1"), [row])?;
        }
    }
    let row = put_row(transaction, trial, texts)?;
    transaction.execute(
        "INSERT INTO imported_trial(trial, history_id, host, name, points) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![row, trial.machine, trial.host, trial.name, stored(whole.points())],
    )?;
    for (kind, json) in &trial.documents {
        transaction.execute(
            "INSERT INTO document(trial, kind, json) VALUES (?1, ?2, ?3)",
            params![row, kind, json],
        )?;
    }
    for (path, value, source) in &trial.params {
        let number = serde_json::from_str::<serde_json::Value>(value)?.as_f64();
        let source = check::source(trial, path, source)?.word();
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO param(trial, key, value, number, source) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![row, interned::key_id(transaction, path)?, value, number, source])?;
    }
    put_series(transaction, row, whole)?;
    for (seq, (at_ms, fact)) in check::facts(trial)?.iter().enumerate() {
        writer::add_fact(transaction, row, seq, fact, stored(*at_ms))?;
    }
    // Copy the row of the trial's own machine, which may be older than the last points.
    transaction.execute(
        "UPDATE trial SET measured_step_seconds = ?2, measured_step_spread = ?3, measured_tokens_per_second = ?4
         WHERE id = ?1",
        params![row, trial.measured.0, trial.measured.1, trial.measured.2],
    )?;
    Ok((row, change))
}

/// Inserts the row of a trial as newly created, before any of its records.
fn put_row(
    transaction: &Transaction<'_>,
    trial: &bundle::TrialRecord,
    texts: &HashMap<String, String>,
) -> Result<i64, BoxError> {
    let keep = |table, column, hash: &Option<String>| -> Result<Option<String>, BoxError> {
        let Some(text) = hash.as_ref().and_then(|hash| texts.get(hash)) else { return Ok(None) };
        Ok(Some(interned::insert_text(transaction, table, column, text)?))
    };
    let patch = keep("patch", "text", &trial.patch)?;
    let environment = keep("environment", "json", &trial.environment)?;
    // The labels of all trials of this name are assigned afterwards.
    let row = transaction.query_row(
        "INSERT INTO trial(uid, label, recipe, study, state, objective, layout, batch, learning_rate, config_hash,
             host_digest, model_digest, predicted_step_seconds, predicted_tokens_per_second,
             predicted_memory_bytes, created_ms, git_revision, git_dirty, patch_hash, environment_hash, program, goal)
         VALUES (?1, ?1, ?2, ?3, 'created', ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)
         ON CONFLICT(uid) DO UPDATE SET state = 'created', verdict = NULL, started_ms = NULL, ended_ms = NULL,
             patch_hash = excluded.patch_hash, environment_hash = excluded.environment_hash
         RETURNING id",
        params![
            trial.id.0,
            trial.recipe,
            trial.study.as_ref().map(|study| study_here(transaction, study)).transpose()?,
            trial.objective,
            trial.layout,
            stored(trial.batch),
            trial.learning_rate,
            trial.config_hash,
            trial.host_digest,
            trial.model_digest,
            trial.predicted.0,
            trial.predicted.1,
            trial.predicted.2.map(stored),
            stored(trial.created_ms),
            trial.git_revision,
            trial.git_dirty,
            patch,
            environment,
            trial.program,
            trial.goal,
        ],
        |row| row.get(0),
    )?;
    // A trial that begins here gets a number that no trial of the recipe has on any machine.
    let number = trial.name.strip_prefix(&trial.recipe).and_then(|rest| rest.strip_prefix('-'));
    if let Some(number) = number.and_then(|number| number.parse::<u32>().ok()) {
        transaction.execute(
            "INSERT INTO recipe(name, last_number) VALUES (?1, ?2)
             ON CONFLICT(name) DO UPDATE SET last_number = max(last_number, excluded.last_number)",
            params![trial.recipe, number],
        )?;
    }
    Ok(row)
}

fn put_series(transaction: &Transaction<'_>, row: i64, whole: &TrialWithPoints) -> Result<(), BoxError> {
    let mut folds = BTreeMap::<(i64, u32), RunningSummary>::new();
    for (series, samples) in whole.trial.series.iter().zip(&whole.samples) {
        let (rank, attempt) = (Rank(series.rank), AttemptId(series.attempt));
        let id = points::series_of(transaction, row, &series.key, rank, attempt)?;
        open_points::add_chunks(transaction, id, &chunk::cut(samples, true).0)?;
        let last = samples.iter().map(|sample| stored(sample.step)).max().unwrap_or(-1);
        transaction.execute("UPDATE series SET last_step = ?2 WHERE id = ?1", [id, last])?;
        let key = interned::key_id(transaction, &series.key)?;
        folds.entry((key, series.rank)).or_default().add(attempt, samples);
    }
    folds.iter().try_for_each(|((key, rank), fold)| fold.write(transaction, row, *key, *rank))
}

/// Adds notes and tags that a trial lacks; returns their number.
fn annotate(transaction: &Transaction<'_>, row: i64, trial: &bundle::TrialRecord) -> Result<u64, BoxError> {
    let mut added = 0;
    for (at_ms, text) in &trial.notes {
        added += transaction.execute(
            "INSERT INTO note(trial, at_ms, text) SELECT ?1, ?2, ?3
             WHERE NOT EXISTS (SELECT 1 FROM note WHERE trial = ?1 AND at_ms = ?2 AND text = ?3)",
            params![row, stored(*at_ms), text],
        )?;
    }
    for (name, value) in &trial.tags {
        added += transaction.execute(
            "INSERT INTO tag(trial, name, value) VALUES (?1, ?2, ?3)
             ON CONFLICT DO UPDATE SET value = excluded.value WHERE excluded.value > value",
            params![row, name, value],
        )?;
    }
    Ok(added as u64)
}

/// Assigns labels to the imported trials whose label on their own machine is `name`: the oldest gets this
/// label, unless a trial of this machine has it; the others get it with the end of their id.
fn label(transaction: &Transaction<'_>, name: &str) -> Result<(), BoxError> {
    let mut select = transaction.prepare_cached(
        "SELECT trial.id, uid, label FROM trial JOIN imported_trial ON imported_trial.trial = trial.id
         WHERE imported_trial.name = ?1 ORDER BY uid",
    )?;
    let all = select.query_map([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let all: Vec<(i64, String, String)> = all.collect::<Result<_, _>>()?;
    let is_taken = |label: &str| -> Result<bool, BoxError> {
        let query = "SELECT EXISTS(SELECT 1 FROM trial WHERE label = ?1 AND NOT EXISTS
                         (SELECT 1 FROM imported_trial WHERE imported_trial.trial = trial.id AND imported_trial.name = ?2))";
        Ok(transaction.prepare_cached(query)?.query_row([label, name], |row| row.get(0))?)
    };
    let mut is_free = !is_taken(name)?;
    let mut wanted = Vec::new();
    for (row, uid, label) in &all {
        let end = uid.len().saturating_sub(6);
        let short = format!("{name}-{}", uid[end..].to_lowercase());
        let given = match (std::mem::take(&mut is_free), is_taken(&short)?) {
            (true, _) => name.to_owned(),
            (false, false) => short,
            (false, true) => uid.to_lowercase(),
        };
        if given != *label {
            wanted.push((*row, given));
        }
    }
    // Labels must be unique at every moment.
    for (row, _) in &wanted {
        transaction.execute("UPDATE trial SET label = uid WHERE id = ?1", [row])?;
    }
    for (row, given) in &wanted {
        transaction.execute("UPDATE trial SET label = ?2 WHERE id = ?1", params![row, given])?;
    }
    Ok(())
}

//! The merge of a bundle into a history.

use super::super::fold::Fold;
use super::super::{Fault, Source, chunk, create, keep, live, points, stored, unstored};
use super::History;
use crate::fact::{Fact, LedgerError};
use dtrain_protocol::bundle::{self, BundleError, Head, Reader, Record, Study, StudyName};
use dtrain_protocol::points::Sample;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::collections::{BTreeMap, HashMap};
use std::io::Read;

/// What a merge changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Merged {
    /// Trials that the history did not have.
    pub new: u64,
    /// Trials of other machines that went on since they were imported last.
    pub brought_forward: u64,
    /// Trials that it had so.
    pub unchanged: u64,
    /// Notes and tags that it did not have, of trials that it had.
    pub annotations: u64,
    /// Studies that it did not have.
    pub studies: u64,
}

/// Why a bundle was not imported, or not whole.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// It is not as dtrain writes bundles.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The history could not be written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// A trial with its points, by series.
struct Whole {
    trial: Box<bundle::Trial>,
    samples: Vec<Vec<Sample>>,
}

impl History {
    /// Reads a bundle to its end and changes nothing; `Err` says what is wrong with it.
    pub fn check_bundle(from: impl Read) -> Result<Head, BundleError> {
        let mut reader = Reader::new(from)?;
        while let Some(record) = reader.read()? {
            if let Record::Trial(trial) = &record {
                facts(trial).map_err(|fault| BundleError::Damaged(fault.to_string()))?;
            }
        }
        Ok(reader.head().clone())
    }

    /// Merges a bundle that [`History::check_bundle`] found whole; each trial is one transaction. `told` hears of each trial.
    pub fn merge_bundle(
        &mut self,
        from: impl Read,
        told: &mut dyn FnMut(&TrialId),
    ) -> Result<Merged, ImportError> {
        let mut reader = Reader::new(from)?;
        let (mut merged, mut texts) = (Merged::default(), HashMap::new());
        let mut whole: Option<Whole> = None;
        loop {
            let next = reader.read()?;
            if let Some(Record::Points(samples)) = next {
                if let Some(whole) = &mut whole {
                    whole.add(samples);
                }
                continue;
            }
            if let Some(whole) = whole.take() {
                self.merge_trial(&whole, &texts, &mut merged)?;
                told(&whole.trial.id);
            }
            match next {
                None => return Ok(merged),
                Some(Record::Text(text)) => drop(texts.insert(bundle::hash(&text), text)),
                Some(Record::Trial(trial)) => {
                    whole = Some(Whole { samples: vec![Vec::new(); trial.series.len()], trial });
                }
                Some(Record::Study(study)) => {
                    let is_new =
                        self.write("write a study to", |transaction| put_study(transaction, &study))?;
                    merged.studies += u64::from(is_new);
                }
                Some(Record::Points(_)) => {}
            }
        }
    }

    fn merge_trial(
        &mut self,
        whole: &Whole,
        texts: &HashMap<String, String>,
        merged: &mut Merged,
    ) -> Result<(), ImportError> {
        self.known = None;
        let change = self.write("write a trial to", |transaction| {
            let (row, change) = put_trial(transaction, whole, texts)?;
            let annotations = annotate(transaction, row, &whole.trial)?;
            if change != Change::None {
                label(transaction, &whole.trial.name)?;
            }
            Ok((change, annotations))
        });
        let (change, annotations) = change?;
        match change {
            Change::New => merged.new += 1,
            Change::Forward => merged.brought_forward += 1,
            Change::None => {
                merged.unchanged += 1;
            }
        }
        if change != Change::New {
            merged.annotations += annotations;
        }
        Ok(())
    }
}

impl Whole {
    /// Adds the next points of the bundle.
    fn add(&mut self, samples: Vec<Sample>) {
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

/// What became of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    New,
    Forward,
    None,
}

/// The facts of a trial, with when they became known.
fn facts(trial: &bundle::Trial) -> Result<Vec<(u64, Fact)>, Fault> {
    let read = |(at_ms, json): &(u64, String)| match serde_json::from_str(json) {
        Ok(fact) => Ok((*at_ms, fact)),
        Err(error) => Err(format!("a fact of trial {} cannot be read: {error}", trial.id).into()),
    };
    trial.facts.iter().map(read).collect()
}

/// Brings a trial to what the bundle says, unless the history knows as much; returns its row.
fn put_trial(
    transaction: &Transaction<'_>,
    whole: &Whole,
    texts: &HashMap<String, String>,
) -> Result<(i64, Change), Fault> {
    let trial = &whole.trial;
    let known: Option<(i64, Option<i64>, i64)> = transaction
        .query_row(
            "SELECT trial.id, origin.points, (SELECT count(*) FROM fact WHERE fact.trial = trial.id)
             FROM trial LEFT JOIN origin ON origin.trial = trial.id WHERE uid = ?1",
            [&trial.id.0],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()?;
    let change = match known {
        None => Change::New,
        Some((_, Some(points), facts))
            if (trial.facts.len() as u64, whole.points()) > (unstored(facts), unstored(points)) =>
        {
            Change::Forward
        }
        // What was trained here is known best here.
        Some((row, ..)) => return Ok((row, Change::None)),
    };
    if let Some((row, ..)) = known {
        for table in ["document", "fact", "attempt", "checkpoint", "param", "series", "summary", "origin"] {
            transaction.execute(&format!("DELETE FROM {table} WHERE trial = ?1"), [row])?;
        }
    }
    let row = put_row(transaction, trial, texts)?;
    transaction.execute(
        "INSERT INTO origin(trial, machine, host, name, points) VALUES (?1, ?2, ?3, ?4, ?5)",
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
        let source = Source::parse(source).unwrap_or(Source::Recipe).word();
        transaction
            .prepare_cached(
                "INSERT OR REPLACE INTO param(trial, key, value, number, source) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![row, create::key(transaction, path)?, value, number, source])?;
    }
    put_series(transaction, row, whole)?;
    for (seq, (at_ms, fact)) in facts(trial)?.iter().enumerate() {
        keep::add_fact(transaction, row, seq, fact, stored(*at_ms))?;
    }
    // As its own machine has it, which may have written it down before the last points came.
    transaction.execute(
        "UPDATE trial SET measured_step_seconds = ?2, measured_step_spread = ?3, measured_tokens_per_second = ?4
         WHERE id = ?1",
        params![row, trial.measured.0, trial.measured.1, trial.measured.2],
    )?;
    Ok((row, change))
}

/// The row of a trial as it was made: nothing happened yet.
fn put_row(
    transaction: &Transaction<'_>,
    trial: &bundle::Trial,
    texts: &HashMap<String, String>,
) -> Result<i64, Fault> {
    let keep = |table, column, hash: &Option<String>| -> Result<Option<String>, Fault> {
        let Some(text) = hash.as_ref().and_then(|hash| texts.get(hash)) else { return Ok(None) };
        Ok(Some(create::keep_once(transaction, table, column, text)?))
    };
    let patch = keep("patch", "text", &trial.patch)?;
    let environment = keep("environment", "json", &trial.environment)?;
    // The labels of all trials of that name are given afterwards.
    let row = transaction.query_row(
        "INSERT INTO trial(uid, label, recipe, search, state, objective, layout, batch, learning_rate, config_hash,
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
    // A trial that begins here takes a number that none of that recipe has anywhere.
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

fn put_series(transaction: &Transaction<'_>, row: i64, whole: &Whole) -> Result<(), Fault> {
    let mut folds = BTreeMap::<(i64, u32), Fold>::new();
    for (series, samples) in whole.trial.series.iter().zip(&whole.samples) {
        let (rank, attempt) = (Rank(series.rank), AttemptId(series.attempt));
        let id = points::series_of(transaction, row, &series.key, rank, attempt)?;
        live::add_chunks(transaction, id, &chunk::cut(samples, true).0)?;
        let last = samples.iter().map(|sample| stored(sample.step)).max().unwrap_or(-1);
        transaction.execute("UPDATE series SET last_step = ?2 WHERE id = ?1", [id, last])?;
        let key = create::key(transaction, &series.key)?;
        folds.entry((key, series.rank)).or_default().add(attempt, samples);
    }
    folds.iter().try_for_each(|((key, rank), fold)| fold.write(transaction, row, *key, *rank))
}

/// Adds notes and tags that the trial does not have; returns how many.
fn annotate(transaction: &Transaction<'_>, row: i64, trial: &bundle::Trial) -> Result<u64, Fault> {
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

/// Gives labels to the trials of other machines that are called `name` there: the oldest has the name, unless a trial of this
/// machine has it; the others have it with the end of their id.
fn label(transaction: &Transaction<'_>, name: &str) -> Result<(), Fault> {
    let mut select = transaction.prepare_cached(
        "SELECT trial.id, uid, label FROM trial JOIN origin ON origin.trial = trial.id
         WHERE origin.name = ?1 ORDER BY uid",
    )?;
    let all = select.query_map([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let all: Vec<(i64, String, String)> = all.collect::<Result<_, _>>()?;
    let is_taken = |label: &str| -> Result<bool, Fault> {
        let query = "SELECT EXISTS(SELECT 1 FROM trial WHERE label = ?1 AND NOT EXISTS
                         (SELECT 1 FROM origin WHERE origin.trial = trial.id AND origin.name = ?2))";
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
    // No two may have the same one, not even for a moment.
    for (row, _) in &wanted {
        transaction.execute("UPDATE trial SET label = uid WHERE id = ?1", [row])?;
    }
    for (row, given) in &wanted {
        transaction.execute("UPDATE trial SET label = ?2 WHERE id = ?1", params![row, given])?;
    }
    Ok(())
}

/// What a study of the bundle is called here.
fn study_here(database: &Connection, study: &StudyName) -> Result<String, Fault> {
    if super::study_name(database, &study.name)? == *study {
        return Ok(study.name.clone());
    }
    Ok(format!("{}-{}", study.name, &study.digest[..6]))
}

/// Unites a study with what the history knows of it; tells whether it is new.
fn put_study(transaction: &Transaction<'_>, study: &Study) -> Result<bool, Fault> {
    let here = study_here(transaction, &study.name)?;
    let mut is_new = false;
    if here != study.name.name {
        is_new = transaction.execute(
            "INSERT OR IGNORE INTO study(name, json, created_ms) VALUES (?1, ?2, ?3)",
            params![here, study.json, stored(study.created_ms)],
        )? == 1;
        transaction.execute(
            "INSERT OR IGNORE INTO study_origin(name, there, digest) VALUES (?1, ?2, ?3)",
            params![here, study.name.name, study.name.digest],
        )?;
    }
    for tried in &study.tried {
        let trial = tried.trial.as_ref().and_then(|trial| keep::row_of(transaction, trial).ok());
        transaction.execute(
            "INSERT INTO tried(study, number, json, trial, refused) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET trial = coalesce(trial, excluded.trial)",
            params![here, stored(tried.number), tried.json, trial, tried.refused],
        )?;
    }
    for (number, at_ms, json) in &study.events {
        transaction.execute(
            "INSERT OR IGNORE INTO study_event(study, number, at_ms, json) VALUES (?1, ?2, ?3, ?4)",
            params![here, stored(*number), stored(*at_ms), json],
        )?;
    }
    Ok(is_new)
}

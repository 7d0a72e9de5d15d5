//! Details of one trial, and changes that a user may make to it.

mod outline;

pub use outline::TrialOutline;

use super::relocate::relocated;
use super::state::TrialActivity;
use super::{
    BoxError, ExpectedPerformance, History, NoiseScale, Parent, Summary, TrialParameter, TrialRow,
    ValueSource, columns, figures, list, lookup, noise_scale, now_ms, open_points, unstored,
};
use crate::fact::{AttemptEnd, LedgerError, Verdict};
use crate::provenance::Provenance;
use dtrain_protocol::{AttemptId, StepId, TrialId};
use dtrain_recipes::Recipe;
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Everything about one trial except its points.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialDetails {
    /// Trial as in the list of trials.
    pub row: TrialRow,
    /// Verdict of the trial; `None` before the end.
    pub verdict: Option<Verdict>,
    /// Recipe of the user, as JSON.
    pub recipe: Value,
    /// Whole plan, as JSON; null if the recorded text is not JSON.
    pub plan: Value,
    /// Candidate that was trained, as JSON.
    pub candidate: Value,
    /// Values of recipe and candidate, sorted by path.
    pub params: Vec<TrialParameter>,
    /// Performance that the planner expected.
    pub predicted: ExpectedPerformance,
    /// All attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// All checkpoints, oldest first, refused ones included.
    pub checkpoints: Vec<Checkpoint>,
    /// Summaries of all series.
    pub figures: Vec<Summary>,
    /// Gradient noise scale; `None` if the replicas did not measure it.
    pub noise_scale: Option<NoiseScale>,
    /// Checkpoint of another trial that the trial began with; `None` if it started anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// Code, program and environment that produced the trial.
    pub provenance: Provenance,
    /// Notes of the user, oldest first.
    pub notes: Vec<Note>,
    /// Values of the trial's tags, by name.
    pub tags: BTreeMap<String, String>,
}

impl TrialDetails {
    /// Returns the summary of the series `key`, from the lowest rank that reports it.
    pub fn figure(&self, key: &str) -> Option<&Summary> {
        figures::summary_of(&self.figures, key)
    }

    /// Returns the unit of the trial's throughput: samples for a model of rows, otherwise tokens.
    pub fn unit_of_speed(&self) -> &'static str {
        let recipe = serde_json::from_value::<Recipe>(self.recipe.clone());
        let has_rows = recipe.is_ok_and(|recipe| recipe.model.sample_tokens() == 1) && !self.is_script();
        if has_rows { "samples/s" } else { "tokens/s" }
    }

    /// Returns `true` if the trial runs the user's own program.
    pub fn is_script(&self) -> bool {
        self.recipe.pointer("/model/kind").and_then(Value::as_str) == Some("command")
    }
}

/// One attempt of a trial: a launch of the trial's ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Attempt {
    /// Number of the attempt, from 1.
    pub number: AttemptId,
    /// Step of the checkpoint that the attempt resumed from; `None` if it started anew.
    pub from: Option<StepId>,
    /// Time when the attempt started, in milliseconds since the Unix epoch.
    pub started_ms: u64,
    /// Time when the attempt ended, in milliseconds since the Unix epoch; `None` before that.
    pub ended_ms: Option<u64>,
    /// Result of the attempt; `None` before its end.
    pub ended: Option<AttemptEnd>,
}

/// Committed checkpoint in the history. An old one may have been removed from disk since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    /// Attempt that wrote the checkpoint.
    pub attempt: AttemptId,
    /// Training steps completed in the checkpoint.
    pub step: StepId,
    /// Time of the commit, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Path of the checkpoint's folder.
    pub folder: PathBuf,
    /// Reason why the checkpoint no longer counts; `None` if it was not refused.
    pub refused: Option<String>,
}

/// Note of the user about a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Time when the note was written, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Text of the note.
    pub text: String,
}

impl History {
    /// Returns everything about a trial except its points; `activity` tells whether an agent or controller
    /// works on it.
    pub fn trial(
        &self,
        trial: &TrialId,
        activity: &dyn Fn(&TrialId) -> TrialActivity,
    ) -> Result<TrialDetails, LedgerError> {
        self.read("read a trial from", |database| {
            let mut found = show(database, lookup::row_of(database, trial)?, activity)?;
            self.relocate(trial, &mut found.checkpoints);
            if let Some(parent) = &mut found.parent {
                parent.folder = relocated(self.root(), &parent.trial, std::mem::take(&mut parent.folder));
            }
            Ok(found)
        })
    }

    /// Lists all checkpoints of a trial, oldest first, refused ones included.
    pub fn checkpoints(&self, trial: &TrialId) -> Result<Vec<Checkpoint>, LedgerError> {
        self.read("read checkpoints from", |database| {
            let mut found = checkpoints(database, lookup::row_of(database, trial)?)?;
            self.relocate(trial, &mut found);
            Ok(found)
        })
    }

    /// Changes the folders of checkpoints to those in the state folder in use, if it was copied or moved.
    fn relocate(&self, trial: &TrialId, checkpoints: &mut [Checkpoint]) {
        for saved in checkpoints {
            saved.folder = relocated(self.root(), trial, std::mem::take(&mut saved.folder));
        }
    }

    /// Adds a note to a trial.
    pub fn add_note(&mut self, trial: &TrialId, text: &str) -> Result<(), LedgerError> {
        self.write("write a note to", |transaction| {
            let trial = lookup::row_of(transaction, trial)?;
            transaction.execute(
                "INSERT INTO note(trial, at_ms, text) VALUES (?1, ?2, ?3)",
                params![trial, now_ms(), text],
            )?;
            Ok(())
        })
    }

    /// Sets or replaces a tag of a trial; an empty value removes it.
    pub fn set_tag(&mut self, trial: &TrialId, name: &str, value: &str) -> Result<(), LedgerError> {
        self.write("write a tag to", |transaction| {
            let trial = lookup::row_of(transaction, trial)?;
            if value.is_empty() {
                transaction
                    .execute("DELETE FROM tag WHERE trial = ?1 AND name = ?2", params![trial, name])?;
            } else {
                transaction.execute(
                    "INSERT OR REPLACE INTO tag(trial, name, value) VALUES (?1, ?2, ?3)",
                    params![trial, name, value],
                )?;
            }
            Ok(())
        })
    }

    /// Deletes a trial like [`Self::delete`], but in small transactions, which need less room on a full disk.
    ///
    /// After an interruption the trial is still listed, with the remaining rows; call it again.
    pub fn delete_in_parts(
        &mut self,
        trial: &TrialId,
        activity: &dyn Fn(&TrialId) -> TrialActivity,
    ) -> Result<(), LedgerError> {
        self.read("read a trial from", |database| {
            refuse_running(&line(database, lookup::row_of(database, trial)?, activity)?)
        })?;
        let of_series = "DELETE FROM series WHERE id IN (SELECT id FROM series WHERE trial = ?1 LIMIT 1)";
        while self.delete_part(trial, of_series)? > 0 {}
        for table in PARTS {
            self.delete_part(trial, &format!("DELETE FROM {table} WHERE trial = ?1"))?;
        }
        self.delete(trial, activity)
    }

    /// Runs `sql`, which removes rows of a trial, and truncates the log; returns the number of rows.
    fn delete_part(&mut self, trial: &TrialId, sql: &str) -> Result<usize, LedgerError> {
        let removed = self.write("delete a trial from", |transaction| {
            Ok(transaction.execute(sql, [lookup::row_of(transaction, trial)?])?)
        })?;
        // If this fails, the next transaction needs more room and reports a full disk itself.
        drop(self.database.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())));
        Ok(removed)
    }

    /// Deletes a trial with its points and records. The caller removes its folder; its label is not reused.
    ///
    /// `Err` if an agent or controller works on it: stop it first.
    pub fn delete(
        &mut self,
        trial: &TrialId,
        activity: &dyn Fn(&TrialId) -> TrialActivity,
    ) -> Result<(), LedgerError> {
        self.write("delete a trial from", |transaction| {
            let row = lookup::row_of(transaction, trial)?;
            refuse_running(&line(transaction, row, activity)?)?;
            transaction.execute("DELETE FROM trial WHERE id = ?1", [row])?;
            transaction.execute_batch(
                "DELETE FROM patch WHERE hash NOT IN (SELECT patch_hash FROM trial WHERE patch_hash IS NOT NULL);
                 DELETE FROM environment
                 WHERE hash NOT IN (SELECT environment_hash FROM trial WHERE environment_hash IS NOT NULL);",
            )?;
            Ok(())
        })
    }
}

/// Tables that [`History::delete_in_parts`] empties first; a trial can be shown without them.
const PARTS: [&str; 6] = ["summary", "param", "tag", "open_points", "last_event", "spool"];

fn refuse_running(line: &TrialRow) -> Result<(), BoxError> {
    match line.status {
        status if status.is_live() => Err(format!("{} is {status}; stop it first", line.label).into()),
        _ => Ok(()),
    }
}

fn show(
    database: &Connection,
    trial: i64,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<TrialDetails, BoxError> {
    let row = line(database, trial, activity)?;
    let (verdict, predicted) = database.query_row(
        "SELECT verdict, predicted_step_seconds, predicted_tokens_per_second, predicted_memory_bytes
         FROM trial WHERE id = ?1",
        [trial],
        |row| {
            let predicted = ExpectedPerformance {
                step_seconds: row.get(1)?,
                tokens_per_second: row.get(2)?,
                memory_bytes: row.get::<_, Option<i64>>(3)?.map(unstored),
            };
            Ok((row.get::<_, Option<String>>(0)?, predicted))
        },
    )?;
    Ok(TrialDetails {
        row,
        verdict: verdict.map(|json| serde_json::from_str(&json)).transpose()?,
        recipe: document(database, trial, "recipe")?,
        plan: text(database, trial, "plan").map(|json| serde_json::from_str(&json).unwrap_or(Value::Null))?,
        candidate: document(database, trial, "candidate")?,
        params: parameters(database, trial)?,
        predicted,
        attempts: attempts(database, trial)?,
        checkpoints: checkpoints(database, trial)?,
        figures: figures::summaries(database, trial)?,
        noise_scale: noise_scale::of_trial(database, trial)?,
        parent: parent(database, trial)?,
        provenance: provenance(database, trial)?,
        notes: notes(database, trial)?,
        tags: tags(database, trial)?,
    })
}

fn notes(database: &Connection, trial: i64) -> Result<Vec<Note>, BoxError> {
    let query = "SELECT at_ms, text FROM note WHERE trial = ?1 ORDER BY at_ms, rowid";
    rows(database, query, trial, |row| Ok(Note { at_ms: unstored(row.get(0)?), text: row.get(1)? }))
}

fn tags(database: &Connection, trial: i64) -> Result<BTreeMap<String, String>, BoxError> {
    let query = "SELECT name, value FROM tag WHERE trial = ?1";
    Ok(rows(database, query, trial, |row| Ok((row.get(0)?, row.get(1)?)))?.into_iter().collect())
}

/// Returns all rows of a query about one trial.
fn rows<T>(
    database: &Connection,
    query: &str,
    trial: i64,
    read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
) -> Result<Vec<T>, BoxError> {
    let mut select = database.prepare_cached(query)?;
    let found = select.query_map([trial], read)?.collect::<Result<_, _>>()?;
    Ok(found)
}

fn line(
    database: &Connection,
    trial: i64,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<TrialRow, BoxError> {
    let query = format!("SELECT {} FROM {} WHERE trial.id = ?1", columns::columns(), columns::TABLES);
    open_points::with_summaries(database, &[trial], || {
        let mut select = database.prepare_cached(&query)?;
        let mut found = select.query([trial])?;
        let row = found.next()?.ok_or("the trial was deleted")?;
        list::row(row, activity)
    })
}

fn document(database: &Connection, trial: i64, kind: &str) -> Result<Value, BoxError> {
    Ok(serde_json::from_str(&text(database, trial, kind)?)?)
}

/// Returns the text of the document of a trial that has the kind `kind`.
fn text(database: &Connection, trial: i64, kind: &str) -> Result<String, BoxError> {
    let query = "SELECT json FROM document WHERE trial = ?1 AND kind = ?2";
    Ok(database.query_row(query, params![trial, kind], |row| row.get(0))?)
}

fn parameters(database: &Connection, trial: i64) -> Result<Vec<TrialParameter>, BoxError> {
    let query = "SELECT key.name, value, source FROM param JOIN key ON key.id = param.key WHERE trial = ?1 ORDER BY 1";
    let stored = rows(database, query, trial, |row| {
        Ok((row.get(0)?, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
    })?;
    stored
        .into_iter()
        .map(|(path, value, source)| {
            let source = ValueSource::parse(&source).unwrap_or(ValueSource::Recipe);
            Ok(TrialParameter { path, value: serde_json::from_str(&value)?, source })
        })
        .collect()
}

fn attempts(database: &Connection, trial: i64) -> Result<Vec<Attempt>, BoxError> {
    let query =
        "SELECT number, from_step, started_ms, ended_ms, ended FROM attempt WHERE trial = ?1 ORDER BY number";
    let stored = rows(database, query, trial, |row| {
        let attempt = Attempt {
            number: AttemptId(unstored(row.get(0)?)),
            from: row.get::<_, Option<i64>>(1)?.map(|step| StepId(unstored(step))),
            started_ms: unstored(row.get(2)?),
            ended_ms: row.get::<_, Option<i64>>(3)?.map(unstored),
            ended: None,
        };
        Ok((attempt, row.get::<_, Option<String>>(4)?))
    })?;
    stored
        .into_iter()
        .map(|(attempt, ended)| {
            let ended = ended.map(|json| serde_json::from_str(&json)).transpose()?;
            Ok(Attempt { ended, ..attempt })
        })
        .collect()
}

fn checkpoints(database: &Connection, trial: i64) -> Result<Vec<Checkpoint>, BoxError> {
    let query = "SELECT attempt, step, at_ms, folder, refused FROM checkpoint WHERE trial = ?1 ORDER BY step, attempt";
    rows(database, query, trial, |row| {
        Ok(Checkpoint {
            attempt: AttemptId(unstored(row.get(0)?)),
            step: StepId(unstored(row.get(1)?)),
            at_ms: unstored(row.get(2)?),
            folder: PathBuf::from(row.get::<_, String>(3)?),
            refused: row.get(4)?,
        })
    })
}

fn parent(database: &Connection, trial: i64) -> Result<Option<Parent>, BoxError> {
    let json: Option<String> = database
        .query_row("SELECT json FROM document WHERE trial = ?1 AND kind = 'parent'", [trial], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
}

/// Returns the provenance of a trial, with the patch and the environment that it shares with other trials.
fn provenance(database: &Connection, trial: i64) -> Result<Provenance, BoxError> {
    let mut made: Provenance = serde_json::from_value(document(database, trial, "provenance")?)?;
    let (patch, environment): (Option<String>, Option<String>) = database.query_row(
        "SELECT patch.text, environment.json FROM trial
         LEFT JOIN patch ON patch.hash = trial.patch_hash
         LEFT JOIN environment ON environment.hash = trial.environment_hash WHERE trial.id = ?1",
        [trial],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    if let Some(git) = &mut made.git {
        git.patch = patch;
    }
    if let Some(json) = environment {
        made.environment = serde_json::from_str(&json)?;
    }
    Ok(made)
}

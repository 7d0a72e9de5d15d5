//! Outline of a trial for exports. Plans are large, so they are not read for thousands of trials.

use super::super::{BoxError, History, TrialParameter, TrialRow, lookup};
use super::{Attempt, Note, attempts, document, notes, parameters, tags};
use crate::fact::{LedgerError, Verdict};
use crate::provenance::Provenance;
use rusqlite::Connection;
use std::collections::BTreeMap;

/// Trial without its plan, its figures and its points, for exports.
#[derive(Clone, Debug)]
pub struct TrialOutline {
    /// Trial as in the list of trials.
    pub row: TrialRow,
    /// Verdict of the trial; `None` before the end.
    pub verdict: Option<Verdict>,
    /// Values of recipe and candidate, sorted by path.
    pub params: Vec<TrialParameter>,
    /// All attempts, oldest first.
    pub attempts: Vec<Attempt>,
    /// Command line that created the trial.
    pub command: Vec<String>,
    /// Notes of the user, oldest first.
    pub notes: Vec<Note>,
    /// Values of the trial's tags, by name.
    pub tags: BTreeMap<String, String>,
}

impl History {
    /// Returns the outline of the trial in a row of the list.
    pub fn outline(&self, row: &TrialRow) -> Result<TrialOutline, LedgerError> {
        self.read("read a trial from", |database| {
            let trial = lookup::row_of(database, &row.id)?;
            let provenance: Provenance = serde_json::from_value(document(database, trial, "provenance")?)?;
            Ok(TrialOutline {
                row: row.clone(),
                verdict: verdict(database, trial)?,
                params: parameters(database, trial)?,
                attempts: attempts(database, trial)?,
                command: provenance.command,
                notes: notes(database, trial)?,
                tags: tags(database, trial)?,
            })
        })
    }
}

fn verdict(database: &Connection, trial: i64) -> Result<Option<Verdict>, BoxError> {
    let json: Option<String> = database
        .prepare_cached("SELECT verdict FROM trial WHERE id = ?1")?
        .query_row([trial], |row| row.get(0))?;
    Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
}

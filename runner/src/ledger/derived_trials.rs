//! Derived trials, which began with a checkpoint of another trial.

use super::{BoxError, History, Parent, lookup};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use rusqlite::Connection;

/// Trial that began with a checkpoint of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DerivedTrial {
    /// Id of the derived trial.
    pub trial: TrialId,
    /// Label of the derived trial.
    pub label: String,
    /// True if the derived trial has a checkpoint of its own, and so no longer needs those of its parent.
    pub is_independent: bool,
}

impl History {
    /// Lists the trials of this machine that began with a checkpoint of `trial`, oldest first.
    pub fn children(&self, trial: &TrialId) -> Result<Vec<DerivedTrial>, LedgerError> {
        self.read("look up the children of a trial in", |database| children(database, trial))
    }

    /// Returns `true` if the trial was launched and has not ended, so that a controller may be driving it.
    pub fn is_open(&self, trial: &TrialId) -> Result<bool, LedgerError> {
        self.read("look up a trial in", |database| {
            let row = lookup::row_of(database, trial)?;
            let query = "SELECT state = 'open' FROM trial WHERE id = ?1";
            Ok(database.query_row(query, [row], |row| row.get(0))?)
        })
    }
}

fn children(database: &Connection, parent: &TrialId) -> Result<Vec<DerivedTrial>, BoxError> {
    let mut select = database.prepare(
        "SELECT trial.uid, trial.label, document.json,
                EXISTS(SELECT 1 FROM checkpoint WHERE checkpoint.trial = trial.id)
         FROM document JOIN trial ON trial.id = document.trial
         WHERE document.kind = 'parent' AND NOT EXISTS (SELECT 1 FROM imported_trial WHERE imported_trial.trial = trial.id)
         ORDER BY trial.id",
    )?;
    let mut rows = select.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let of: Parent = serde_json::from_str(row.get_ref(2)?.as_str()?)?;
        if of.trial == *parent {
            found.push(DerivedTrial {
                trial: TrialId(row.get(0)?),
                label: row.get(1)?,
                is_independent: row.get(3)?,
            });
        }
    }
    Ok(found)
}

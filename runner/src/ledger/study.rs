//! Studies: searches over trials, with their suggestions and events.

use super::{BoxError, History, lookup, now_ms, stored, unstored};
use crate::fact::{Fact, Ledger, LedgerError, TrialUpdate, Verdict};
use dtrain_protocol::TrialId;
use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

/// One suggestion of a study, with the trial that evaluates it.
#[derive(Clone, Debug, PartialEq)]
pub struct StudyTrialRow {
    /// Number of the suggestion in its study, from 0.
    pub number: u64,
    /// Suggested settings, in the format of the planner.
    pub json: Value,
    /// Id of the trial that evaluates the suggestion; `None` if it was rejected, or the trial was deleted.
    pub trial: Option<TrialId>,
    /// Reason why the suggestion was rejected; `None` if it was trained.
    pub rejection: Option<String>,
}

impl History {
    /// Stores a new study with its configuration. `Err` if the name is taken.
    pub fn create_study(&mut self, name: &str, json: &Value) -> Result<(), LedgerError> {
        self.write("write a study to", |transaction| {
            transaction.execute(
                "INSERT INTO study(name, json, created_ms) VALUES (?1, ?2, ?3)",
                params![name, json.to_string(), now_ms()],
            )?;
            Ok(())
        })
    }

    /// Returns the configuration of a study; `None` if there is none of that name.
    pub fn study(&self, name: &str) -> Result<Option<Value>, LedgerError> {
        self.read("read a study from", |database| {
            let json: Option<String> = database
                .query_row("SELECT json FROM study WHERE name = ?1", [name], |row| row.get(0))
                .optional()?;
            Ok(json.map(|json| serde_json::from_str(&json)).transpose()?)
        })
    }

    /// Returns an unused name for a study of the recipe `recipe`: `<recipe>-tune-<n>`.
    pub fn free_study_name(&self, recipe: &str) -> Result<String, LedgerError> {
        self.read("look up a study in", |database| {
            let mut names = (1u64..).map(|number| format!("{recipe}-tune-{number}"));
            let taken = |name: &String| is_taken(database, name);
            names
                .find_map(|name| match taken(&name) {
                    Ok(true) => None,
                    Ok(false) => Some(Ok(name)),
                    Err(fault) => Some(Err(fault)),
                })
                .expect("numbers do not end")
        })
    }

    /// Stores the next suggestion of a study before its launch, with its trial or the reason for its
    /// rejection.
    pub fn record_study_trial(&mut self, study: &str, tried: &StudyTrialRow) -> Result<(), LedgerError> {
        self.write("write to a study in", |transaction| {
            let trial = tried.trial.as_ref().map(|trial| lookup::row_of(transaction, trial)).transpose()?;
            transaction.execute(
                "INSERT OR REPLACE INTO study_trial(study, number, json, trial, rejection) VALUES (?1, ?2, ?3, ?4, ?5)",
                params![study, stored(tried.number), tried.json.to_string(), trial, tried.rejection],
            )?;
            Ok(())
        })
    }

    /// Lists the suggestions of a study, by number.
    pub fn study_trials(&self, study: &str) -> Result<Vec<StudyTrialRow>, LedgerError> {
        self.read("read a study from", |database| {
            let mut select = database.prepare(
                "SELECT number, json, trial.uid, rejection FROM study_trial LEFT JOIN trial ON trial.id = study_trial.trial
                 WHERE study_trial.study = ?1 ORDER BY number",
            )?;
            let mut rows = select.query([study])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(StudyTrialRow {
                    number: unstored(row.get(0)?),
                    json: serde_json::from_str(row.get_ref(1)?.as_str()?)?,
                    trial: row.get::<_, Option<String>>(2)?.map(TrialId),
                    rejection: row.get(3)?,
                });
            }
            Ok(found)
        })
    }
}

impl History {
    /// Marks a stopped trial as pruned: its study will not continue the trial.
    pub fn end_as_pruned(&mut self, trial: &TrialId) -> Result<(), LedgerError> {
        // A trial ends only once, so it is resumed first.
        let facts = vec![Fact::Resumed, Fact::TrialEnded { verdict: Verdict::Pruned }];
        self.record(trial, &TrialUpdate { facts, ..TrialUpdate::default() })
    }

    /// Stores event `number` of a study, counted from 0. `Err` if it is stored already.
    pub fn record_study_event(&mut self, study: &str, number: u64, json: &Value) -> Result<(), LedgerError> {
        self.write("write to a study in", |transaction| {
            transaction.execute(
                "INSERT INTO study_event(study, number, at_ms, json) VALUES (?1, ?2, ?3, ?4)",
                params![study, stored(number), now_ms(), json.to_string()],
            )?;
            Ok(())
        })
    }

    /// Returns the events of a study, in order.
    pub fn study_events(&self, study: &str) -> Result<Vec<Value>, LedgerError> {
        self.read("read a study from", |database| {
            let mut select =
                database.prepare("SELECT json FROM study_event WHERE study = ?1 ORDER BY number")?;
            let mut rows = select.query([study])?;
            let mut found = Vec::new();
            while let Some(row) = rows.next()? {
                found.push(serde_json::from_str(row.get_ref(0)?.as_str()?)?);
            }
            Ok(found)
        })
    }
}

/// Returns `true` if a study has this name, or a trial belongs to a study of this name.
fn is_taken(database: &Connection, name: &str) -> Result<bool, BoxError> {
    let query =
        "SELECT EXISTS(SELECT 1 FROM study WHERE name = ?1) OR EXISTS(SELECT 1 FROM trial WHERE study = ?1)";
    Ok(database.query_row(query, [name], |row| row.get(0))?)
}

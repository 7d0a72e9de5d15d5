//! Lookup of a trial by the name that the user typed, or by its id.

use super::{BoxError, History};
use crate::fact::LedgerError;
use dtrain_protocol::TrialId;
use rusqlite::{Connection, OptionalExtension};

/// Error of a lookup whose name does not identify exactly one trial.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// No trial has the name.
    #[error("no trial named `{name}`{}", suggestion(.near))]
    Unknown {
        /// Name that was looked up.
        name: String,
        /// Labels that resemble the name, the most similar first.
        near: Vec<String>,
    },
    /// Several ids or labels begin with the name.
    #[error("`{name}` is ambiguous: {}; type more of the name", .matches.join(", "))]
    Ambiguous {
        /// Name that was looked up.
        name: String,
        /// Labels of the trials that the name may mean, at most eight.
        matches: Vec<String>,
    },
    /// The name is the beginning of an id, but too short to identify a trial.
    #[error("no trial named `{name}`; the beginning of an id needs at least {LEAST} characters")]
    Short {
        /// Name that was looked up.
        name: String,
    },
    /// The history could not be read.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

fn suggestion(near: &[String]) -> String {
    if near.is_empty() {
        return "; `dtrain history` lists all trials".to_owned();
    }
    format!("; did you mean {}?", near.join(", "))
}

/// Fewest characters of an id that identify a trial. An id begins with the time, so its first characters are
/// common to all trials of some years.
const LEAST: usize = 8;

/// Result of the lookup of a name.
enum Lookup {
    One(TrialId),
    Short,
    Many(Vec<String>),
    None(Vec<String>),
}

impl History {
    /// Finds the trial that `name` identifies: a label, an id, `last` for the one recorded last, or an
    /// unambiguous beginning of a label or of an id. Labels take precedence; of an id at least eight
    /// characters are needed. Ids may be in upper or lower case.
    pub fn find(&self, name: &str) -> Result<TrialId, LookupError> {
        let found = self.read("look up a trial in", |database| find(database, name))?;
        match found {
            Lookup::One(trial) => Ok(trial),
            Lookup::Short => Err(LookupError::Short { name: name.to_owned() }),
            Lookup::Many(matches) => Err(LookupError::Ambiguous { name: name.to_owned(), matches }),
            Lookup::None(near) => Err(LookupError::Unknown { name: name.to_owned(), near }),
        }
    }
}

/// Returns the row number of a trial; `Err` if the history does not have it.
pub(super) fn row_of(database: &Connection, trial: &TrialId) -> Result<i64, BoxError> {
    database
        .prepare_cached("SELECT id FROM trial WHERE uid = ?1")?
        .query_row([&trial.0], |row| row.get(0))
        .optional()?
        .ok_or_else(|| format!("it has no trial {trial}").into())
}

fn find(database: &Connection, name: &str) -> Result<Lookup, BoxError> {
    let exact = [
        "SELECT uid, label FROM trial WHERE label = ?1",
        "SELECT uid, label FROM trial WHERE uid = upper(?1)",
    ];
    for query in exact {
        if let Some((uid, _)) = pairs(database, query, name)?.pop() {
            return Ok(Lookup::One(TrialId(uid)));
        }
    }
    if name == "last" {
        // Imported trials of other machines do not count as the last trial here.
        let newest = "SELECT uid, label FROM trial LEFT JOIN imported_trial ON imported_trial.trial = trial.id WHERE ?1 = 'last'
            ORDER BY imported_trial.trial IS NOT NULL, CASE WHEN imported_trial.trial IS NOT NULL THEN created_ms END DESC, trial.id DESC
            LIMIT 1";
        if let Some((uid, _)) = pairs(database, newest, name)?.pop() {
            return Ok(Lookup::One(TrialId(uid)));
        }
    }
    let labels = "SELECT uid, label FROM trial WHERE ?1 <> '' AND substr(label, 1, length(?1)) = ?1
        ORDER BY id DESC LIMIT 9";
    let ids = "SELECT uid, label FROM trial WHERE ?1 <> '' AND substr(uid, 1, length(?1)) = upper(?1)
        ORDER BY id DESC LIMIT 9";
    let mut matches = pairs(database, labels, name)?;
    if matches.is_empty() {
        matches = pairs(database, ids, name)?;
        if !matches.is_empty() && name.chars().count() < LEAST {
            return Ok(Lookup::Short);
        }
    }
    match matches.len() {
        0 => Ok(Lookup::None(similar_labels(database, name)?)),
        1 => Ok(Lookup::One(TrialId(matches.remove(0).0))),
        _ => Ok(Lookup::Many(matches.into_iter().map(|(_, label)| label).take(8).collect())),
    }
}

fn pairs(database: &Connection, query: &str, name: &str) -> Result<Vec<(String, String)>, BoxError> {
    let mut select = database.prepare_cached(query)?;
    let rows = select.query_map([name], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// Returns the three labels most similar to `name`.
fn similar_labels(database: &Connection, name: &str) -> Result<Vec<String>, BoxError> {
    let all =
        pairs(database, "SELECT uid, label FROM trial WHERE ?1 = ?1 ORDER BY id DESC LIMIT 2000", name)?;
    let mut scored: Vec<_> =
        all.into_iter().map(|(_, label)| (strsim::jaro_winkler(name, &label), label)).collect();
    scored.retain(|(score, _)| *score > 0.7);
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    Ok(scored.into_iter().take(3).map(|(_, label)| label).collect())
}

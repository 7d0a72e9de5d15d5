//! Merge of the studies of a bundle into a history.

use super::super::{BoxError, lookup, stored};
use super::study_name;
use dtrain_protocol::bundle::{StudyName, StudyRecord};
use rusqlite::{Connection, Transaction, params};

/// Returns the name in this history of a study of the bundle.
pub(super) fn study_here(database: &Connection, study: &StudyName) -> Result<String, BoxError> {
    if study_name(database, &study.name)? == *study {
        return Ok(study.name.clone());
    }
    Ok(format!("{}-{}", study.name, &study.digest[..6]))
}

/// Inserts a study, or adds the new trials of a known one; returns `true` if the study was new.
pub(super) fn put_study(transaction: &Transaction<'_>, study: &StudyRecord) -> Result<bool, BoxError> {
    let here = study_here(transaction, &study.name)?;
    let mut is_new = false;
    if here != study.name.name {
        is_new = transaction.execute(
            "INSERT OR IGNORE INTO study(name, json, created_ms) VALUES (?1, ?2, ?3)",
            params![here, study.json, stored(study.created_ms)],
        )? == 1;
        transaction.execute(
            "INSERT OR IGNORE INTO imported_study(name, source_name, digest) VALUES (?1, ?2, ?3)",
            params![here, study.name.name, study.name.digest],
        )?;
    }
    for tried in &study.trials {
        let trial = tried.trial.as_ref().and_then(|trial| lookup::row_of(transaction, trial).ok());
        transaction.execute(
            "INSERT INTO study_trial(study, number, json, trial, rejection) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO UPDATE SET trial = coalesce(trial, excluded.trial)",
            params![here, stored(tried.number), tried.json, trial, tried.rejection],
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

//! Upgrade to today's names of the JSON in a history from before version 2.0.

use super::BoxError;
use dtrain_protocol::{bundle, old_names};
use rusqlite::{Connection, params};
use serde_json::Value;

/// Renames the keys in all documents, records, studies and parameters. Today's names are left unchanged.
pub(super) fn documents(database: &Connection) -> Result<(), BoxError> {
    for kind in ["recipe", "plan"] {
        let select = format!("SELECT trial, json FROM document WHERE kind = '{kind}'");
        let update = format!("UPDATE document SET json = ?1 WHERE trial = ?2 AND kind = '{kind}'");
        for trial in numbers(database, "SELECT id FROM trial")? {
            each(database, &format!("{select} AND trial = ?1"), trial, |_, json| {
                let Some(json) = renamed(json, |json| old_names::document(kind, json)) else { return Ok(()) };
                database.prepare_cached(&update)?.execute(params![json, trial])?;
                Ok(())
            })?;
        }
    }
    for trial in numbers(database, "SELECT DISTINCT trial FROM record")? {
        each(database, "SELECT seq, json FROM record WHERE trial = ?1", trial, |seq, json| {
            let Some(json) = renamed(json, old_names::record) else { return Ok(()) };
            database
                .prepare_cached("UPDATE record SET json = ?1 WHERE trial = ?2 AND seq = ?3")?
                .execute(params![json, trial, seq])?;
            Ok(())
        })?;
    }
    studies(database)?;
    keys(database)
}

/// Applies `rename` to a JSON text; `None` if nothing changes, or the text is not JSON.
fn renamed(json: &str, rename: impl Fn(&mut Value)) -> Option<String> {
    let before: Value = serde_json::from_str(json).ok()?;
    let mut after = before.clone();
    rename(&mut after);
    (after != before).then(|| after.to_string())
}

fn numbers(database: &Connection, query: &str) -> Result<Vec<i64>, BoxError> {
    let mut select = database.prepare(query)?;
    Ok(select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?)
}

/// Calls `work` with the number and the JSON of every row of the query.
fn each(
    database: &Connection,
    query: &str,
    trial: i64,
    work: impl Fn(i64, &str) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    let mut select = database.prepare_cached(query)?;
    let rows = select.query_map([trial], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>()?;
    rows.iter().try_for_each(|(number, json)| work(*number, json))
}

/// Renames keys in studies. Studies keep their digests, by which other machines identify them.
fn studies(database: &Connection) -> Result<(), BoxError> {
    let mut select = database.prepare("SELECT name, created_ms, json FROM study")?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows: Vec<(String, i64, String)> = rows.collect::<Result<_, _>>()?;
    for (name, created_ms, json) in rows {
        let Some(after) = renamed(&json, old_names::study) else { continue };
        let digest = bundle::hash(&format!("{name}\n{created_ms}\n{json}"));
        database.execute(
            "INSERT OR IGNORE INTO imported_study(name, source_name, digest) VALUES (?1, ?1, ?2)",
            [&name, &digest],
        )?;
        database.execute("UPDATE study SET json = ?1 WHERE name = ?2", [&after, &name])?;
    }
    let mut select = database.prepare("SELECT study, number, json FROM study_event")?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let rows: Vec<(String, i64, String)> = rows.collect::<Result<_, _>>()?;
    for (study, number, json) in rows {
        let Some(json) = renamed(&json, old_names::study_event) else { continue };
        database
            .prepare_cached("UPDATE study_event SET json = ?1 WHERE study = ?2 AND number = ?3")?
            .execute(params![json, study, number])?;
    }
    Ok(())
}

/// Renames the paths of the parameters that were recorded.
fn keys(database: &Connection) -> Result<(), BoxError> {
    let mut select = database.prepare("SELECT id, name FROM key")?;
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let rows: Vec<(i64, String)> = rows.collect::<Result<_, _>>()?;
    for (id, name) in rows {
        if let Some(new) = old_names::param(&name) {
            database.execute("UPDATE key SET name = ?1 WHERE id = ?2", params![new, id])?;
        }
        for (old, new) in old_names::words_of_param(&name) {
            database.execute(
                "UPDATE param SET value = ?1 WHERE key = ?2 AND value = ?3",
                params![new, id, old],
            )?;
        }
    }
    Ok(())
}

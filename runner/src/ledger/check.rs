//! Full integrity check of a history.

use super::error::corruption_error;
use super::{BoxError, History, open_points, points};
use crate::fact::LedgerError;
use rusqlite::Connection;
use std::path::Path;

impl History {
    /// Reads the whole history; `Err` if anything in it is damaged.
    pub fn check(&self) -> Result<(), LedgerError> {
        self.read("check", |database| {
            let path = self.path();
            pages(database, path)?;
            references(database, path)?;
            facts(database, path)?;
            points::check(database)?;
            open_points::check(database)
        })
    }
}

/// Checks the pages of the history file, the constraints of the tables, and the indices.
fn pages(database: &Connection, path: &Path) -> Result<(), BoxError> {
    let mut select = database.prepare("PRAGMA integrity_check(3)")?;
    let found: Vec<String> = select.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    if found == ["ok"] {
        return Ok(());
    }
    let found: Vec<&str> = found.iter().map(|line| line.trim()).collect();
    Err(corruption_error(path, &found.join("; ")))
}

/// Checks that all references between rows lead to a row.
fn references(database: &Connection, path: &Path) -> Result<(), BoxError> {
    let mut select = database.prepare("PRAGMA foreign_key_check")?;
    let mut rows = select.query([])?;
    let Some(row) = rows.next()? else { return Ok(()) };
    let (table, of): (String, String) = (row.get(0)?, row.get(2)?);
    Err(corruption_error(path, &format!("a row of `{table}` names a row of `{of}` that is missing")))
}

/// Checks that the records of each trial are numbered without gaps.
fn facts(database: &Connection, path: &Path) -> Result<(), BoxError> {
    let query = "SELECT trial.label FROM record JOIN trial ON trial.id = record.trial GROUP BY record.trial
        HAVING min(record.seq) <> 0 OR max(record.seq) + 1 <> count(*) LIMIT 1";
    let mut select = database.prepare(query)?;
    let mut rows = select.query([])?;
    let Some(row) = rows.next()? else { return Ok(()) };
    let label: String = row.get(0)?;
    Err(corruption_error(path, &format!("facts of {label} are missing")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::params;

    /// Returns the result of a check after `damage`; `None` if it found nothing.
    fn found(damage: impl FnOnce(&Connection)) -> Option<String> {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("history.db");
        drop(History::open(&path).expect("made"));
        let raw = Connection::open(&path).expect("opens");
        raw.execute_batch("PRAGMA foreign_keys=OFF; PRAGMA ignore_check_constraints=ON").expect("set");
        let trial = "INSERT INTO trial(id, uid, label, recipe, state, objective, layout, batch, learning_rate, config_hash,
            host_digest, model_digest, created_ms, git_dirty, program)
            VALUES (1, 'u', 'a-1', 'a', 'created', 'loss', 'l', 1, 0.1, 'c', 'h', 'm', 5, 0, 'p');
            INSERT INTO key(id, name) VALUES (1000, 'figure');
            INSERT INTO series(id, trial, key, rank, attempt, last_step) VALUES (1, 1, 1000, 0, 1, 2);";
        raw.execute_batch(trial).expect("a trial");
        let chunk = |step| {
            dtrain_protocol::series_codec::encode(&[super::super::MetricSample {
                step,
                at_ms: 1,
                value: 0.5,
            }])
        };
        for number in 0..2u32 {
            let values = params![number, chunk(u64::from(number) + 1)];
            raw.execute("INSERT INTO chunk(series, number, data) VALUES (1, ?1, ?2)", values)
                .expect("a chunk");
        }
        damage(&raw);
        drop(raw);
        let error = History::open_read_only(&path).and_then(|history| history.check()).err()?;
        Some(error.source.to_string())
    }

    #[test]
    fn what_is_not_as_it_was_written_is_found() {
        let done = |sql: &'static str| move |raw: &Connection| raw.execute_batch(sql).expect("done");
        assert_eq!(found(|_| {}), None);
        for (sql, words) in [
            ("UPDATE trial SET state = 'unheard'", "CHECK constraint failed"),
            ("UPDATE chunk SET data = x'ff' WHERE number = 1", "a chunk of points"),
            ("DELETE FROM chunk WHERE number = 0", "the order of the chunks"),
            ("DELETE FROM chunk WHERE number = 1", "whose end is missing"),
            ("DELETE FROM chunk", "whose end is missing"),
            ("DELETE FROM key WHERE id = 1000", "`series` names a row of `key`"),
            (
                "INSERT INTO record(trial, seq, at_ms, json) VALUES (1, 1, 1, '\"resumed\"')",
                "facts of a-1 are missing",
            ),
        ] {
            let message = found(done(sql)).unwrap_or_else(|| panic!("{sql}: nothing was found"));
            assert!(message.contains(words) && message.contains("aside"), "{sql}: {message}");
        }
    }

    #[test]
    fn an_index_that_disagrees_with_its_table_is_found() {
        let message = found(|raw| {
            let sql = "PRAGMA writable_schema=ON;
                UPDATE sqlite_schema SET sql = replace(sql, 'created_ms DESC', 'batch DESC') WHERE name = 'trial_created';";
            raw.execute_batch(sql).expect("done");
        });
        assert!(message.expect("found").contains("trial_created"));
    }
}

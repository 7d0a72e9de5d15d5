//! Names for shell completion, read from a history without waiting for locks, migration or creation. Errors
//! give no names.

use super::open;
use rusqlite::Connection;
use std::path::Path;

/// Most names that are returned for completion.
const MOST: u32 = 500;

/// Returns the labels of trials that begin with `beginning`, newest first.
pub fn labels(history: &Path, beginning: &str) -> Vec<String> {
    names(
        history,
        "SELECT label FROM trial WHERE substr(label, 1, length(?1)) = ?1 ORDER BY id DESC LIMIT ?2",
        beginning,
    )
}

/// Returns the names of studies that begin with `beginning`, newest first.
pub fn studies(history: &Path, beginning: &str) -> Vec<String> {
    names(
        history,
        "SELECT name FROM study WHERE substr(name, 1, length(?1)) = ?1 ORDER BY created_ms DESC LIMIT ?2",
        beginning,
    )
}

/// Returns the names of hosts that begin with `beginning`.
pub fn hosts(history: &Path, beginning: &str) -> Vec<String> {
    names(
        history,
        "SELECT name FROM host WHERE substr(name, 1, length(?1)) = ?1 ORDER BY name LIMIT ?2",
        beginning,
    )
}

fn names(history: &Path, query: &str, beginning: &str) -> Vec<String> {
    let read = |database: Connection| -> rusqlite::Result<Vec<String>> {
        let mut select = database.prepare(query)?;
        select.query_map((beginning, MOST), |row| row.get(0))?.collect()
    };
    open::open_without_waiting(history).and_then(|database| read(database).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::History;

    #[test]
    fn without_a_history_nothing_is_offered_and_nothing_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        assert!(labels(&path, "").is_empty());
        assert!(!path.exists());
        std::fs::write(&path, "no database").expect("written");
        assert!(labels(&path, "").is_empty() && studies(&path, "").is_empty());
    }

    #[test]
    fn names_of_a_history_are_offered_by_how_they_begin() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let mut history = History::open(&path).expect("made");
        history.create_study("a-tune-1", &serde_json::json!({})).expect("made");
        assert_eq!(studies(&path, "a-"), ["a-tune-1"]);
        assert!(studies(&path, "b").is_empty() && labels(&path, "").is_empty());
    }
}

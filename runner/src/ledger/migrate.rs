//! Schema migration: creates the tables of a new history, and brings an older file to the newest schema, one
//! durable step at a time.
//!
//! `PRAGMA user_version` is `major · 100 + minor`. A new minor version only adds, so that an older dtrain can
//! still read; a new major version changes what is there.

use super::{BoxError, points, upgrade};
use rusqlite::{Connection, TransactionBehavior};
use std::fmt;
use std::path::{Path, PathBuf};

/// Version of the schema of a history file: `major · 100 + minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SchemaVersion(i32);

/// Migration step: the version it leads to, and its SQL.
pub(super) type Migration = (SchemaVersion, &'static str);

/// Schema version that this program writes.
pub(super) const CURRENT: SchemaVersion = SchemaVersion(200);

/// Schema version since which new points are in logs, not in rows.
const LOGS: SchemaVersion = SchemaVersion(104);

/// Schema version since which tables and JSON keys have today's names.
const NAMES: SchemaVersion = SchemaVersion(200);

/// All migration steps, oldest first.
pub(super) const STEPS: &[Migration] = &[
    (SchemaVersion(100), include_str!("sql/v1.sql")),
    (SchemaVersion(101), include_str!("sql/v1_1.sql")),
    (SchemaVersion(102), include_str!("sql/v1_2.sql")),
    (SchemaVersion(103), include_str!("sql/v1_3.sql")),
    (LOGS, include_str!("sql/v1_4.sql")),
    (CURRENT, include_str!("sql/v2.sql")),
];

impl SchemaVersion {
    /// Returns the major version. A program opens only files of its own major version or an older one.
    pub(super) fn major(self) -> i32 {
        self.0 / 100
    }

    /// Returns `true` if `self` came after `other`.
    pub(super) fn is_newer_than(self, other: Self) -> bool {
        self > other
    }
}

impl fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0 / 100, self.0 % 100)
    }
}

/// Reads the schema version of a history file; 0.0 for an empty one.
pub(super) fn version(database: &Connection) -> Result<SchemaVersion, BoxError> {
    Ok(SchemaVersion(database.pragma_query_value(None, "user_version", |row| row.get(0))?))
}

/// Migrates the history at `path` to the version of the last of `steps`. An older file is first copied to a
/// backup beside it.
pub(super) fn migrate(database: &mut Connection, path: &Path, steps: &[Migration]) -> Result<(), BoxError> {
    let Some((target, _)) = steps.last() else { return Ok(()) };
    let found = version(database)?;
    if found != SchemaVersion(0) && found < *target {
        back_up(database, path, found)?;
    }
    for (to, sql) in steps {
        if version(database)? >= *to {
            continue;
        }
        let step = database.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // Check again under the lock: another process may have migrated it.
        if version(&step)? < *to {
            if *to == NAMES {
                // A program of version 1.3 may have added rows.
                points::seal_rows(&step)?;
            }
            step.execute_batch(sql)?;
            if *to == LOGS {
                points::seal_rows(&step)?;
            }
            if *to == NAMES {
                upgrade::documents(&step)?;
            }
            step.pragma_update(None, "user_version", to.0)?;
            step.commit()?;
        }
    }
    Ok(())
}

/// Returns the path for the backup of the history at `path`, whose version is `found`.
fn backup_path(path: &Path, found: SchemaVersion) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".v{found}.backup"));
    path.with_file_name(name)
}

/// Copies the whole database to a backup, which gets its name once it is complete; keeps an existing backup.
fn back_up(database: &Connection, path: &Path, found: SchemaVersion) -> Result<(), BoxError> {
    let whole = backup_path(path, found);
    if whole.exists() {
        return Ok(());
    }
    let partial = whole.with_extension(format!("partial-{}", std::process::id()));
    drop(std::fs::remove_file(&partial));
    let name = partial.to_str().ok_or("its path is not valid UTF-8")?;
    database.execute("VACUUM INTO ?1", [name])?;
    std::fs::File::open(&partial)?.sync_all()?;
    std::fs::rename(&partial, &whole)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &[Migration] =
        &[(SchemaVersion(100), "CREATE TABLE a(x INTEGER) STRICT; INSERT INTO a VALUES (7);")];
    const NEW: &[Migration] = &[
        (SchemaVersion(100), "CREATE TABLE a(x INTEGER) STRICT; INSERT INTO a VALUES (7);"),
        (SchemaVersion(101), "ALTER TABLE a ADD COLUMN y INTEGER NOT NULL DEFAULT 1;"),
        (SchemaVersion(102), "CREATE TABLE b(z TEXT) STRICT;"),
    ];

    fn file() -> (tempfile::TempDir, PathBuf, Connection) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("history.db");
        let database = Connection::open(&path).expect("opens");
        (folder, path, database)
    }

    #[test]
    fn an_older_file_is_copied_then_brought_forward_with_its_rows() {
        let (_folder, path, mut database) = file();
        migrate(&mut database, &path, OLD).expect("made");
        assert!(!backup_path(&path, SchemaVersion(100)).exists(), "an empty file needs no copy");
        migrate(&mut database, &path, NEW).expect("migrated");
        assert_eq!(version(&database).expect("told"), SchemaVersion(102));
        let row: (i64, i64) = database
            .query_row("SELECT x, y FROM a", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("there");
        assert_eq!(row, (7, 1));

        let copy = Connection::open(backup_path(&path, SchemaVersion(100))).expect("the copy opens");
        assert_eq!(version(&copy).expect("told"), SchemaVersion(100));
        let kept: i64 = copy.query_row("SELECT x FROM a", [], |row| row.get(0)).expect("there");
        assert_eq!(kept, 7);
    }

    #[test]
    fn a_step_that_fails_leaves_the_version_before_it() {
        let (_folder, path, mut database) = file();
        let broken: &[Migration] = &[OLD[0], (SchemaVersion(101), "CREATE TABLE c(x) STRICT; no sql;")];
        migrate(&mut database, &path, broken).expect_err("the second step is not SQL");
        assert_eq!(version(&database).expect("told"), SchemaVersion(100));
        database.execute_batch("SELECT * FROM c").expect_err("its first half is undone");
    }

    #[test]
    fn a_newer_minor_version_is_read_and_a_newer_major_version_is_refused_by_number() {
        let (folder, path, database) = file();
        drop(database);
        drop(crate::History::open(&path).expect("made"));
        let mark = |version: i32| {
            let raw = Connection::open(&path).expect("opens");
            raw.pragma_update(None, "user_version", version).expect("marked");
        };
        mark(CURRENT.0 + 3);
        let newer = crate::History::open(&path).expect("readable");
        assert!(newer.is_read_only());
        mark(CURRENT.0 + 100);
        let error = crate::History::open(&path).expect_err("refused").source.to_string();
        assert!(error.contains("version 3.0") && error.contains("version 2.0"), "{error}");
        drop(folder);
    }

    #[test]
    fn the_schema_is_sound() {
        let (_folder, path, mut database) = file();
        migrate(&mut database, &path, STEPS).expect("made");
        let loose: i64 = database
            .query_row("SELECT count(*) FROM pragma_table_list WHERE type = 'table' AND NOT strict AND name NOT LIKE 'sqlite_%'", [], |row| row.get(0))
            .expect("counted");
        assert_eq!(loose, 0, "every table is STRICT");
    }
}

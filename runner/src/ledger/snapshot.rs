//! Reads a snapshot of a history for which SQLite cannot create its files: on a read-only file system, on a
//! full disk, or in a folder that only another user can write to.

use super::application_id::check_application_id;
use super::error::is_unwritable;
use super::file_identity::{OpenedFiles, sidecar_path};
use super::{BoxError, migrate};
use rusqlite::{Connection, OpenFlags};
use std::ffi::OsStr;
use std::fmt::Write;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Suffixes of files beside a database that contain a part of it unless they are empty.
const PARTS: [&str; 2] = ["-wal", "-journal"];

/// Opens the history at `path` in its current state.
///
/// If it is a single file of the newest schema, it is read in place and without locks, and must not change
/// meanwhile. Otherwise a copy is read, in memory if possible.
pub(super) fn open(path: &Path) -> Result<(Connection, OpenedFiles), BoxError> {
    // Gives a clearer error than SQLite if the file is not readable.
    rustix::fs::access(path, rustix::fs::Access::READ_OK).map_err(std::io::Error::from)?;
    let found = fs::metadata(path)?;
    let is_in_one_file =
        PARTS.iter().all(|ending| fs::metadata(sidecar_path(path, ending)).map_or(0, |part| part.len()) == 0);
    if is_in_one_file {
        let database = in_place(path)?;
        if !migrate::CURRENT.is_newer_than(migrate::version(&database)?) {
            return Ok((database, OpenedFiles::frozen(path, &found)));
        }
    }
    Ok((of_copy(path)?, OpenedFiles::frozen(path, &found)))
}

/// Opens the history in place, without locks, which would need a file beside it.
fn in_place(path: &Path) -> Result<Connection, BoxError> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_URI;
    let database = Connection::open_with_flags(immutable(path.as_os_str()), flags)?;
    check_application_id(&database)?;
    Ok(database)
}

/// Returns the SQLite URI of a file that is treated as immutable.
fn immutable(path: &OsStr) -> String {
    let mut uri = "file:".to_owned();
    for byte in path.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"/-_.".contains(byte) {
            uri.push(char::from(*byte));
        } else {
            write!(uri, "%{byte:02X}").expect("a string grows");
        }
    }
    uri + "?immutable=1"
}

/// Opens a copy of the history in the first folder that has room for it. The copy vanishes when the
/// connection is closed.
fn of_copy(path: &Path) -> Result<Connection, BoxError> {
    let mut failed = None;
    for root in [PathBuf::from("/dev/shm"), std::env::temp_dir()] {
        match copied(path, &root) {
            Ok(database) => return Ok(database),
            Err(fault) if is_unwritable(&fault) || !root.is_dir() => failed = failed.or(Some(fault)),
            Err(fault) => return Err(fault),
        }
    }
    Err(failed.expect("there are two folders"))
}

fn copied(path: &Path, root: &Path) -> Result<Connection, BoxError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let folder = root.join(format!("dtrain-{}-{}", std::process::id(), now.as_nanos()));
    DirBuilder::new().mode(0o700).create(&folder)?;
    let opened = copy(path, &folder).and_then(|copy| open_copy(&copy));
    // A removed file remains until it is closed.
    let removed = fs::remove_dir_all(&folder);
    let database = opened?;
    removed?;
    Ok(database)
}

/// Copies all files of a history. `Err` if another process writes to it meanwhile.
fn copy(path: &Path, folder: &Path) -> Result<PathBuf, BoxError> {
    let to = folder.join("history.db");
    let sources =
        || std::iter::once(path.to_path_buf()).chain(PARTS.iter().map(|ending| sidecar_path(path, ending)));
    let states =
        || sources().map(|source| fs::metadata(source).ok().map(|found| state(&found))).collect::<Vec<_>>();
    let before = states();
    fs::copy(path, &to)?;
    for ending in PARTS {
        let part = sidecar_path(path, ending);
        if part.exists() {
            fs::copy(&part, sidecar_path(&to, ending))?;
        }
    }
    if states() != before {
        return Err(format!("{} was changed while it was read; run the command again", path.display()).into());
    }
    Ok(to)
}

fn state(found: &Metadata) -> (u64, Option<SystemTime>) {
    (found.len(), found.modified().ok())
}

/// Opens a private copy of a history, and brings it into one file of the newest schema.
fn open_copy(path: &Path) -> Result<Connection, BoxError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut database = Connection::open_with_flags(path, flags)?;
    let set = |database: &Connection, pragma: &str| database.query_row(pragma, [], |_| Ok(()));
    set(&database, "PRAGMA locking_mode=EXCLUSIVE")?;
    check_application_id(&database)?;
    set(&database, "PRAGMA journal_mode=MEMORY")?;
    if migrate::CURRENT.is_newer_than(migrate::version(&database)?) {
        migrate::migrate(&mut database, path, migrate::STEPS)?;
    }
    Ok(database)
}

#[cfg(test)]
mod tests {
    use super::super::application_id::APPLICATION_ID;
    use super::*;
    use crate::History;
    use serde_json::json;

    #[test]
    fn a_path_becomes_a_uri_that_means_no_other_file() {
        assert_eq!(immutable(OsStr::new("/a/b-1_c.db")), "file:/a/b-1_c.db?immutable=1");
        assert_eq!(
            immutable(OsStr::new("/a?mode=rwc#b%20 é")),
            "file:/a%3Fmode%3Drwc%23b%2520%20%C3%A9?immutable=1"
        );
    }

    #[test]
    fn a_history_without_files_beside_it_is_read_in_place_and_one_with_them_from_a_copy() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("a ?#%").join("history.db");
        let mut history = History::open(&path).expect("made");
        history.create_study("one", &json!({"n": 1})).expect("kept");
        let count = |database: &Connection| -> i64 {
            database.query_row("SELECT count(*) FROM study", [], |row| row.get(0)).expect("read")
        };
        // The last writes are in the write-ahead log only.
        let (copy, _) = open(&path).expect("copied");
        history.create_study("two", &json!({"n": 2})).expect("kept");
        assert_eq!(count(&copy), 1, "a copy does not change");
        drop(history);
        assert!(!sidecar_path(&path, "-wal").exists());
        let (database, presence) = open(&path).expect("read in place");
        assert_eq!(count(&database), 2);
        presence.check().expect("nothing changed");
        History::open(&path)
            .expect("opens")
            .create_study("three", &json!({"long": "x".repeat(100_000)}))
            .expect("kept");
        let error = presence.check().expect_err("it changed").to_string();
        assert!(error.contains("was changed while it was read"), "{error}");
    }

    #[test]
    fn a_history_of_an_older_version_is_read_from_a_migrated_copy() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("history.db");
        let mut old = Connection::open(&path).expect("opens");
        old.pragma_update(None, "application_id", APPLICATION_ID).expect("marked");
        migrate::migrate(&mut old, &path, &migrate::STEPS[..1]).expect("made");
        drop(old);
        let before = fs::read(&path).expect("there");
        let (database, _) = open(&path).expect("read");
        assert_eq!(migrate::version(&database).expect("told"), migrate::CURRENT);
        assert_eq!(fs::read(&path).expect("there"), before, "the file itself stays as it was");
    }
}

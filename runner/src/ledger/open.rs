//! Opening the history file: location, permissions and SQLite settings.

use super::application_id::APPLICATION_ID;
use super::error::is_unwritable;
use super::file_identity::OpenedFiles;
use super::{Access, BoxError, FileSystemKind, migrate, snapshot};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest wait of a writer for other processes: longer than a backup or an inspection of the file takes.
pub(super) const BUSY: Duration = Duration::from_secs(60);

/// Open database of a history, with the access that it allows.
pub(super) struct OpenDatabase {
    pub(super) database: Connection,
    pub(super) access: Access,
    pub(super) presence: OpenedFiles,
}

/// Use of the history file by other programs while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// Other programs may use the file as well.
    Shared,
    /// No other program may use the file, and there is no shared memory beside it.
    Alone,
}

/// Opens the history at `path` for writing; creates its folder (mode 0700) and the file (0600) if needed.
pub(super) fn writer(path: &Path, sharing: Sharing) -> Result<OpenDatabase, BoxError> {
    let folder = folder(path);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let journal = FileSystemKind::of(&folder)?.journal_mode(path)?;
    create(path)?;
    let mut database = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    database.busy_timeout(BUSY)?;
    if sharing == Sharing::Alone {
        database.query_row("PRAGMA locking_mode=EXCLUSIVE", [], |_| Ok(()))?;
    }
    claim_file(&database)?;
    let version = migrate::version(&database)?;
    if version.is_newer_than(migrate::CURRENT) {
        return opened_newer(path, database, version);
    }
    retry_while_busy(|| {
        let switch = format!("PRAGMA journal_mode={journal}");
        database.query_row(&switch, [], |row| row.get::<_, String>(0)).map(drop)
    })?;
    configure(&database)?;
    migrate::migrate(&mut database, path, migrate::STEPS)?;
    // If there is no room for an id, the next writer draws it.
    drop(identify(&database));
    Ok(OpenDatabase { database, access: Access::Write, presence: OpenedFiles::of(path)? })
}

/// Opens the history at `path` for reading; `Err` if there is no file.
pub(super) fn reader(path: &Path) -> Result<OpenDatabase, BoxError> {
    if !path.try_exists()? {
        return Err("there is no history yet; `dtrain run` creates one".into());
    }
    FileSystemKind::of(&folder(path))?.journal_mode(path)?;
    let opened = match shared_reader(path) {
        Err(fault) if is_unwritable(&fault) => {
            let (database, presence) = snapshot::open(path)?;
            let version = migrate::version(&database)?;
            if version.is_newer_than(migrate::CURRENT) {
                let access = Access::Newer(version.to_string());
                let database = read_newer(database, version)?;
                OpenDatabase { database, access, presence }
            } else {
                OpenDatabase { database, access: Access::Read, presence }
            }
        }
        opened => opened?,
    };
    opened.database.pragma_update(None, "temp_store", "MEMORY")?;
    opened.database.pragma_update(None, "query_only", true)?;
    Ok(opened)
}

/// Opens the history at `path` for reading while others may write to it.
fn shared_reader(path: &Path) -> Result<OpenDatabase, BoxError> {
    let database = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )?;
    database.busy_timeout(BUSY)?;
    claim_file(&database)?;
    let version = migrate::version(&database)?;
    if version.is_newer_than(migrate::CURRENT) {
        return opened_newer(path, database, version);
    }
    if migrate::CURRENT.is_newer_than(version) {
        drop(database);
        drop(writer(path, Sharing::Shared)?);
        return shared_reader(path);
    }
    Ok(OpenDatabase { database, access: Access::Read, presence: OpenedFiles::of(path)? })
}

fn opened_newer(
    path: &Path,
    database: Connection,
    version: migrate::SchemaVersion,
) -> Result<OpenDatabase, BoxError> {
    let database = read_newer(database, version)?;
    Ok(OpenDatabase {
        database,
        access: Access::Newer(version.to_string()),
        presence: OpenedFiles::of(path)?,
    })
}

/// Opens the history at `path` for reading without waiting for writers; `None` if that fails.
pub(super) fn open_without_waiting(path: &Path) -> Option<Connection> {
    FileSystemKind::of(&folder(path)).ok()?.journal_mode(path).ok()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags(path, flags).ok()?;
    database.busy_timeout(Duration::from_millis(100)).ok()?;
    let id: i32 = database.pragma_query_value(None, "application_id", |row| row.get(0)).ok()?;
    (id == APPLICATION_ID).then_some(database)
}

/// Returns the error message for a write to a history of the newer schema version `version`.
pub(super) fn too_new(version: &str) -> String {
    format!(
        "it has schema version {version}, this dtrain {} writes version {}; use the newer dtrain that \
        created it",
        env!("CARGO_PKG_VERSION"),
        migrate::CURRENT
    )
}

/// Accepts a history of a newer minor version for reading, as that version only added things; rejects a newer
/// major version.
fn read_newer(database: Connection, version: migrate::SchemaVersion) -> Result<Connection, BoxError> {
    if version.major() != migrate::CURRENT.major() {
        return Err(too_new(&version.to_string()).into());
    }
    database.pragma_update(None, "query_only", true)?;
    Ok(database)
}

fn configure(database: &Connection) -> Result<(), BoxError> {
    database.execute_batch(
        "PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA temp_store=MEMORY;
         PRAGMA cache_size=-32768; PRAGMA journal_size_limit=67108864;",
    )?;
    database.set_prepared_statement_cache_capacity(64);
    Ok(())
}

/// Draws a random id of the history for its bundles, if it has none.
fn identify(database: &Connection) -> Result<(), BoxError> {
    let is_known: bool =
        database.query_row("SELECT EXISTS (SELECT 1 FROM history_id)", [], |row| row.get(0))?;
    if !is_known {
        let draw = "INSERT INTO history_id(id) SELECT ?1 WHERE NOT EXISTS (SELECT 1 FROM history_id)";
        database.execute(draw, [ulid::Ulid::generate().to_string()])?;
    }
    Ok(())
}

/// Marks an empty file as a history; returns `Err` if the file belongs to another program.
fn claim_file(database: &Connection) -> Result<(), BoxError> {
    let id: i32 = match database.pragma_query_value(None, "application_id", |row| row.get(0)) {
        Ok(id) => id,
        Err(rusqlite::Error::SqliteFailure(error, _)) if error.code == ErrorCode::NotADatabase => {
            return Err("it is not a database; move it aside".into());
        }
        Err(other) => return Err(other.into()),
    };
    if id == APPLICATION_ID {
        return Ok(());
    }
    let tables: i64 = database.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if id != 0 || tables > 0 {
        // Another process may have marked and filled it between the two queries.
        let again: i32 = database.pragma_query_value(None, "application_id", |row| row.get(0))?;
        if again != APPLICATION_ID {
            return Err("it is a database of another program; choose another file".into());
        }
        return Ok(());
    }
    retry_while_busy(|| database.pragma_update(None, "application_id", APPLICATION_ID))
}

/// Repeats `work` while other processes switch the file to its write-ahead log: SQLite then fails without
/// waiting.
fn retry_while_busy(mut work: impl FnMut() -> rusqlite::Result<()>) -> Result<(), BoxError> {
    let begun = Instant::now();
    loop {
        match work() {
            Err(rusqlite::Error::SqliteFailure(error, _))
                if matches!(error.code, ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                    && begun.elapsed() < BUSY =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            other => return Ok(other?),
        }
    }
}

/// Creates an empty file that only its owner can read, if there is none. An existing file is not opened:
/// closing it would release the locks of all connections that this process has to it.
fn create(path: &Path) -> io::Result<()> {
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop),
    }
}

/// Returns the folder of `path`; `.` for a bare name.
fn folder(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
        Some(_) | None => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_file_is_refused_untouched() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = folder.path().join("text");
        std::fs::write(&text, "x".repeat(4096)).expect("written");
        let error = crate::History::open(&text).expect_err("not a database");
        assert!(error.source.to_string().contains("not a database"), "{}", error.source);

        let other = folder.path().join("other.db");
        Connection::open(&other).expect("made").execute_batch("CREATE TABLE theirs(x)").expect("made");
        let before = std::fs::read(&other).expect("read");
        let error = crate::History::open(&other).expect_err("of another program");
        assert!(error.source.to_string().contains("another program"), "{}", error.source);
        assert_eq!(before, std::fs::read(&other).expect("read"));
    }

    #[test]
    fn only_the_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state").join("history.db");
        drop(crate::History::open(&path).expect("made"));
        let mode = |p: &Path| std::fs::metadata(p).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().expect("has one")), 0o700);
    }
}

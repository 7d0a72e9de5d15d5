//! Errors of the history, with messages that say what to do.

use super::BoxError;
use super::file_identity::MissingFile;
use crate::fact::LedgerError;
use dtrain_recipes::Bytes;
use rusqlite::{ErrorCode, ffi};
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};

/// Free bytes below which a disk counts as full: SQLite needs some pages at once.
const TOO_LITTLE: u64 = 64 << 10;

/// Error that stored bytes are damaged, with a description of them.
#[derive(Debug, thiserror::Error)]
#[error("{0} is not as it was written")]
pub(super) struct Corruption(pub(super) &'static str);

/// Error that a file system is full.
#[derive(Debug, thiserror::Error)]
#[error("the disk is full: no space left on device for {} ({free} free)", path.display())]
struct DiskFull {
    path: PathBuf,
    free: Bytes,
}

impl LedgerError {
    /// Returns `true` if the history file was removed or replaced while it was open, so that writes are lost.
    pub fn is_gone(&self) -> bool {
        self.source.is::<MissingFile>()
    }

    /// Returns `true` if the file system of the history is full.
    pub fn is_disk_full(&self) -> bool {
        self.source.is::<DiskFull>()
    }
}

/// Returns the error of the operation `doing` on the history at `path`, caused by `source`.
pub(super) fn ledger_error(doing: &'static str, path: &Path, source: BoxError) -> LedgerError {
    let source = if is_damage(&*source) {
        corruption_error(path, &source.to_string())
    } else if is_full(&*source, path) {
        let free = Bytes(free_bytes(path).unwrap_or(0));
        DiskFull { path: path.to_path_buf(), free }.into()
    } else if is_unwritable(&source) && is_on_read_only_disk(path) {
        format!("{} is on a read-only file system, so that nothing can be recorded", path.display()).into()
    } else {
        source
    };
    LedgerError { doing, path: path.to_path_buf(), source }
}

/// Returns the error of a damaged history file, with instructions.
pub(super) fn corruption_error(path: &Path, found: &str) -> BoxError {
    let path = path.display();
    format!(
        "the file is damaged ({found}); move {path}, {path}-wal and {path}-shm aside, and the next command \
        creates a new history. \
         Plans, spools and checkpoints of all trials stay below trials/"
    )
    .into()
}

/// Returns `true` if SQLite could not create or write its files, in which case a copy may still be readable.
pub(super) fn is_unwritable(error: &BoxError) -> bool {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        use io::ErrorKind as Kind;
        return matches!(error.kind(), Kind::PermissionDenied | Kind::ReadOnlyFilesystem | Kind::StorageFull);
    }
    match sqlite(&**error) {
        Some((ErrorCode::SystemIoFailure, extended)) => is_write(extended),
        Some((code, _)) => matches!(
            code,
            ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::DiskFull | ErrorCode::PermissionDenied
        ),
        None => false,
    }
}

/// Returns `true` if `error` means that the file is damaged.
fn is_damage(error: &(dyn Error + Send + Sync + 'static)) -> bool {
    let is_damaged = |(code, _)| matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase);
    error.is::<Corruption>() || sqlite(error).is_some_and(is_damaged)
}

/// Returns `true` if `error` means that the disk is full.
fn is_full(error: &(dyn Error + Send + Sync + 'static), path: &Path) -> bool {
    if let Some(error) = error.downcast_ref::<io::Error>() {
        return error.kind() == io::ErrorKind::StorageFull;
    }
    match sqlite(error) {
        Some((ErrorCode::DiskFull, _)) => true,
        Some((ErrorCode::SystemIoFailure, extended)) => {
            is_write(extended) && free_bytes(path).is_some_and(|free| free < TOO_LITTLE)
        }
        Some((ErrorCode::CannotOpen, _)) => free_bytes(path).is_some_and(|free| free < TOO_LITTLE),
        Some(_) | None => false,
    }
}

/// Returns `true` if the file system of a file is mounted read-only.
fn is_on_read_only_disk(path: &Path) -> bool {
    let known = path.ancestors().find_map(|above| rustix::fs::statvfs(above).ok());
    known.is_some_and(|found| found.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Returns `true` if the extended code `extended` is of an I/O error of writing, or of the shared memory,
/// which SQLite writes.
fn is_write(extended: i32) -> bool {
    matches!(
        extended,
        ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_FSYNC
            | ffi::SQLITE_IOERR_DIR_FSYNC
            | ffi::SQLITE_IOERR_TRUNCATE
            | ffi::SQLITE_IOERR_SHMOPEN
            | ffi::SQLITE_IOERR_SHMSIZE
            | ffi::SQLITE_IOERR_SHMMAP
    )
}

/// Returns the code and the extended code of an SQLite error; `None` for other errors.
fn sqlite(error: &(dyn Error + Send + Sync + 'static)) -> Option<(ErrorCode, i32)> {
    let error = error.downcast_ref::<rusqlite::Error>()?.sqlite_error()?;
    Some((error.code, error.extended_code))
}

/// Returns the free bytes on the file system of `path`; `None` if they cannot be read.
fn free_bytes(path: &Path) -> Option<u64> {
    let found = path.ancestors().skip(1).find_map(|folder| rustix::fs::statvfs(folder).ok())?;
    Some(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(extended: i32) -> BoxError {
        rusqlite::Error::SqliteFailure(ffi::Error::new(extended), None).into()
    }

    #[test]
    fn a_full_disk_is_named_with_its_path_and_what_is_free() {
        let path = Path::new("/nowhere/history.db");
        for source in [failure(ffi::SQLITE_FULL), io::Error::from(io::ErrorKind::StorageFull).into()] {
            let error = ledger_error("write to", path, source);
            let words = error.source.to_string();
            assert!(error.is_disk_full() && !error.is_gone(), "{words}");
            assert!(words.contains("no space left on device for /nowhere/history.db ("), "{words}");
        }
        assert!(!ledger_error("write to", path, failure(ffi::SQLITE_BUSY)).is_disk_full());
    }

    #[test]
    fn what_keeps_sqlite_from_making_its_files_is_told_from_damage() {
        for extended in
            [ffi::SQLITE_IOERR_SHMSIZE, ffi::SQLITE_CANTOPEN, ffi::SQLITE_READONLY, ffi::SQLITE_FULL]
        {
            assert!(is_unwritable(&failure(extended)), "{extended}");
        }
        for extended in [ffi::SQLITE_CORRUPT, ffi::SQLITE_IOERR_READ, ffi::SQLITE_BUSY] {
            assert!(!is_unwritable(&failure(extended)), "{extended}");
        }
    }
}

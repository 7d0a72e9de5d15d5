//! Records the lock files that use a stored package, so that no copy in use is removed.

use super::SharingError;
use super::lockfile;
use super::store::Store;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the file beside a package's copies in the store that lists the lock files that use the package,
/// one per line.
const USERS: &str = "used-by";

/// Records that the lock file of `store` uses a package.
pub(super) fn note_user(store: &Store, name: &str) -> Result<(), SharingError> {
    let folder = store.folder.join(name);
    let (own, mut all) = (absolute(&store.lock), users(&folder)?);
    if all.contains(&own) {
        return Ok(());
    }
    all.push(own);
    write_users(&folder, &all)
}

/// Returns the lock files that use the package stored in `folder`.
pub(super) fn users(folder: &Path) -> Result<Vec<PathBuf>, SharingError> {
    let path = folder.join(USERS);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(PathBuf::from).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(SharingError::io(&path)(error)),
    }
}

/// Writes the list of lock files that use the package stored in `folder`.
pub(super) fn write_users(folder: &Path, users: &[PathBuf]) -> Result<(), SharingError> {
    let text: String = users.iter().map(|path| format!("{}\n", path.display())).collect();
    lockfile::replace(&folder.join(USERS), &text, 0o600)
}

/// Returns the absolute path of a lock file, the form in which it is recorded.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

//! Removes a package from a lock file, and from the store if no other lock file names it.

use super::SharingError;
use super::lockfile::{self, LockedPackage};
use super::store::{RUN, Store, find};
use super::tree;
use super::used_by::{absolute, users, write_users};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The result of removing a package.
#[derive(Clone, Debug)]
pub struct Removal {
    /// Entry that was removed from the lock file.
    pub locked: LockedPackage,
    /// Other lock files that still use the package under this name.
    pub users: Vec<PathBuf>,
    /// Paths that were removed from the store.
    pub removed: Vec<PathBuf>,
    /// Paths that stay in the store, each with the reason.
    pub kept: Vec<(PathBuf, String)>,
}

/// Removes a package from the lock file, and its copies from the store unless another known lock file uses
/// them. A copy into which programs of the package wrote always stays.
///
/// The lock file is written first: a package that it lists can always be fetched again.
pub fn remove(store: &Store, name: &str) -> Result<Removal, SharingError> {
    let gone = find(store, name)?;
    let mut locked = lockfile::read(&store.lock)?;
    locked.retain(|other| other.name != name);
    lockfile::write(&store.lock, locked)?;
    let folder = store.folder.join(name);
    let own = absolute(&store.lock);
    let users: Vec<(PathBuf, LockedPackage)> = users(&folder)?
        .into_iter()
        .filter(|lock| *lock != own)
        .filter_map(|path| {
            let locked = lockfile::read(&path).ok()?.into_iter().find(|other| other.name == name)?;
            Some((path, locked))
        })
        .collect();
    let mut removal = Removal { locked: gone, users: Vec::new(), removed: Vec::new(), kept: Vec::new() };
    for path in entries(&folder)? {
        let commit = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let commit = commit.strip_prefix(RUN).unwrap_or(&commit);
        let user = users.iter().find(|(_, locked)| locked.commit == commit);
        if let Some((user, _)) = user {
            removal.kept.push((path, format!("{} names it", user.display())));
        } else if has_more(&path, &folder.join(commit)) {
            removal.kept.push((path, "programs of the package wrote into it".to_owned()));
        } else {
            removal.removed.push(path);
        }
    }
    // Removed after all comparisons, which read these copies.
    for path in &removal.removed {
        fs::remove_dir_all(path).map_err(SharingError::io(path))?;
    }
    removal.users = users.into_iter().map(|(path, _)| path).collect();
    if removal.kept.is_empty() {
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(SharingError::io(&folder)(error));
            }
            _ => {}
        }
    } else {
        write_users(&folder, &removal.users)?;
    }
    Ok(removal)
}

/// Returns `true` if the run folder at `path` has files that are not in `package`.
fn has_more(path: &Path, package: &Path) -> bool {
    let is_run = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(RUN));
    is_run && !matches!((tree::read(path), tree::read(package)), (Ok(run), Ok(package)) if run == package)
}

/// Returns the paths of a package's copies in the store, and of its fetch folders.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, SharingError> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(SharingError::io(folder))?,
    };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    found.sort();
    Ok(found)
}

//! Taking a repository out of a lock file, and out of the store where nothing else names it.

use super::SharingError;
use super::lockfile::{self, LockedPackage};
use super::store::{RUN, Store, find};
use super::tree;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Name of the file beside the copies of a repository that lists the lock files which named it, a line each.
const USERS: &str = "used-by";

/// What became of a repository that was removed.
#[derive(Clone, Debug)]
pub struct Removal {
    /// What the lock file said.
    pub locked: LockedPackage,
    /// Lock files elsewhere that still name it under this name.
    pub users: Vec<PathBuf>,
    /// What was removed from the store.
    pub removed: Vec<PathBuf>,
    /// What stays in the store, and why.
    pub kept: Vec<(PathBuf, String)>,
}

/// Takes a repository out of the lock file. Of its copies in the store those go that no other known lock file names; one in which
/// its programs wrote something stays in any case.
///
/// The lock file is written first: what is in it can always be fetched again.
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
    // Copies that were compared with others go after all comparisons.
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

/// Whether a folder in which programs run holds anything but the files of the package.
fn has_more(path: &Path, package: &Path) -> bool {
    let is_run = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(RUN));
    is_run && !matches!((tree::read(path), tree::read(package)), (Ok(run), Ok(package)) if run == package)
}

/// The copies of a repository in the store, and what it was fetched into.
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

/// Notes that the lock file of `store` names a repository.
pub(super) fn note_user(store: &Store, name: &str) -> Result<(), SharingError> {
    let folder = store.folder.join(name);
    let (own, mut all) = (absolute(&store.lock), users(&folder)?);
    if all.contains(&own) {
        return Ok(());
    }
    all.push(own);
    write_users(&folder, &all)
}

fn users(folder: &Path) -> Result<Vec<PathBuf>, SharingError> {
    let path = folder.join(USERS);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().map(PathBuf::from).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(SharingError::io(&path)(error)),
    }
}

fn write_users(folder: &Path, users: &[PathBuf]) -> Result<(), SharingError> {
    let text: String = users.iter().map(|path| format!("{}\n", path.display())).collect();
    lockfile::replace(&folder.join(USERS), &text, 0o600)
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

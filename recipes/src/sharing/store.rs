//! The store of shared recipes: its folder and lock file, and the checked files of a package.

use super::SharingError;
use super::lockfile::{self, LockedPackage};
use super::tree::{self, Tree};
use std::path::PathBuf;

/// The location of the stored packages and of their lock file.
///
/// In `folder`, each package has `NAME/git` (bare, without history), `NAME/COMMIT` (its files),
/// `NAME/run-COMMIT` (a copy in which its programs run) and `NAME/used-by` (the lock files that use it).
#[derive(Clone, Debug)]
pub struct Store {
    /// Folder of the stored packages, for example `~/.local/share/dtrain/recipes`.
    pub folder: PathBuf,
    /// Path of the lock file, for example `dtrain.lock` beside the recipe.
    pub lock: PathBuf,
    /// `true` to allow fetching from repositories on this machine.
    pub allow_file: bool,
}

/// Returns the entry of the package `name` in the lock file; `Err` if there is none.
pub(super) fn find(store: &Store, name: &str) -> Result<LockedPackage, SharingError> {
    let locked = lockfile::read(&store.lock)?;
    let known: Vec<&str> = locked.iter().map(|locked| locked.name.as_str()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let found = locked.into_iter().find(|locked| locked.name == name);
    found.ok_or_else(|| SharingError::Unknown { name: name.to_owned(), known })
}

/// Reads the stored files of a package and verifies their hash. Callers use these bytes, not the disk.
pub(super) fn verified_tree(store: &Store, locked: &LockedPackage) -> Result<Tree, SharingError> {
    let place = checkout_path(store, locked);
    if !place.exists() {
        let detail = format!("not fetched yet; `dtrain recipe update {}` does", locked.name);
        return Err(SharingError::File { path: place, detail });
    }
    let tree = tree::read(&place)?;
    let found = tree::hash(&tree);
    if found == locked.tree {
        return Ok(tree);
    }
    Err(SharingError::Altered { name: locked.name.clone(), found, locked: locked.tree.clone() })
}

/// Returns the path of a package's run folder, which [`super::checkout::checkout`] writes.
pub(super) fn run_checkout_path(store: &Store, locked: &LockedPackage) -> PathBuf {
    store.folder.join(&locked.name).join(format!("{RUN}{}", locked.commit))
}

/// Prefix of the names of run folders; the commit follows.
pub(super) const RUN: &str = "run-";

/// Returns the path of the folder with a package's stored files.
pub(super) fn checkout_path(store: &Store, locked: &LockedPackage) -> PathBuf {
    store.folder.join(&locked.name).join(&locked.commit)
}

//! Run folders: copies of the checked files of a package, in which its programs run.

use super::lockfile::LockedPackage;
use super::store::{RUN, Store, run_checkout_path};
use super::tree::{self, Tree};
use super::{SharingError, TrustStore};
use std::path::{Path, PathBuf};

/// Writes the checked files of a package to its run folder, and returns that folder. Files that were changed
/// there are replaced. Other files, such as output of a program, stay.
pub(super) fn checkout(store: &Store, locked: &LockedPackage, tree: &Tree) -> Result<PathBuf, SharingError> {
    let folder = run_checkout_path(store, locked);
    tree::write_changed_files(tree, &folder)?;
    Ok(folder)
}

/// Restores the trusted files of a package in its run folder, if `folder` is in one. Does nothing for any
/// other folder.
///
/// `Err` if the package is no longer stored or trusted, or its stored files have changed.
pub fn repair_checkout(store: &Store, trust: &TrustStore, folder: &Path) -> Result<(), SharingError> {
    let Ok(inside) = folder.strip_prefix(&store.folder) else { return Ok(()) };
    let mut parts = inside.iter().filter_map(|part| part.to_str());
    let (Some(name), Some(commit)) = (parts.next(), parts.next().and_then(|part| part.strip_prefix(RUN)))
    else {
        return Ok(());
    };
    let tree = tree::read(&store.folder.join(name).join(commit))?;
    if !trust.holds_tree(commit, &tree::hash(&tree)) {
        let detail = format!(
            "the files of {name} are not those of a trusted commit; `dtrain recipe verify` checks them, `dtrain recipe trust {name}` trusts them"
        );
        return Err(SharingError::File { path: folder.to_owned(), detail });
    }
    tree::write_changed_files(&tree, &store.folder.join(name).join(format!("{RUN}{commit}")))
}

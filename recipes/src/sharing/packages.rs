//! Adding, listing, showing, updating and verifying packages of shared recipes.

use super::file_change::{FileChange, between};
use super::git::Git;
use super::git_url::{check_rev, check_url, name_of};
use super::lockfile::{self, LockedPackage};
use super::store::{Store, checkout_path, find, verified_tree};
use super::tree::{self, MOST_BYTES, Tree};
use super::used_by::note_user;
use super::{Capability, SharingError, trust};
use crate::name::is_plain_name;
use std::path::Path;

/// A package as `dtrain recipe show` shows it.
#[derive(Clone, Debug)]
pub struct PackageDetails {
    /// Entry of the package in the lock file.
    pub locked: LockedPackage,
    /// Path and size in bytes of each file in the package.
    pub files: Vec<(String, usize)>,
    /// Actions beyond training of each recipe in the package, by the recipe's path.
    pub capabilities: Vec<(String, Vec<Capability>)>,
}

/// The result of updating a package.
#[derive(Clone, Debug)]
pub struct PackageUpdate {
    /// Entry of the package in the lock file before the update.
    pub before: LockedPackage,
    /// Entry of the package in the lock file after the update.
    pub after: LockedPackage,
    /// Files that differ between the two versions; empty if nothing changed.
    pub changes: Vec<FileChange>,
}

/// The state of a package's stored files compared with the lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutState {
    /// The stored files match the lock file.
    Sound,
    /// The stored files are absent; [`restore`] fetches them.
    Missing,
    /// The stored files differ from the lock file; has the hash of the files found, or the reason why they
    /// cannot be read.
    Altered(String),
}

/// Fetches a repository and locks it as a package under a name, by default the last part of the URL. A
/// package that is already locked under that name is fetched again.
pub fn add(
    store: &Store,
    url: &str,
    rev: Option<&str>,
    name: Option<&str>,
) -> Result<LockedPackage, SharingError> {
    check_url(url, store.allow_file)?;
    let rev = rev.unwrap_or("HEAD");
    check_rev(rev)?;
    let name = name.unwrap_or_else(|| name_of(url));
    // `library` is the prefix of built-in recipes.
    if !is_plain_name(name) || name == "library" {
        let wanted =
            "a name for a repository (letters, digits, `-`, `_` and `.`, at most 128; not `library`)";
        return Err(SharingError::Name { text: name.to_owned(), wanted });
    }
    let mut locked = lockfile::read(&store.lock)?;
    if let Some(other) = locked.iter().find(|other| other.name == name && other.url != url) {
        return Err(SharingError::Taken { name: name.to_owned(), url: other.url.clone() });
    }
    let (new, _) = fetch_locked(store, name, url, rev, rev)?;
    locked.retain(|other| other.name != name);
    locked.push(new.clone());
    lockfile::write(&store.lock, locked)?;
    Ok(new)
}

/// Returns the packages of the lock file, ordered by name.
pub fn list(store: &Store) -> Result<Vec<LockedPackage>, SharingError> {
    lockfile::read(&store.lock)
}

/// Returns the files of the package `name`, and the actions of its recipes that need trust.
pub fn show(store: &Store, name: &str) -> Result<PackageDetails, SharingError> {
    let locked = find(store, name)?;
    let tree = verified_tree(store, &locked)?;
    let files = tree.iter().map(|(path, file)| (path.clone(), file.bytes.len())).collect();
    let recipes = tree.iter().filter(|(path, _)| path.ends_with(".toml"));
    let able = |text: &[u8]| trust::capabilities_of_text(&String::from_utf8_lossy(text));
    let capabilities =
        recipes.map(|(path, file)| (path.clone(), able(&file.bytes))).filter(|(_, c)| !c.is_empty());
    Ok(PackageDetails { locked, files, capabilities: capabilities.collect() })
}

/// Fetches the revision that a package follows, locks its commit, and returns the changes.
pub fn update(store: &Store, name: &str) -> Result<PackageUpdate, SharingError> {
    let before = find(store, name)?;
    let old = tree::read(&checkout_path(store, &before)).unwrap_or_default();
    let (after, new) = fetch_locked(store, name, &before.url, &before.rev, &before.rev)?;
    let mut locked = lockfile::read(&store.lock)?;
    locked.retain(|other| other.name != name);
    locked.push(after.clone());
    lockfile::write(&store.lock, locked)?;
    Ok(PackageUpdate { changes: between(&old, &new), before, after })
}

/// Fetches the packages of the lock file that the store lacks, at exactly the locked commits, and returns
/// them. `Err` if the files of a commit do not have the locked hash. Altered files are left for [`verify`] to
/// report; [`update`] replaces them.
pub fn restore(store: &Store) -> Result<Vec<LockedPackage>, SharingError> {
    let mut restored = Vec::new();
    for locked in lockfile::read(&store.lock)? {
        if state(store, &locked) != CheckoutState::Missing {
            note_user(store, &locked.name)?;
            continue;
        }
        let (found, _) = fetch_locked(store, &locked.name, &locked.url, &locked.rev, &locked.commit)?;
        if found.tree != locked.tree {
            return Err(SharingError::Altered { name: locked.name, found: found.tree, locked: locked.tree });
        }
        restored.push(locked);
    }
    Ok(restored)
}

/// Hashes the files of every package again, and compares them with the lock file.
pub fn verify(store: &Store) -> Result<Vec<(LockedPackage, CheckoutState)>, SharingError> {
    let locked = lockfile::read(&store.lock)?;
    Ok(locked.into_iter().map(|locked| (locked.clone(), state(store, &locked))).collect())
}

fn state(store: &Store, locked: &LockedPackage) -> CheckoutState {
    match verified_tree(store, locked) {
        Ok(_) => CheckoutState::Sound,
        Err(SharingError::Altered { found, .. }) => CheckoutState::Altered(found),
        Err(_) if !checkout_path(store, locked).exists() => CheckoutState::Missing,
        Err(error) => CheckoutState::Altered(error.to_string()),
    }
}

/// Fetches `wanted`, a revision or a commit of a package, and writes its files to the store.
fn fetch_locked(
    store: &Store,
    name: &str,
    url: &str,
    rev: &str,
    wanted: &str,
) -> Result<(LockedPackage, Tree), SharingError> {
    check_url(url, store.allow_file)?;
    let bare = store.folder.join(name).join("git");
    emptied_folder(&bare)?;
    let git = Git::bare(&bare, store.allow_file);
    git.run(&["init", "-q", "--bare", "--template="])?;
    // Limits the fetch itself: compressed objects may be much smaller than their files, and there is no
    // history.
    let commit = git.fetch(url, wanted, 4 * MOST_BYTES)?;
    let tree = tree::of_commit(git, &commit)?;
    let locked = LockedPackage {
        name: name.to_owned(),
        url: url.to_owned(),
        rev: rev.to_owned(),
        tree: tree::hash(&tree),
        commit,
    };
    tree::write(&tree, &checkout_path(store, &locked))?;
    note_user(store, name)?;
    Ok((locked, tree))
}

/// Creates an empty folder in place of an existing one, so that no remains of an earlier fetch are reused.
fn emptied_folder(folder: &Path) -> Result<(), SharingError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(SharingError::io(folder)(error));
        }
        _ => {}
    }
    tree::private_folder(folder)
}

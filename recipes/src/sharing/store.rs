//! The store of shared recipes: adding, listing, showing, updating and verifying packages.

use super::file_change::{FileChange, between};
use super::git::Git;
use super::git_url::{check_rev, check_url, name_of};
use super::lockfile::{self, LockedPackage};
use super::remove::note_user;
use super::tree::{self, MOST_BYTES, Tree};
use super::{Capability, SharingError, TrustStore, trust};
use crate::name::is_plain_name;
use std::path::{Path, PathBuf};

/// Folder of the packages, and their lock file.
///
/// In `folder`, each package has `NAME/git` (bare, without history), `NAME/COMMIT` (its files),
/// `NAME/run-COMMIT` (a copy in which its programs run) and `NAME/used-by` (the lock files that use it).
#[derive(Clone, Debug)]
pub struct Store {
    /// Folder of the repositories, for example `~/.local/share/dtrain/recipes`.
    pub folder: PathBuf,
    /// The lock file, for example `dtrain.lock` beside the recipe.
    pub lock: PathBuf,
    /// `true` to allow fetching from repositories on this machine.
    pub allow_file: bool,
}

/// A package as `dtrain recipe show` shows it.
#[derive(Clone, Debug)]
pub struct PackageDetails {
    /// Its entry in the lock file.
    pub locked: LockedPackage,
    /// Path and size in bytes of each file.
    pub files: Vec<(String, usize)>,
    /// Actions beyond training of each recipe in it, by path.
    pub capabilities: Vec<(String, Vec<Capability>)>,
}

/// The result of an update.
#[derive(Clone, Debug)]
pub struct PackageUpdate {
    /// The entry in the lock file before.
    pub before: LockedPackage,
    /// The entry in the lock file now.
    pub after: LockedPackage,
    /// Files that differ; empty if nothing changed.
    pub changes: Vec<FileChange>,
}

/// The state of a package's stored files compared with the lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckoutState {
    /// The files match the lock file.
    Sound,
    /// The files are absent; [`restore`] fetches them.
    Missing,
    /// The files differ: the hash of the files found, or the reason why they cannot be read.
    Altered(String),
}

/// Fetches a repository and locks it under a name (by default the last part of the URL). A package that is
/// already locked under that name is fetched again.
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

/// Returns the files of one package, and the actions of its recipes that need trust.
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

/// Fetches packages of the lock file that the store lacks, at exactly the locked commits, and returns them.
/// `Err` if the files of a commit do not have the locked hash. Altered files are left for [`verify`] to
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

/// Returns the entry of the lock file with this name.
pub(super) fn find(store: &Store, name: &str) -> Result<LockedPackage, SharingError> {
    let locked = lockfile::read(&store.lock)?;
    let known: Vec<&str> = locked.iter().map(|locked| locked.name.as_str()).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let found = locked.into_iter().find(|locked| locked.name == name);
    found.ok_or_else(|| SharingError::Unknown { name: name.to_owned(), known })
}

/// Reads the files of a package and checks their hash; callers use these bytes, not the disk.
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

/// Writes the checked files of a package to the folder in which its programs run, and returns that folder.
/// Files that were changed there are replaced. Other files, such as output of a program, stay.
pub(super) fn checkout(store: &Store, locked: &LockedPackage, tree: &Tree) -> Result<PathBuf, SharingError> {
    let folder = run_checkout_path(store, locked);
    tree::write_changed_files(tree, &folder)?;
    Ok(folder)
}

/// Returns the folder that [`checkout`] writes.
pub(super) fn run_checkout_path(store: &Store, locked: &LockedPackage) -> PathBuf {
    store.folder.join(&locked.name).join(format!("{RUN}{}", locked.commit))
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

/// Prefix of the folders in which programs of packages run; the commit follows.
pub(super) const RUN: &str = "run-";

fn state(store: &Store, locked: &LockedPackage) -> CheckoutState {
    match verified_tree(store, locked) {
        Ok(_) => CheckoutState::Sound,
        Err(SharingError::Altered { found, .. }) => CheckoutState::Altered(found),
        Err(_) if !checkout_path(store, locked).exists() => CheckoutState::Missing,
        Err(error) => CheckoutState::Altered(error.to_string()),
    }
}

fn checkout_path(store: &Store, locked: &LockedPackage) -> PathBuf {
    store.folder.join(&locked.name).join(&locked.commit)
}

/// Fetches `wanted` (the revision or a commit) and writes its files to the store.
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

/// Creates an empty folder, deleting an earlier one, so that no remains of an earlier fetch are reused.
fn emptied_folder(folder: &Path) -> Result<(), SharingError> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(SharingError::io(folder)(error));
        }
        _ => {}
    }
    tree::private_folder(folder)
}

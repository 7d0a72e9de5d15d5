//! The lock file `dtrain.lock`: repositories of recipes, each pinned to a commit and the hash of its
//! contents.

use super::SharingError;
use super::git_url::{check_rev, check_url};
use crate::name::is_plain_name;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// An entry of the lock file: a package, which is a repository of recipes, pinned to a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LockedPackage {
    /// Name of the package in recipes: `extends = "PACKAGE/RECIPE"`.
    pub name: String,
    /// URL from which the package is fetched.
    pub url: String,
    /// Branch, tag or commit that `dtrain recipe update` follows.
    pub rev: String,
    /// Commit to which the package is pinned.
    pub commit: String,
    /// blake3 hash of the package's files, in 64 hexadecimal digits.
    pub tree: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LockFile {
    version: u32,
    #[serde(default)]
    recipe: Vec<LockedPackage>,
}

/// Reads a lock file; an absent one is empty. `Err` if it cannot be read or is invalid.
pub fn read(path: &Path) -> Result<Vec<LockedPackage>, SharingError> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(SharingError::io(path)(error)),
    };
    let wrong = |detail: String| SharingError::File { path: path.to_owned(), detail };
    let file: LockFile =
        toml::from_str(&text).map_err(|error| wrong(error.to_string().trim_end().to_owned()))?;
    if file.version != 1 {
        return Err(wrong(format!("version {} is not known; this dtrain reads version 1", file.version)));
    }
    for (index, locked) in file.recipe.iter().enumerate() {
        check(locked)?;
        if file.recipe[..index].iter().any(|other| other.name == locked.name) {
            return Err(wrong(format!("{:?} is locked twice", locked.name)));
        }
    }
    Ok(file.recipe)
}

/// Checks an entry of a lock file before its fields reach git or a path, since the lock file may come from
/// another user.
fn check(locked: &LockedPackage) -> Result<(), SharingError> {
    check_url(&locked.url, true)?;
    check_rev(&locked.rev)?;
    let is_hex = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    let name = |text: &str, wanted| SharingError::Name { text: text.to_owned(), wanted };
    if !is_plain_name(&locked.name) {
        return Err(name(&locked.name, "a name (letters, digits, `-`, `_` and `.`, at most 128)"));
    }
    if !is_hex(&locked.commit, &[40, 64]) {
        return Err(name(&locked.commit, "a full commit"));
    }
    if !is_hex(&locked.tree, &[64]) {
        return Err(name(&locked.tree, "a blake3 hash"));
    }
    Ok(())
}

/// Writes a lock file atomically, with its packages ordered by name.
pub fn write(path: &Path, mut recipes: Vec<LockedPackage>) -> Result<(), SharingError> {
    recipes.sort_by(|a, b| a.name.cmp(&b.name));
    let file = LockFile { version: 1, recipe: recipes };
    let wrong =
        |error: toml::ser::Error| SharingError::File { path: path.to_owned(), detail: error.to_string() };
    let text = toml::to_string(&file).map_err(wrong)?;
    replace(
        path,
        &format!("# Written by `dtrain recipe`; keep it beside the recipes that use it.\n{text}"),
        0o644,
    )
}

/// Atomically replaces the file at `path` with a new one that has this text and mode.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), SharingError> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    drop(fs::remove_file(&partial));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&partial)
        .map_err(SharingError::io(&partial))?;
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(SharingError::io(&partial))?;
    fs::rename(&partial, path).map_err(SharingError::io(path))
}

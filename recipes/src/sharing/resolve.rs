//! Finds the recipe that the user or an `extends` key names.

use super::checkout::checkout;
use super::referenced_files::path_inside;
use super::store::{Store, find, run_checkout_path, verified_tree};
use super::{SharingError, tree};
use crate::source::{ConfigLayer, LARGEST, Source};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Reads a recipe of a package: `PACKAGE/RECIPE`, with or without `.toml`. The text comes from bytes with the
/// locked hash. Its folder, the base of its data paths and of its command, holds the same files.
pub fn read_recipe(store: &Store, reference: &str, layer: ConfigLayer) -> Result<Source, SharingError> {
    let wanted = "the name of a shared recipe, PACKAGE/RECIPE";
    let wrong = || SharingError::Name { text: reference.to_owned(), wanted };
    let (name, path) = reference.split_once('/').ok_or_else(wrong)?;
    let path = if path.ends_with(".toml") { path.to_owned() } else { format!("{path}.toml") };
    if !tree::is_path(&path) {
        return Err(wrong());
    }
    let locked = find(store, name)?;
    let tree = verified_tree(store, &locked)?;
    let Some(file) = tree.get(&path) else {
        let recipes: Vec<&str> =
            tree.keys().filter(|path| path.ends_with(".toml")).map(String::as_str).collect();
        let known = if recipes.is_empty() { "none".to_owned() } else { recipes.join(", ") };
        return Err(SharingError::Unknown { name: reference.to_owned(), known });
    };
    let text = String::from_utf8(file.bytes.clone())
        .map_err(|_| SharingError::Refused(format!("{reference} is not UTF-8 text")))?;
    let shown = locked.commit.get(..12).unwrap_or(&locked.commit);
    let source = Source::new(format!("{name}/{path}@{shown}"), layer, text);
    let folder = checkout(store, &locked, &tree)?;
    let folder = folder.join(Path::new(&path).parent().unwrap_or(Path::new("")));
    Ok(Source { shared: Some(locked.name), folder: Some(folder), ..source })
}

/// Finds the recipe that `extends` in a source names: a file beside it, or `PACKAGE/RECIPE` from git. A
/// shared recipe reaches only its own repository and others of the lock file, never the user's files.
pub fn resolve(store: Option<&Store>, reference: &str, from: &Source) -> Result<Source, SharingError> {
    let is_file = reference.ends_with(".toml") || reference.starts_with(['.', '/']);
    match (&from.shared, store) {
        (Some(name), Some(store)) if is_file => {
            let path = in_package(store, name, reference, from).ok_or_else(|| SharingError::Name {
                text: reference.to_owned(),
                wanted: "the name of a shared recipe of the same package",
            })?;
            read_recipe(store, &format!("{name}/{path}"), ConfigLayer::Extended)
        }
        (Some(_), None) => Err(SharingError::Refused("its repository has not been fetched".to_owned())),
        (None, _) if is_file => read_file(&from.folder.clone().unwrap_or_default().join(reference)),
        (_, Some(store)) => read_recipe(store, reference, ConfigLayer::Extended),
        (None, None) => Err(SharingError::Unknown { name: reference.to_owned(), known: "none".to_owned() }),
    }
}

/// Returns the path within a package of the recipe `reference` that one of its sources names; `None` if it
/// leads out of the package.
fn in_package(store: &Store, name: &str, reference: &str, from: &Source) -> Option<String> {
    let root = run_checkout_path(store, &find(store, name).ok()?);
    let folder =
        from.folder.as_ref().and_then(|folder| folder.strip_prefix(&root).ok()).unwrap_or(Path::new(""));
    Some(path_inside(&folder.join(reference))?.to_string_lossy().into_owned())
}

/// Returns [`resolve`] as a callback for [`crate::resolve_extends`].
pub fn resolver(store: Option<&Store>) -> impl Fn(&str, &Source) -> Result<Source, String> + '_ {
    move |reference, from| {
        resolve(store, reference, from).map_err(|error| {
            let cause = std::error::Error::source(&error).map_or(String::new(), |cause| format!(": {cause}"));
            format!("{error}{cause}")
        })
    }
}

fn read_file(path: &Path) -> Result<Source, SharingError> {
    // A second spelling of the same path would escape the check for cycles.
    let path: PathBuf =
        path.components().filter(|part| !matches!(part, std::path::Component::CurDir)).collect();
    check_is_recipe(&path)?;
    let file = std::fs::File::open(&path).map_err(SharingError::io(&path))?;
    let mut bytes = Vec::new();
    file.take(LARGEST as u64 + 1).read_to_end(&mut bytes).map_err(SharingError::io(&path))?;
    let not_text = |_| SharingError::File { path: path.clone(), detail: "not UTF-8 text".to_owned() };
    let text = String::from_utf8(bytes).map_err(not_text)?;
    Ok(Source::file(&path, ConfigLayer::Extended, text))
}

/// Checks that a file is named like a recipe, also behind links: messages quote lines of a recipe, which
/// could otherwise be any file of the user.
fn check_is_recipe(path: &Path) -> Result<(), SharingError> {
    let is_recipe = |path: &Path| path.extension().is_some_and(|ending| ending == "toml");
    let real = std::fs::canonicalize(path).map_err(SharingError::io(path))?;
    if is_recipe(path) && is_recipe(&real) && real.is_file() {
        return Ok(());
    }
    let detail = "it is not read, because recipes are files whose names end in `.toml`".to_owned();
    Err(SharingError::File { path: path.to_owned(), detail })
}

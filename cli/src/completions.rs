//! Shell completion of names that only the user's files contain: trials, studies, recipes, packages, and
//! keys.
//!
//! The shell calls the program with `COMPLETE` set whenever Tab is pressed. So nothing is planned, measured,
//! migrated or written here, and unreadable files offer no completions.

use crate::context::Context;
use crate::output::Output;
use crate::packages::store;
use clap::Command;
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter};
use dtrain_recipes::keys::{ValueType, keys};
use dtrain_recipes::sanitize::is_harmful;
use dtrain_recipes::{library, sharing};
use dtrain_runner::ledger::completion;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Environment variable by which a shell asks for completions; its value names the shell.
pub(crate) const VARIABLE: &str = "COMPLETE";

/// Prints completions and ends the program if a shell asks for them.
pub(crate) fn answer(command: fn() -> Command) {
    CompleteEnv::with_factory(command).var(VARIABLE).bin("dtrain").complete();
}

/// Creates a completer of trial names.
pub(crate) fn trial() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let words = completion::labels(&history(), text(typed));
        candidates(words.into_iter().chain(["last".to_owned()]), typed)
    })
}

/// Creates a completer of host names.
pub(crate) fn host() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates(completion::hosts(&history(), text(typed)), typed))
}

/// Creates a completer of study names.
pub(crate) fn study() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates(completion::studies(&history(), text(typed)), typed))
}

/// Creates a completer of trial names and study names.
pub(crate) fn trial_or_study() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = trial().complete(typed);
        found.extend(study().complete(typed));
        found
    })
}

/// Creates a completer of library recipes, package recipes, and files.
pub(crate) fn recipe() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = candidates(recipes(), typed);
        found.extend(PathCompleter::any().complete(typed));
        found
    })
}

/// Creates a completer of library recipes and package recipes.
pub(crate) fn recipe_name() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| candidates(recipes(), typed))
}

/// Creates a completer for `show`: trial names, or with `--resolved` recipes and files.
pub(crate) fn trial_or_recipe() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        let mut found = trial().complete(typed);
        if std::env::args_os().any(|word| word == "--resolved") {
            found = recipe().complete(typed);
        }
        found
    })
}

/// Creates a completer of package names.
pub(crate) fn package() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| {
        candidates(packages().into_iter().map(|locked| locked.name), typed)
    })
}

/// Creates a completer of recipe keys, and after `=` of the values that a key may have.
pub(crate) fn setting() -> ArgValueCompleter {
    ArgValueCompleter::new(|typed: &OsStr| match text(typed).split_once('=') {
        None => {
            let key = |path: &str, doc: &str| {
                CompletionCandidate::new(format!("{path}=")).help(Some(doc.to_owned().into()))
            };
            let known = keys().iter().filter(|key| key.path.starts_with(text(typed)));
            known.map(|known| key(known.path, known.doc)).collect()
        }
        Some((path, _)) => {
            let shape = keys().iter().find(|key| key.path == path).map(|key| key.shape);
            candidates(
                shape
                    .map(possible_values)
                    .unwrap_or_default()
                    .into_iter()
                    .map(|word| format!("{path}={word}")),
                typed,
            )
        }
    })
}

/// Returns the words that are values of this type; empty if it has no fixed words.
fn possible_values(shape: ValueType) -> Vec<&'static str> {
    match shape {
        ValueType::OneOf(words) => words.names().to_vec(),
        ValueType::Flag => vec!["true", "false"],
        ValueType::OrNone(inner) => ["none"].into_iter().chain(possible_values(*inner)).collect(),
        ValueType::OrAuto(inner) => ["auto"].into_iter().chain(possible_values(*inner)).collect(),
        ValueType::Choice(inner) => ["auto"].into_iter().chain(possible_values(*inner)).collect(),
        _ => Vec::new(),
    }
}

/// Returns as completions the words that start with `typed`, except those with terminal control characters.
fn candidates(words: impl IntoIterator<Item = String>, typed: &OsStr) -> Vec<CompletionCandidate> {
    let fits = |word: &String| word.starts_with(text(typed)) && !word.contains(is_harmful);
    words
        .into_iter()
        .filter(fits)
        .enumerate()
        .map(|(place, word)| CompletionCandidate::new(word).display_order(Some(place)))
        .collect()
}

fn text(typed: &OsStr) -> &str {
    typed.to_str().unwrap_or_default()
}

/// Returns the path of the history in the state folder that the command line or the environment names.
fn history() -> PathBuf {
    let mut words = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let mut said = None;
    while let Some(word) = words.next() {
        if word == "--state" {
            said = words.next();
        } else if let Some(folder) = word.to_str().and_then(|word| word.strip_prefix("--state=")) {
            said = Some(folder.into());
        }
    }
    let variable = || std::env::var_os("DTRAIN_STATE").filter(|folder| !folder.is_empty());
    let folder = said.or_else(variable).map(PathBuf::from);
    Context::new(Output::new(false, true), folder)
        .ok()
        .filter(|context| context.home.check().is_ok())
        .map(|context| context.home.history())
        .unwrap_or_default()
}

fn packages() -> Vec<sharing::LockedPackage> {
    store(Path::new("."), false).ok().and_then(|store| sharing::list(&store).ok()).unwrap_or_default()
}

/// Returns the names `library/NAME` and `PACKAGE/RECIPE` of all recipes. Looks at file names only, and
/// verifies nothing.
fn recipes() -> Vec<String> {
    let mut names: Vec<String> = library::names().map(|name| format!("library/{name}")).collect();
    if let Ok(store) = store(Path::new("."), false) {
        for locked in packages() {
            let folder = store.folder.join(&locked.name).join(&locked.commit);
            collect(&folder, &locked.name, 4, &mut names);
        }
    }
    names
}

/// Adds to `names` the recipes below a folder of a package, down to `depth` further levels.
fn collect(folder: &Path, prefix: &str, depth: u32, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        match name.strip_suffix(".toml") {
            Some(stem) => names.push(format!("{prefix}/{stem}")),
            None if depth > 0 && entry.path().is_dir() => {
                collect(&entry.path(), &format!("{prefix}/{name}"), depth - 1, names);
            }
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(completer: &ArgValueCompleter, typed: &str) -> Vec<String> {
        let found = completer.complete(OsStr::new(typed));
        found.iter().map(|one| one.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn keys_and_their_words_are_offered() {
        assert!(offered(&setting(), "train.see").contains(&"train.seed=".to_owned()));
        assert_eq!(offered(&setting(), "cluster.launcher=l"), ["cluster.launcher=local"]);
        assert!(offered(&setting(), "nothing.").is_empty());
    }

    #[test]
    fn the_library_is_offered() {
        assert!(offered(&recipe_name(), "library/").contains(&"library/char-gpt".to_owned()));
    }
}

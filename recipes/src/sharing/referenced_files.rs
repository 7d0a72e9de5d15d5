//! Collects the files that a recipe names, which are published with it.

use super::SharingError;
use super::placeholder_values::{IN_RUN_DIR, PlaceholderValues, UNKNOWN};
use super::tree::{self, MOST_BYTES, MOST_FILES, RepositoryFile, Tree};
use crate::check::{CheckedRecipe, FilePattern};
use crate::model::{ForeignCommand, Model};
use crate::recipe::Recipe;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

/// A function that finds the files that match a pattern of a recipe in a folder.
pub type Expand<'e> = &'e dyn Fn(&FilePattern, &Path) -> Vec<PathBuf>;

/// File extensions that mark a word as a file name, even if no such file exists.
const FILES: [&str; 13] =
    ["py", "sh", "jl", "R", "yaml", "yml", "json", "toml", "ipynb", "cfg", "ini", "txt", "csv"];

/// System folders, whose programs are expected on other machines too.
const SYSTEM: [&str; 4] = ["/bin", "/sbin", "/usr", "/opt"];

/// Returns the files that a recipe in `folder` names, relative to it: recipes that it `extends`, data,
/// tokenizer, weights, scripts, and files in arguments, variables and params.
///
/// `Err` lists files that are missing, outside the folder, without a plain path, or too many.
pub(super) fn referenced_files(
    folder: &Path,
    checked: &CheckedRecipe,
    bases: &[PathBuf],
    expand: Expand<'_>,
) -> Result<Tree, SharingError> {
    let root = fs::canonicalize(folder).map_err(SharingError::io(folder))?;
    let mut gathering = FileCollector { root, paths: BTreeSet::new(), problems: BTreeSet::new() };
    for base in bases {
        gathering.absolute("extends", base);
    }
    for pattern in checked.files.iter().filter(|pattern| !is_shared(pattern.origin.source())) {
        gathering.pattern(pattern, expand);
    }
    let said = checked.resolved.iter().find(|value| value.path == "model.argv");
    if let Model::Command(command) = &checked.recipe.model
        && !said.is_some_and(|value| is_shared(value.origin.source()))
    {
        gathering.command(command, &checked.recipe);
    }
    gathering.read()
}

/// Returns `true` if `source` belongs to a package, which publishes its own files.
fn is_shared(source: Option<&crate::source::Source>) -> bool {
    source.is_some_and(|source| source.shared.is_some())
}

/// The place of a text in a command: its key, with `is_program` if it is the program to run.
#[derive(Clone, Copy, Debug)]
struct CommandText {
    key: &'static str,
    is_program: bool,
}

/// Returns `true` if `word` has the form of a file path; the file need not exist.
fn names_file(word: &str) -> bool {
    let Some(end) = Path::new(word).extension().and_then(|end| end.to_str()) else { return false };
    // For example, `org/model-1.3b` has no extension.
    let is_extension = end.len() <= 5
        && end.starts_with(|first: char| first.is_ascii_alphabetic())
        && end.chars().all(|c| c.is_ascii_alphanumeric());
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | UNKNOWN);
    FILES.contains(&end) || is_extension && word.contains('/') && word.chars().all(is_plain)
}

struct FileCollector {
    /// Folder of the recipe, absolute and without links.
    root: PathBuf,
    /// Paths of the files to publish, relative to the recipe's folder.
    paths: BTreeSet<String>,
    /// Descriptions of files that cannot be published.
    problems: BTreeSet<String>,
}

impl FileCollector {
    fn problem(&mut self, key: &str, what: impl std::fmt::Display, why: &str) {
        self.problems.insert(format!("`{key}`: {what} {why}"));
    }

    fn pattern(&mut self, pattern: &FilePattern, expand: Expand<'_>) {
        let path = Path::new(&pattern.pattern);
        if pattern.url().is_some() || pattern.hub_model().is_some() {
            return;
        }
        if self.root.join(path).is_dir() || path_inside(path).is_none() {
            return self.add_path(pattern.key, path);
        }
        let found = expand(pattern, &self.root);
        if found.is_empty() {
            self.problem(pattern.key, path.display(), "matches no file");
        }
        for file in found {
            self.absolute(pattern.key, &file);
        }
    }

    /// Adds the file at an absolute path.
    fn absolute(&mut self, key: &str, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let folder = path.parent().and_then(|folder| fs::canonicalize(folder).ok());
        let full = folder.zip(path.file_name()).map_or(path.clone(), |(folder, name)| folder.join(name));
        let path = full.strip_prefix(&self.root).map_or(full.clone(), Path::to_path_buf);
        self.add_path(key, &path);
    }

    /// Adds a file, or all files of a folder, by a path relative to the recipe's folder.
    fn add_path(&mut self, key: &str, path: &Path) {
        const ELSEWHERE: &str = "is outside of the recipe's folder";
        let Some(plain) = path_inside(path) else { return self.problem(key, path.display(), ELSEWHERE) };
        let Ok(real) = fs::canonicalize(self.root.join(&plain)) else {
            let why = "is not there; what the program writes belongs below `{run.dir}`";
            return self.problem(key, path.display(), why);
        };
        if !real.starts_with(&self.root) {
            return self.problem(key, path.display(), ELSEWHERE);
        }
        if real.is_dir() {
            // Links could lead back to a parent folder, in a loop.
            return if real == self.root.join(&plain) {
                self.folder(key, &plain);
            } else {
                self.problem(key, path.display(), "is reached by a link to a folder; copy the folder there");
            };
        }
        if !real.is_file() {
            return self.problem(key, path.display(), "is neither a file nor a folder");
        }
        let name = plain.to_string_lossy().into_owned();
        if !tree::is_path(&name) {
            let why = "is not a plain path: each part has letters, digits, `.`, `_` and `-`, at most 128";
            return self.problem(key, path.display(), why);
        }
        self.paths.insert(name);
    }

    fn folder(&mut self, key: &str, folder: &Path) {
        for entry in fs::read_dir(self.root.join(folder)).into_iter().flatten().flatten() {
            let name = entry.file_name();
            // Private files of git and Python.
            let is_own = name.as_encoded_bytes().starts_with(b".") || name == "__pycache__";
            if !is_own && self.paths.len() <= MOST_FILES {
                self.add_path(key, &folder.join(name));
            }
        }
    }

    fn command(&mut self, command: &ForeignCommand, recipe: &Recipe) {
        let known = PlaceholderValues::of(recipe);
        for (index, argument) in command.argv.iter().enumerate() {
            let is_module = index > 0 && command.argv[index - 1] == "-m";
            let place = CommandText { key: "model.argv", is_program: index == 0 };
            for text in self.filled(place.key, argument, &known) {
                if is_module {
                    self.module(&text);
                } else {
                    self.text(place, &text);
                }
            }
        }
        let place = CommandText { key: "model.env", is_program: false };
        for value in command.env.values() {
            for text in self.filled(place.key, value, &known) {
                self.text(place, &text);
            }
        }
        for text in known.texts() {
            self.perhaps("params", text);
        }
    }

    /// Returns `text` filled with each combination of placeholder values; reports a problem at `key` if there
    /// are too many.
    fn filled(&mut self, key: &str, text: &str, known: &PlaceholderValues) -> Vec<String> {
        let texts = known.filled(text);
        if texts.is_none() {
            self.problem(key, text, "stands for too many texts: give its params fewer values");
        }
        texts.unwrap_or_default()
    }

    /// Adds the Python module of `-m NAME` if it is in the recipe's folder, not an installed one.
    fn module(&mut self, name: &str) {
        let path = name.replace('.', "/");
        self.perhaps("model.argv", &format!("{path}.py"));
        // A module within a package needs the whole package.
        self.perhaps("model.argv", path.split('/').next().unwrap_or(&path));
    }

    /// Adds the files named in an argument or a variable, which may be a shell line, a list of paths, or
    /// `--config=FILE`.
    fn text(&mut self, place: CommandText, text: &str) {
        for word in text.split([' ', '\t', '\n', '=', ';', '&', '|']) {
            // The path of a URL is not a local file.
            if word.contains("://") {
                continue;
            }
            for part in word.split([':', ',']) {
                self.add_named_file(place, part.trim_matches(['"', '\'', '(', ')', '[', ']', '{', '}']));
            }
        }
    }

    fn add_named_file(&mut self, place: CommandText, word: &str) {
        let word = word.strip_prefix('@').unwrap_or(word);
        let path = Path::new(word);
        let is_of_system = SYSTEM.iter().any(|folder| path.starts_with(folder));
        let may_be_of_system = place.is_program || place.key == "model.env";
        if word.is_empty()
            || word.contains(['$', IN_RUN_DIR])
            || may_be_of_system && is_of_system
            || path.starts_with("/dev")
        {
            return;
        }
        let is_file = names_file(word) || place.is_program && word.contains('/');
        if word.contains(UNKNOWN) {
            if is_file {
                let why =
                    "is not the same file in each run: only params with a list of values may stand in a path";
                self.problem(place.key, word.replace(UNKNOWN, "{…}"), why);
            }
        } else if is_file || self.root.join(path).exists() {
            self.named(place.key, path);
        }
    }

    /// Adds the file that `text` names, if it exists.
    fn perhaps(&mut self, key: &str, text: &str) {
        let path = Path::new(text);
        if !text.is_empty() && !path.starts_with("/dev") && self.root.join(path).exists() {
            self.named(key, path);
        }
    }

    /// Adds a file or a folder that a recipe names, except the recipe's folder itself.
    fn named(&mut self, key: &str, path: &Path) {
        if path_inside(path).is_none_or(|plain| !plain.as_os_str().is_empty()) {
            self.add_path(key, path);
        }
    }

    fn read(mut self) -> Result<Tree, SharingError> {
        let (mut tree, mut total) = (Tree::new(), 0u64);
        for name in std::mem::take(&mut self.paths) {
            let path = self.root.join(&name);
            let facts = fs::metadata(&path).map_err(SharingError::io(&path))?;
            total = total.saturating_add(facts.len());
            if total <= MOST_BYTES && tree.len() < MOST_FILES {
                let bytes = fs::read(&path).map_err(SharingError::io(&path))?;
                tree.insert(
                    name,
                    RepositoryFile { is_executable: facts.permissions().mode() & 0o100 != 0, bytes },
                );
            } else {
                self.problems.insert(format!(
                    "{name} is too much: a package holds at most {MOST_FILES} files and {MOST_BYTES} bytes"
                ));
                break;
            }
        }
        if self.problems.is_empty() {
            return Ok(tree);
        }
        Err(SharingError::Incomplete(self.problems.into_iter().collect()))
    }
}

/// Returns a relative path without `.` and `..`; `None` if it leads out of its base folder.
pub(super) fn path_inside(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::CurDir => {}
            Component::ParentDir if plain.pop() => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::{names_file, path_inside};
    use std::path::Path;

    #[test]
    fn paths_that_lead_out_are_told_from_those_that_do_not() {
        let plain = |path: &str| path_inside(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(plain("./a/../b/c.py").as_deref(), Some("b/c.py"));
        assert_eq!(plain(".").as_deref(), Some(""));
        for path in ["/a", "../a", "a/../../b"] {
            assert_eq!(plain(path), None, "{path}");
        }
    }

    #[test]
    fn words_that_name_files_are_told_from_others() {
        for word in ["a.py", "configs/x.yaml", "../x.toml", "/data/x.tar", "weights/a.bin", "nb.ipynb"] {
            assert!(names_file(word), "{word}");
        }
        for word in
            [".py", "a.b", "org/model", "facebook/opt-1.3b", "meta-llama/Llama-3.2-1B", "0.1", "f(a/b.item"]
        {
            assert!(!names_file(word), "{word}");
        }
    }
}

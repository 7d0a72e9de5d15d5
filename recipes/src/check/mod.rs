//! Checks a document: turns it into a recipe, or into a list of all its problems.
//!
//! Five steps: each value against the type of its key (`walk`), defaults (`defaults`), contradictions between
//! values (`rules`), the typed recipe (`build`), and the placeholders of a command (`placeholders`). Reads no
//! file: [`CheckedRecipe::files`] lists the files of a recipe, and the caller looks for them.

mod build;
mod defaults;
mod hosts;
mod parse_value;
mod parsed;
mod placeholders;
mod rules;
mod suggestion;
mod values;
mod walk;

use crate::document::{Document, notes};
use crate::hub_model::HubModel;
use crate::keys::Kind;
use crate::name::is_plain_name;
use crate::problem::{Problem, sorted};
use crate::recipe::Recipe;
use crate::source::{ConfigLayer, Origin};
use crate::url::Url;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The folder and name of a recipe's file, which the check needs besides the document itself.
#[derive(Clone, Debug)]
pub struct CheckContext {
    /// Folder of the recipe, the base of relative data paths. Only passed on to the caller: the check reads
    /// no folder.
    pub folder: PathBuf,
    /// Name of a recipe that does not set `name`: the stem of its file.
    pub name: String,
}

impl CheckContext {
    /// Returns the folder and name for a recipe's file. A stem that is not a valid name becomes `recipe`.
    pub fn of_file(path: &Path) -> Self {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_plain_name(stem));
        Self {
            folder: path.parent().map(PathBuf::from).unwrap_or_default(),
            name: stem.unwrap_or("recipe").to_owned(),
        }
    }
}

/// Text shown in place of a value that is not set.
pub(crate) const NOT_SET: &str = "not set";

/// A valid recipe, with the origin of each of its values.
#[derive(Clone, Debug)]
pub struct CheckedRecipe {
    /// The checked recipe.
    pub recipe: Recipe,
    /// The value of every key that applies to the recipe, in the order of the table of keys.
    pub resolved: Vec<ResolvedValue>,
    /// The files that the recipe needs; they may not exist.
    pub files: Vec<FilePattern>,
    /// One note for each key or word that the recipe spells as an earlier version of dtrain did.
    pub notes: Vec<Problem>,
}

/// One value of a recipe, as text.
#[derive(Clone, Debug)]
pub struct ResolvedValue {
    /// Dotted path of the key, such as `cluster.hosts[0].address`.
    pub path: String,
    /// The value as TOML, or "not set".
    pub value: String,
    /// Position of the value in a file or on the command line, or the built-in default.
    pub origin: Origin,
}

impl CheckedRecipe {
    /// Returns the values that the user set, as TOML by dotted path. [`Document::from_settings`] reads them
    /// back.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let is_said =
            |value: &&ResolvedValue| value.origin.layer() != ConfigLayer::Default && value.value != NOT_SET;
        self.resolved.iter().filter(is_said).map(|value| (value.path.clone(), value.value.clone())).collect()
    }
}

/// A file or glob pattern that a recipe names.
#[derive(Clone, Debug)]
pub struct FilePattern {
    /// The recipe key that names the files, such as `data.train`.
    pub key: &'static str,
    /// The pattern in the checked recipe: relative to [`CheckContext::folder`], absolute, or a URL.
    pub pattern: String,
    /// Position of the pattern in the recipe.
    pub origin: Origin,
}

impl FilePattern {
    /// Returns the pattern as a URL to download; `None` if it names files on a host.
    pub fn url(&self) -> Option<Url> {
        Url::parse(&self.pattern).ok()
    }

    /// Returns the model on the Hugging Face Hub that `train.from` names; `None` if this is another key, or a
    /// folder.
    pub fn hub_model(&self) -> Option<HubModel> {
        (self.key == "train.from").then(|| HubModel::parse(&self.pattern).ok())?
    }

    /// Returns the problem to report if nothing in `folder` matches the pattern. `home` is the user's home
    /// folder.
    pub fn missing(&self, folder: &Path, home: Option<&Path>) -> Problem {
        if let Some(problem) = self.of_home(home) {
            return problem;
        }
        let place = folder.join(&self.pattern);
        let is_glob = self.pattern.contains(['*', '?', '[']);
        let message = if is_glob { "no file matches" } else { "no such file:" };
        Problem::new(format!("`{}`: {message} {}", self.key, place.display()))
            .at(&self.origin)
            .hint("paths start from the folder of the recipe that names them")
    }

    /// Returns the problem to report for a pattern with an unexpanded `~`, which only a shell expands; `None`
    /// without one.
    fn of_home(&self, home: Option<&Path>) -> Option<Problem> {
        let at = self.pattern.rfind("~/").filter(|at| *at == 0 || self.pattern[..*at].ends_with('/'))?;
        let (said, below) = (&self.pattern[at..], &self.pattern[at + 2..]);
        let problem =
            Problem::new(format!("`{}`: `~` is not expanded in {said:?}", self.key)).at(&self.origin);
        Some(match home {
            Some(home) => problem.hint(format!("write the absolute path {}", home.join(below).display())),
            None => problem.hint("write the absolute path"),
        })
    }

    /// Returns the problem to report if the pattern names a folder.
    pub fn is_folder(&self, folder: &Path) -> Problem {
        let (place, name) = (folder.join(&self.pattern), self.pattern.trim_end_matches('/'));
        Problem::new(format!("`{}`: {} is a folder", self.key, place.display()))
            .at(&self.origin)
            .hint(format!("name the files in it, for example \"{name}/*.txt\""))
    }

    /// Returns the problem to report if the pattern names neither a file nor a folder; `kind` is a word such
    /// as "a FIFO".
    pub fn is_special(&self, folder: &Path, kind: &str) -> Problem {
        let place = folder.join(&self.pattern);
        Problem::new(format!("`{}`: {} is {kind}, expected a regular file", self.key, place.display()))
            .at(&self.origin)
            .hint("write what it gives to a file first, and name that file")
    }
}

/// Checks a document and returns its recipe. `Err` lists every problem, ordered by position.
pub fn check(document: &Document, context: &CheckContext) -> Result<CheckedRecipe, Vec<Problem>> {
    let mut document = document.clone();
    walk::spell_out(&mut document);
    let (mut values, mut problems) = walk::walk(&document);
    let (hosts, wrong) = hosts::declared_hosts(&document);
    if !wrong.is_empty() {
        values.wrong.push("cluster.hosts".to_owned());
        problems.extend(wrong);
    }
    defaults::fill(&mut values, context);
    problems.extend(walk::missing(&document, &values, &problems));
    problems.extend(rules::contradictions(&document, &values, &hosts));
    if !problems.is_empty() {
        return Err(sorted(problems));
    }
    let recipe = build::recipe(&values, &hosts).ok_or_else(|| vec![incomplete()])?;
    if let Some(problem) = rules::too_large(&document, &values, &recipe.model) {
        return Err(vec![problem]);
    }
    if values.kind == Some(Kind::Command) {
        let problems = placeholders::problems(&document, &values, &recipe);
        if !problems.is_empty() {
            return Err(sorted(problems));
        }
    }
    let mut resolved = values.resolved();
    resolved.extend(hosts::resolved_hosts(&hosts));
    Ok(CheckedRecipe { recipe, resolved, files: values.files(), notes: notes(&document) })
}

/// Returns the problem to report if the values passed every check but no recipe could be built: a bug in
/// dtrain.
fn incomplete() -> Problem {
    Problem::new("the recipe passed every check but could not be built; this is a bug of dtrain")
        .hint("please report it together with the recipe")
}

//! From a document to a recipe, or to everything that is wrong with it.
//!
//! Five steps: each value against the shape of its key (`walk`), defaults (`defaults`), contradictions
//! between values (`rules`), the typed recipe (`build`), and what a command names of it (`placeholders`). Reads no file: the files a recipe names are
//! listed in [`CheckedRecipe::files`], and the caller looks for them.

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

use crate::document::Document;
use crate::keys::{self, Kind};
use crate::name::is_plain_name;
use crate::problem::{Problem, sorted};
use crate::recipe::Recipe;
use crate::source::{ConfigLayer, Origin};
use crate::url::Url;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the document itself does not say.
#[derive(Clone, Debug)]
pub struct CheckContext {
    /// Folder of the recipe; relative data paths of the checked recipe start from it. Carried for the caller: the
    /// check itself looks at no folder.
    pub folder: PathBuf,
    /// Name of a recipe that gives none: the stem of its file.
    pub name: String,
}

impl CheckContext {
    /// Folder and name of a recipe's file. A stem that is no name becomes `recipe`.
    pub fn of_file(path: &Path) -> Self {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| is_plain_name(stem));
        Self {
            folder: path.parent().map(PathBuf::from).unwrap_or_default(),
            name: stem.unwrap_or("recipe").to_owned(),
        }
    }
}

/// What stands for a value that nobody set.
pub(crate) const NOT_SET: &str = "not set";

/// A recipe that holds, and where each of its values comes from.
#[derive(Clone, Debug)]
pub struct CheckedRecipe {
    /// The recipe.
    pub recipe: Recipe,
    /// Every key that applies, in the order of the table of keys.
    pub resolved: Vec<ResolvedValue>,
    /// The files the recipe needs; whether they exist has not been looked at.
    pub files: Vec<FilePattern>,
    /// A note for each key and word that the recipe says under its name of an earlier version.
    pub notes: Vec<Problem>,
}

/// One value of a recipe.
#[derive(Clone, Debug)]
pub struct ResolvedValue {
    /// Dotted path; hosts are `cluster.hosts[0].address`.
    pub path: String,
    /// As it would be written in a recipe, or "not set".
    pub value: String,
    /// Who said it.
    pub origin: Origin,
}

impl CheckedRecipe {
    /// The values that are not defaults, by dotted path, as TOML. [`Document::from_settings`] makes the same recipe of them.
    pub fn settings(&self) -> BTreeMap<String, String> {
        let is_said =
            |value: &&ResolvedValue| value.origin.layer() != ConfigLayer::Default && value.value != NOT_SET;
        self.resolved.iter().filter(is_said).map(|value| (value.path.clone(), value.value.clone())).collect()
    }
}

/// A file or glob pattern that a recipe names.
#[derive(Clone, Debug)]
pub struct FilePattern {
    /// The key that names it: `data.train`.
    pub key: &'static str,
    /// As it stands in the checked recipe: relative to [`CheckContext::folder`], absolute, or a URL.
    pub pattern: String,
    /// Where it was said.
    pub origin: Origin,
}

impl FilePattern {
    /// What is downloaded; `None` where files of a host are named.
    pub fn url(&self) -> Option<Url> {
        Url::parse(&self.pattern).ok()
    }

    /// The problem to report when nothing matches the pattern in a folder. `home` is the user's.
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

    /// The problem of a pattern that begins with `~`, which only a shell understands.
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

    /// The problem to report when the pattern names a folder.
    pub fn is_folder(&self, folder: &Path) -> Problem {
        let (place, name) = (folder.join(&self.pattern), self.pattern.trim_end_matches('/'));
        Problem::new(format!("`{}`: {} is a folder", self.key, place.display()))
            .at(&self.origin)
            .hint(format!("name the files in it, for example \"{name}/*.txt\""))
    }

    /// The problem to report when the pattern names what is neither file nor folder; `kind` says what it is, such as "a FIFO".
    pub fn is_special(&self, folder: &Path, kind: &str) -> Problem {
        let place = folder.join(&self.pattern);
        Problem::new(format!("`{}`: {} is {kind}, expected a regular file", self.key, place.display()))
            .at(&self.origin)
            .hint("write what it gives to a file first, and name that file")
    }
}

/// Checks a document. `Err` lists every problem, in the order of their places.
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
    Ok(CheckedRecipe { recipe, resolved, files: values.files(), notes: keys::notes(&document) })
}

/// Every value fits its shape and yet no recipe could be built: a fault of this crate, not of the user.
fn incomplete() -> Problem {
    Problem::new("the recipe passed every check but could not be built; this is a bug of dtrain")
        .hint("please report it together with the recipe")
}

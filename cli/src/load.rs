//! From what the user typed to a checked recipe: finds the text, lays the layers, looks for the files.

use crate::args::LayerArgs;
use crate::context::settings_file;
use crate::failure::{Exit, Failure};
use crate::networks;
use crate::packages::{failure, store, trust};
use crate::settings::{Layers, assignment, environment};
use dtrain_recipes::{
    CheckContext, Checked, Document, FilePattern, Layer, Problem, Source, check, extended, library, sharing,
};
use dtrain_worker::data::{downloaded, kind_of_file};
use std::path::{Path, PathBuf};

/// A checked recipe and where it came from.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// What the user typed.
    pub(crate) name: String,
    /// The recipe, and where each value was said.
    pub(crate) checked: Checked,
    /// Folder that relative data paths start from and that a command runs in, absolute.
    pub(crate) folder: PathBuf,
    /// Folder of the user's lock file: that of the recipe, or for a package's recipe the working folder.
    pub(crate) project: PathBuf,
    /// The tokenizer of the checkpoint that training begins with, as JSON.
    pub(crate) tokenizer: Option<Vec<u8>>,
}

/// Loads a recipe under all layers, whose files must be there. `extra` are keys said by flags of their own; they count most.
pub(crate) fn load(name: &str, layers: &LayerArgs, extra: &[(&str, String)]) -> Result<Loaded, Failure> {
    let loaded = describe(name, layers, extra)?;
    let Loaded { checked, folder, project, .. } = &loaded;
    // Not even whether files exist is found out for a package that may not read them.
    sharing::trust::permit(&store(project, false)?, &trust()?, checked).map_err(|error| failure(&error))?;
    let unusable: Vec<Problem> =
        checked.files.iter().filter_map(|pattern| unusable(pattern, folder)).collect();
    if unusable.is_empty() { Ok(loaded) } else { Err(unusable.into()) }
}

/// Loads a recipe that is to be talked about only: its data may be elsewhere, and nothing of it is run.
pub(crate) fn describe(name: &str, layers: &LayerArgs, extra: &[(&str, String)]) -> Result<Loaded, Failure> {
    let source = find(name)?;
    let folder = match &source.folder {
        Some(folder) => absolute(folder)?,
        None => absolute(Path::new("."))?,
    };
    let project = match &source.folder {
        Some(_) if source.shared.is_none() => folder.clone(),
        Some(_) | None => absolute(Path::new("."))?,
    };
    let checking = CheckContext { folder: folder.clone(), ..named(&source, name) };
    let document = lay(&source, &project, layers, extra)?;
    let mut checked = check(&document, &checking)?;
    networks::describe(&mut checked)?;
    let folder = package_of_command(&checked).unwrap_or(folder);
    Ok(Loaded { name: name.to_owned(), checked, folder, project, tokenizer: None })
}

/// The folder of the package that a command comes from, also where the user's recipe only extends the package's: what was
/// trusted is what runs.
fn package_of_command(checked: &Checked) -> Option<PathBuf> {
    let argv = checked.resolved.iter().find(|value| value.path == "model.argv")?;
    let source = argv.origin.source().filter(|source| source.shared.is_some())?;
    source.folder.clone()
}

fn named(source: &Source, typed: &str) -> CheckContext {
    // `examples/quickstart/recipe.toml` is called after its folder: every recipe there has that file name.
    let path = Path::new(typed.strip_suffix("/recipe.toml").unwrap_or(typed));
    let path = if path.file_name().is_some() { path.to_path_buf() } else { PathBuf::from(&source.name) };
    CheckContext::of_file(&path)
}

/// All layers as one document.
fn lay(
    source: &Source,
    project: &Path,
    layers: &LayerArgs,
    extra: &[(&str, String)],
) -> Result<Document, Failure> {
    // The user cannot see the folder of a package: what is said over its recipe starts from the working folder.
    let base = if source.shared.is_some() { project } else { Path::new("") };
    let mut all = Layers::default();
    if let Some(document) = optional(&settings_file()?, Layer::Settings)? {
        all = all.over(Layer::Settings, document)?;
    }
    let packages = store(project, false)?;
    let recipe = extended(Document::parse(source)?, &sharing::resolver(Some(&packages)))?;
    all = all.over(Layer::Recipe, recipe)?;
    if let Some(path) = &layers.cluster {
        all = all.over(Layer::Cluster, Document::parse(&read(path, Layer::Cluster)?)?)?;
    }
    for (variable, (key, value)) in environment(std::env::vars_os()) {
        let name = format!("environment variable {variable}");
        let document = Document::from_assignment_in(base, Layer::Environment, &name, &key, &value)?;
        all = all.over(Layer::Environment, document)?;
    }
    for text in &layers.set {
        all = all.over(Layer::Assignment, assignment(text, base)?)?;
    }
    for (key, value) in extra {
        let flag = format!("--{}", key.rsplit('.').next().unwrap_or(key));
        all =
            all.over(Layer::Assignment, Document::from_assignment(Layer::Assignment, &flag, key, value)?)?;
    }
    all.resolve()
}

/// A recipe under the layers that the user gave, and no others.
pub(crate) fn layered(recipe: Document, layers: &LayerArgs) -> Result<Document, Failure> {
    let mut all = Layers::default().over(Layer::Recipe, recipe)?;
    if let Some(path) = &layers.cluster {
        all = all.over(Layer::Cluster, Document::parse(&read(path, Layer::Cluster)?)?)?;
    }
    for text in &layers.set {
        all = all.over(Layer::Assignment, assignment(text, Path::new(""))?)?;
    }
    all.resolve()
}

/// The text of the recipe called `name`: a file, a folder with a `recipe.toml`, `library/NAME`, `PACKAGE/RECIPE`.
pub(crate) fn find(name: &str) -> Result<Source, Failure> {
    let path = Path::new(name);
    if path.is_dir() {
        return read(&path.join("recipe.toml"), Layer::Recipe);
    }
    if path.is_file() {
        return read(path, Layer::Recipe);
    }
    if let Some(source) = name.strip_prefix("library/").and_then(library::get) {
        return Ok(Source { layer: Layer::Recipe, ..source });
    }
    if !name.contains('/') || name.ends_with(".toml") {
        return Err(Failure::new(Exit::Usage, format!("there is no recipe {name}"))
            .hint("`dtrain init` writes a recipe, `dtrain recipe list` lists the available ones"));
    }
    let store = store(Path::new("."), false)?;
    sharing::read_recipe(&store, name, Layer::Recipe)
        .map_err(|error| failure(&error).hint("`dtrain recipe list` lists the available recipes"))
}

/// Reads a file that must be there.
pub(crate) fn read(path: &Path, layer: Layer) -> Result<Source, Failure> {
    let text = std::fs::read(path).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot read {}", path.display())).cause(error.to_string())
    })?;
    match String::from_utf8(text) {
        Ok(text) => {
            let folder = absolute(path.parent().unwrap_or(Path::new(".")))?;
            Ok(Source { folder: Some(folder), ..Source::file(path, layer, text) })
        }
        Err(error) => match Document::parse_bytes(path, layer, error.into_bytes()) {
            Err(problems) => Err(problems.into()),
            Ok(_) => Err(Failure::new(Exit::Usage, format!("{} is not UTF-8 text", path.display()))),
        },
    }
}

/// A document that need not be there.
fn optional(path: &Path, layer: Layer) -> Result<Option<Document>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Document::parse(&read(path, layer)?)?))
}

/// What is wrong with a pattern that names no file. What a URL names is downloaded by whoever reads it.
fn unusable(pattern: &FilePattern, folder: &Path) -> Option<Problem> {
    if pattern.url().is_some() {
        return None;
    }
    let full = folder.join(&pattern.pattern);
    if full.is_file() {
        return None;
    }
    if full.is_dir() {
        return Some(pattern.is_folder(folder));
    }
    if let Ok(about) = full.metadata() {
        return Some(pattern.is_special(folder, kind_of_file(&about)));
    }
    if found(pattern, folder).next().is_some() {
        return None;
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    Some(pattern.missing(folder, home.as_deref()))
}

/// The files that a pattern names; of a URL the one that was downloaded to this host.
pub(crate) fn found(pattern: &FilePattern, folder: &Path) -> impl Iterator<Item = PathBuf> {
    let full = downloaded(&pattern.pattern).unwrap_or_else(|| folder.join(&pattern.pattern));
    let is_literal = full.is_file();
    let matching = full.to_str().filter(|_| !is_literal).and_then(|text| glob::glob(text).ok());
    let literal = is_literal.then_some(full);
    literal.into_iter().chain(matching.into_iter().flatten().flatten()).filter(|path| path.is_file())
}

fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::fs::canonicalize(path).map_err(|error| {
        Failure::new(Exit::Usage, format!("cannot use {}", path.display())).cause(error.to_string())
    })
}

//! Loading of a recipe: finds its text, merges the configuration layers, checks the recipe and its files.

use crate::args::LayerArgs;
use crate::command_error::CommandError;
use crate::context::{check_obeyed, settings_file};
use crate::exit_code::ExitReason;
use crate::networks;
use crate::output::{Output, problem_text};
use crate::packages::{failure, store, trust};
use crate::pretrained::WeightsFolder;
use crate::settings::{LayeredConfig, assignment, environment};
use dtrain_recipes::{
    CheckContext, CheckedRecipe, ConfigLayer, Document, FilePattern, Problem, Source, check, library,
    resolve_extends, sharing,
};
use dtrain_worker::data::{downloaded, kind_of_file, matching};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A checked recipe, and where it comes from.
#[derive(Debug)]
pub(crate) struct LoadedRecipe {
    /// Name or path of the recipe, as the user typed it.
    pub(crate) name: String,
    /// The checked recipe, with the source of each value.
    pub(crate) checked: CheckedRecipe,
    /// Absolute folder from which relative data paths and the training command start.
    pub(crate) folder: PathBuf,
    /// Folder of the user's lock file: the recipe's folder, or for a package's recipe the working folder.
    pub(crate) project: PathBuf,
    /// Tokenizer of the checkpoint that training starts from, as JSON; `None` without one.
    pub(crate) tokenizer: Option<Vec<u8>>,
}

/// Values of one invocation that override a recipe; later fields take precedence.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RecipeOverrides {
    /// File with the section `cluster`, from `--cluster`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<PathBuf>,
    /// Key and value from each environment variable, by the variable's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    environment: BTreeMap<String, (String, String)>,
    /// Arguments of `--set`, as `KEY=VALUE`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    set: Vec<String>,
    /// Keys and values from flags that stand for one recipe key.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    flags: Vec<(String, String)>,
}

impl RecipeOverrides {
    /// Collects the overrides of this invocation from its arguments and environment.
    pub(crate) fn of(layers: &LayerArgs, flags: &[(&str, String)]) -> Self {
        Self {
            cluster: layers.cluster.clone(),
            environment: environment(std::env::vars_os()),
            set: layers.set.clone(),
            flags: flags.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
        }
    }

    /// Returns the names of environment variables whose values now differ from the recorded ones.
    pub(crate) fn other_variables(&self) -> Vec<String> {
        let now = environment(std::env::vars_os());
        now.into_iter()
            .filter(|(name, said)| self.environment.get(name) != Some(said))
            .map(|(name, _)| name)
            .collect()
    }

    /// Makes the paths of the overrides absolute, for use from another folder.
    pub(crate) fn with_absolute_paths(mut self) -> Self {
        self.cluster = self.cluster.map(|path| std::path::absolute(&path).unwrap_or(path));
        self
    }
}

impl LoadedRecipe {
    /// Prints the recipe's notes, such as one for each key under its old name.
    pub(crate) fn print_notes(&self, out: Output) {
        for note in &self.checked.notes {
            out.say(&problem_text(out.paint.yellow("note"), note));
        }
    }
}

/// Loads a recipe with all layers, prints its notes, and requires its files to exist. The keys `extra` come
/// from flags and take precedence. Downloads the model of `train.from` if it is one of the Hub.
pub(crate) fn load(
    out: Output,
    name: &str,
    layers: &LayerArgs,
    extra: &[(&str, String)],
) -> Result<LoadedRecipe, CommandError> {
    let mut loaded = load_without_download(out, name, layers, extra)?;
    let recipe = &loaded.checked.recipe;
    let named = recipe.train.hub_model();
    let Some(weights) = WeightsFolder::of_recipe(out, recipe, &loaded.folder)? else { return Ok(loaded) };
    loaded.tokenizer = weights.tokenizer()?;
    if let (Some(named), Some(model)) = (named, weights.model()) {
        if named.commit().is_none() {
            out.say(&format!(
                "{}: {named} is now {model}; write this as `train.from`, so that later runs begin with the same weights",
                out.paint.yellow("note")
            ));
        }
        // A branch may move while the recipe is used.
        loaded.checked.recipe.train.from = Some(model.to_string().into());
    }
    Ok(loaded)
}

/// Loads a recipe like [`load`], but downloads no model of the Hugging Face Hub, whose tokenizer is then absent.
pub(crate) fn load_without_download(
    out: Output,
    name: &str,
    layers: &LayerArgs,
    extra: &[(&str, String)],
) -> Result<LoadedRecipe, CommandError> {
    let mut loaded = load_without_running(name, layers, extra)?;
    loaded.print_notes(out);
    let LoadedRecipe { checked, folder, project, .. } = &loaded;
    // A package that may not read files must not learn whether they exist.
    sharing::trust::permit(&store(project, false)?, &trust()?, checked).map_err(|error| failure(&error))?;
    let unusable: Vec<Problem> =
        checked.files.iter().filter_map(|pattern| missing_file_problem(pattern, folder)).collect();
    if !unusable.is_empty() {
        return Err(unusable.into());
    }
    if let Some(weights) = WeightsFolder::of_recipe_here(out, &checked.recipe, folder)? {
        loaded.tokenizer = weights.tokenizer()?;
    }
    Ok(loaded)
}

/// Returns `true` if a recipe that was loaded without running may read its files, and all of them are here.
pub(crate) fn are_files_here(loaded: &LoadedRecipe) -> bool {
    let LoadedRecipe { checked, folder, project, .. } = loaded;
    let is_permitted = || -> Result<bool, CommandError> {
        Ok(sharing::trust::permit(&store(project, false)?, &trust()?, checked).is_ok())
    };
    is_permitted().unwrap_or(false)
        && checked.files.iter().all(|pattern| !matching_files(pattern, folder).is_empty())
}

/// Loads a recipe for display or planning only: its data may be on another machine, and no command runs.
pub(crate) fn load_without_running(
    name: &str,
    layers: &LayerArgs,
    extra: &[(&str, String)],
) -> Result<LoadedRecipe, CommandError> {
    load_without_running_in(name, Path::new("."), &RecipeOverrides::of(layers, extra))
}

/// Loads a recipe like [`load_without_running`], as typed in the folder `place`, with recorded overrides.
pub(crate) fn load_without_running_in(
    name: &str,
    place: &Path,
    over: &RecipeOverrides,
) -> Result<LoadedRecipe, CommandError> {
    let source = find_in(name, place)?;
    let folder = match &source.folder {
        Some(folder) => absolute(folder)?,
        None => absolute(place)?,
    };
    let project = match &source.folder {
        Some(_) if source.shared.is_none() => folder.clone(),
        Some(_) | None => absolute(place)?,
    };
    let checking = CheckContext { folder: folder.clone(), ..check_context(&source, name) };
    let document = merge_layers(&source, &project, over)?;
    let mut checked = check(&document, &checking)?;
    networks::outline_custom_network(&mut checked)?;
    let folder = package_of_command(&checked).unwrap_or(folder);
    Ok(LoadedRecipe { name: name.to_owned(), checked, folder, project, tokenizer: None })
}

/// Returns the folder of the package that defines the command, even if the user's recipe only extends it: the
/// code that was trusted is the code that runs.
fn package_of_command(checked: &CheckedRecipe) -> Option<PathBuf> {
    let argv = checked.resolved.iter().find(|value| value.path == "model.argv")?;
    let source = argv.origin.source().filter(|source| source.shared.is_some())?;
    source.folder.clone()
}

fn check_context(source: &Source, typed: &str) -> CheckContext {
    // `examples/quickstart/recipe.toml` is named after its folder: every recipe there has that file name.
    let path = Path::new(typed.strip_suffix("/recipe.toml").unwrap_or(typed));
    let path = if path.file_name().is_some() { path.to_path_buf() } else { PathBuf::from(&source.name) };
    CheckContext::of_file(&path)
}

/// Merges a recipe with all configuration layers into one document.
fn merge_layers(source: &Source, project: &Path, over: &RecipeOverrides) -> Result<Document, CommandError> {
    // Users cannot see a package's folder, so paths in their overrides start from the working folder.
    let base = if source.shared.is_some() { project } else { Path::new("") };
    let mut all = LayeredConfig::default();
    let settings = settings_file()?;
    check_obeyed(&settings)?;
    if let Some(document) = read_if_present(&settings, ConfigLayer::Settings)? {
        all = all.over(ConfigLayer::Settings, document)?;
    }
    let packages = store(project, false)?;
    let recipe = resolve_extends(Document::parse(source)?, &sharing::resolver(Some(&packages)))?;
    all = all.over(ConfigLayer::Recipe, recipe)?;
    if let Some(path) = &over.cluster {
        all = all.over(ConfigLayer::Cluster, Document::parse(&read(path, ConfigLayer::Cluster)?)?)?;
    }
    for (variable, (key, value)) in &over.environment {
        let name = format!("environment variable {variable}");
        let document = Document::from_override_in(base, ConfigLayer::Environment, &name, key, value)?;
        all = all.over(ConfigLayer::Environment, document)?;
    }
    for text in &over.set {
        all = all.over(ConfigLayer::Assignment, assignment(text, base)?)?;
    }
    for (key, value) in &over.flags {
        let flag = format!("--{}", key.rsplit('.').next().unwrap_or(key));
        all = all.over(
            ConfigLayer::Assignment,
            Document::from_override(ConfigLayer::Assignment, &flag, key, value)?,
        )?;
    }
    all.resolve()
}

/// Merges a recipe with the layers of `--cluster` and `--set` only.
pub(crate) fn merge_user_layers(recipe: Document, layers: &LayerArgs) -> Result<Document, CommandError> {
    let mut all = LayeredConfig::default().over(ConfigLayer::Recipe, recipe)?;
    if let Some(path) = &layers.cluster {
        all = all.over(ConfigLayer::Cluster, Document::parse(&read(path, ConfigLayer::Cluster)?)?)?;
    }
    for text in &layers.set {
        all = all.over(ConfigLayer::Assignment, assignment(text, Path::new(""))?)?;
    }
    all.resolve()
}

/// Finds the recipe called `name`: a file, a folder with a `recipe.toml`, `library/NAME`, `PACKAGE/RECIPE`.
pub(crate) fn find(name: &str) -> Result<Source, CommandError> {
    find_in(name, Path::new("."))
}

/// Finds a recipe like [`find`], for a name that was typed in the folder `place`.
fn find_in(name: &str, place: &Path) -> Result<Source, CommandError> {
    let path = Path::new(name);
    if path.is_dir() {
        return read(&path.join("recipe.toml"), ConfigLayer::Recipe);
    }
    if path.is_file() {
        return read(path, ConfigLayer::Recipe);
    }
    if let Some(source) = name.strip_prefix("library/").and_then(library::builtin_recipe) {
        return Ok(Source { layer: ConfigLayer::Recipe, ..source });
    }
    if let Some(name) = name.strip_prefix("library/") {
        let failure = CommandError::new(ExitReason::Usage, format!("the library has no recipe {name:?}"))
            .cause(format!("it has {}", library::names().collect::<Vec<_>>().join(", ")));
        return Err(failure.hint(match similar_library_recipe(name) {
            Some(near) => format!("did you mean library/{near}?"),
            None => "`dtrain recipe list` says what each is for".to_owned(),
        }));
    }
    if !name.contains('/') || name.ends_with(".toml") {
        let failure = CommandError::new(ExitReason::Usage, format!("there is no recipe {name}"));
        return Err(failure.hint(match similar_library_recipe(name) {
            Some(near) => format!("the library has one of this name: did you mean library/{near}?"),
            None => "`dtrain init` writes a recipe, `dtrain recipe list` lists the available ones".to_owned(),
        }));
    }
    let store = store(place, false)?;
    sharing::read_recipe(&store, name, ConfigLayer::Recipe)
        .map_err(|error| failure(&error).hint("`dtrain recipe list` lists the available recipes"))
}

/// Returns the library recipe whose name is most similar to `name`; `None` if none is similar.
fn similar_library_recipe(name: &str) -> Option<&'static str> {
    /// Least similarity of a name, from 0 to 1, to be suggested.
    const LIKE: f64 = 0.85;
    let near = library::names().map(|known| (strsim::jaro_winkler(name, known), known));
    near.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(likeness, _)| *likeness >= LIKE).map(|(_, known)| known)
}

/// Reads a recipe file that must exist.
pub(crate) fn read(path: &Path, layer: ConfigLayer) -> Result<Source, CommandError> {
    let text = std::fs::read(path).map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot read {}", path.display()))
            .cause(error.to_string())
    })?;
    match String::from_utf8(text) {
        Ok(text) => {
            let folder = absolute(path.parent().unwrap_or(Path::new(".")))?;
            Ok(Source { folder: Some(folder), ..Source::file(path, layer, text) })
        }
        Err(error) => match Document::parse_bytes(path, layer, error.into_bytes()) {
            Err(problems) => Err(problems.into()),
            Ok(_) => {
                Err(CommandError::new(ExitReason::Usage, format!("{} is not UTF-8 text", path.display())))
            }
        },
    }
}

/// Reads a document from a file; `None` if it does not exist.
fn read_if_present(path: &Path, layer: ConfigLayer) -> Result<Option<Document>, CommandError> {
    if !path.exists() {
        return Ok(None);
    }
    Ok(Some(Document::parse(&read(path, layer)?)?))
}

/// Returns the problem that a pattern matches no file; `None` if it matches one, or is a URL, which is
/// downloaded when it is read.
fn missing_file_problem(pattern: &FilePattern, folder: &Path) -> Option<Problem> {
    // The pretrained weights loader checks the folder of `train.from`.
    if pattern.url().is_some() || pattern.key == "train.from" {
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
    if !matching_files(pattern, folder).is_empty() {
        return None;
    }
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    Some(pattern.missing(folder, home.as_deref()))
}

/// Returns the files that a pattern matches; for a URL, the file downloaded from it to this host.
pub(crate) fn matching_files(pattern: &FilePattern, folder: &Path) -> Vec<PathBuf> {
    match downloaded(&pattern.pattern) {
        Some(path) => vec![path],
        None => matching(&pattern.pattern, folder),
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::fs::canonicalize(path).map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot use {}", path.display()))
            .cause(error.to_string())
    })
}

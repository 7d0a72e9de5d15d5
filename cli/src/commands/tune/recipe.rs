//! `dtrain tune --recipe-out`: a recipe with a study's best setting, which extends the tuned recipe.
//!
//! Contains the values that hold on any machine. The layout that was fastest on these machines is in the
//! plan.

use super::report::StudyReport;
use crate::args::TuneArgs;
use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::load_recipe::{LoadedRecipe, find};
use crate::render::number::plain;
use dtrain_recipes::{ConfigLayer, Model};
use std::fmt::Write;
use std::path::{Component, Path, PathBuf};

/// Refuses an unusable output file of `--recipe-out` before any training.
pub(super) fn check(args: &TuneArgs, loaded: &LoadedRecipe) -> Result<(), CommandError> {
    let Some(file) = &args.recipe_out else { return Ok(()) };
    let usage = |message: String, hint: String| Err(CommandError::new(ExitReason::Usage, message).hint(hint));
    let folder = folder_of(file)?;
    if !folder.is_dir() {
        return usage(
            format!("--recipe-out: there is no folder {}", folder.display()),
            format!("make it first: `mkdir -p {}`", folder.display()),
        );
    }
    if own_file(loaded).is_some_and(|own| is_same_file(&own, file)) {
        return usage(
            format!("--recipe-out: {} is the recipe that is tuned", file.display()),
            "name another file: the new recipe extends this one".to_owned(),
        );
    }
    let is_command = matches!(loaded.checked.recipe.model, Model::Command(_));
    if is_command && own_file(loaded).is_some() && !is_same_file(&folder, &loaded.folder) {
        return usage(
            format!(
                "--recipe-out: a command runs in the folder of its recipe, which is not {}",
                folder.display()
            ),
            format!("write it to {}", loaded.folder.join(file.file_name().unwrap_or_default()).display()),
        );
    }
    Ok(())
}

/// Writes the recipe with the best setting to `file`.
pub(super) fn write(file: &Path, loaded: &LoadedRecipe, told: &StudyReport<'_>) -> Result<(), CommandError> {
    let text = text(&extends(file, loaded)?, loaded, told);
    std::fs::write(file, text).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", file.display()))
            .cause(error.to_string())
    })
}

fn text(extends: &str, loaded: &LoadedRecipe, told: &StudyReport<'_>) -> String {
    let objective = &told.kept.base_recipe.objective;
    let after = told.kept.length();
    let mut text = format!(
        "# Found by `dtrain tune` in the study {}: {} {}{after}.\n",
        told.name,
        objective.metric.name(),
        plain(objective.goal().cost(told.best.measured)),
    );
    if let Some(confirmed) = told.confirmed {
        let _ = writeln!(text, "# {}", super::report::verdict(confirmed, objective.goal()));
    }
    let _ = writeln!(text, "extends = {}\n", serde_json::Value::from(extends));
    let found = told.kept.search_space.settings(&told.best.values);
    // Overrides of this invocation are part of the tuned recipe; settings of `tune` and `cluster` are not.
    let is_said = |layer| matches!(layer, ConfigLayer::Environment | ConfigLayer::Assignment);
    let said = loaded.checked.resolved.iter().filter(|value| is_said(value.origin.layer()));
    let kept = said.filter(|value| !value.path.starts_with("tune.") && !value.path.starts_with("cluster."));
    // A value below a tuned key, such as a parameter's default, is replaced with it.
    let is_found = |path: &str| {
        found.iter().any(|(key, _)| {
            path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    for value in kept.filter(|value| !is_found(&value.path)) {
        let _ = writeln!(text, "{} = {}", value.path, value.value);
    }
    for (path, value) in &found {
        let _ = writeln!(text, "{path} = {value}");
    }
    text
}

/// Returns the value of the key `extends`: a path relative to the new recipe, or a library or package name.
fn extends(file: &Path, loaded: &LoadedRecipe) -> Result<String, CommandError> {
    let Some(own) = own_file(loaded) else { return Ok(loaded.name.clone()) };
    let (from, to) = (absolute(&folder_of(file)?)?, absolute(&own)?);
    Ok(relative(&from, &to).display().to_string())
}

/// Returns the file of the tuned recipe; `None` for a library or package recipe.
fn own_file(loaded: &LoadedRecipe) -> Option<PathBuf> {
    let path = PathBuf::from(&loaded.name);
    let path = if path.is_dir() { path.join("recipe.toml") } else { path };
    (path.is_file() && find(&loaded.name).is_ok()).then_some(path)
}

fn folder_of(file: &Path) -> Result<PathBuf, CommandError> {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => Ok(folder.to_owned()),
        Some(_) => Ok(PathBuf::from(".")),
        None => {
            Err(CommandError::new(ExitReason::Usage, format!("--recipe-out: {} is no file", file.display())))
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    path.canonicalize().map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot find {}", path.display()))
            .cause(error.to_string())
    })
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// Returns the relative path from a folder to a file; both are absolute and without links.
fn relative(from: &Path, to: &Path) -> PathBuf {
    let (from, to): (Vec<Component>, Vec<Component>) =
        (from.components().collect(), to.components().collect());
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = from[shared..].iter().map(|_| Component::ParentDir);
    up.chain(to[shared..].iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_from_one_folder_to_another() {
        let way = |from: &str, to: &str| relative(Path::new(from), Path::new(to)).display().to_string();
        assert_eq!(way("/a/b", "/a/b/recipe.toml"), "recipe.toml");
        assert_eq!(way("/a/b/c", "/a/d/recipe.toml"), "../../d/recipe.toml");
        assert_eq!(way("/a", "/b/recipe.toml"), "../b/recipe.toml");
    }
}

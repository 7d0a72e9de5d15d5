//! Saved plans: their origin, and the changes since they were made.

use crate::args::LayerArgs;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::{LoadedRecipe, RecipeOverrides, load_without_running_in};
use crate::output::{VERSION, document};
use crate::pretrained::WeightsFolder;
use crate::rates;
use dtrain_planner::Plan;
use dtrain_planner::planning::drift::recipe_changes;
use dtrain_planner::planning::written::digest_of;
use dtrain_protocol::InputManifest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::{Component, Path, PathBuf};

/// A plan as it is stored and printed, with its digest and origin.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct StoredPlan {
    /// BLAKE3 digest of the plan in canonical JSON.
    pub(crate) digest: String,
    /// The plan with its candidates.
    pub(crate) plan: Plan,
    /// Recipe and data from which the plan was made; `None` for the plan of a trial.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) made_from: Option<PlanOrigin>,
}

/// Recipe and data from which a plan was made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PlanOrigin {
    /// The recipe as the user typed it: a file, a folder, or the name of a library or package recipe.
    recipe: String,
    /// Absolute path of the recipe file; `None` for a library or package recipe.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    /// Absolute path of the folder in which the plan was saved; `None` if it was only printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    saved_in: Option<PathBuf>,
    /// Absolute path of the folder whose lock file lists the packages.
    project: PathBuf,
    /// Values that overrode the recipe.
    over: RecipeOverrides,
    /// Manifest of the data files; `None` if they were not read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inputs: Option<InputManifest>,
}

impl StoredPlan {
    /// Combines a plan with its origin, and computes its digest.
    pub(crate) fn of(plan: Plan, made_from: Option<PlanOrigin>) -> Self {
        Self { digest: plan.digest(), plan, made_from }
    }

    /// Writes the plan to the file that the user named.
    pub(crate) fn write(&self, path: &Path) -> Result<(), CommandError> {
        let mut stored = self.clone();
        if let Some(made_from) = &mut stored.made_from {
            made_from.saved_in = folder_of(path);
        }
        save(path, &(document("plan", &stored, true)? + "\n"))
    }
}

impl PlanOrigin {
    /// Records the recipe and data from which a plan is made; `flags` are keys set by flags of their own.
    pub(crate) fn of(
        loaded: &LoadedRecipe,
        layers: &LayerArgs,
        flags: &[(&str, String)],
        inputs: Option<InputManifest>,
    ) -> Self {
        let path = Path::new(&loaded.name);
        let file = if path.is_dir() { path.join("recipe.toml") } else { path.to_owned() };
        Self {
            recipe: loaded.name.clone(),
            file: std::fs::canonicalize(file).ok().filter(|file| file.is_file()),
            saved_in: None,
            project: loaded.project.clone(),
            over: RecipeOverrides::of(layers, flags).with_absolute_paths(),
            inputs,
        }
    }

    /// Returns the current path of the recipe file. If the plan was moved, this is the file at the same
    /// relative path; `None` if there is no such file.
    fn file_now(&self, plan: &Path) -> Option<PathBuf> {
        let file = self.file.as_ref()?;
        let moved = || {
            let (was, is) = (self.saved_in.as_ref()?, folder_of(plan)?);
            let beside = is.join(relative(was, file)?);
            let beside = std::fs::canonicalize(beside).ok()?;
            (*was != is && beside.is_file()).then_some(beside)
        };
        Some(moved().unwrap_or_else(|| file.clone()))
    }
}

/// A plan read from a file that the user named.
pub(crate) struct SavedPlan {
    /// The plan, with paths adjusted if plan and recipe were moved together.
    pub(crate) plan: Plan,
    made_from: Option<PlanOrigin>,
    /// Current path of the recipe file; `None` if there is none.
    recipe: Option<PathBuf>,
}

impl SavedPlan {
    /// Reads a plan from a file. Returns `None` if the file is not JSON, so that it may be a recipe.
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, CommandError> {
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(None) };
        if !text.trim_start().starts_with('{') {
            return Ok(None);
        }
        Self::parse(&text, path).map(Some).map_err(|cause| {
            CommandError::new(ExitReason::Usage, format!("{} cannot be used as a plan", path.display()))
                .cause(cause)
                .hint("`dtrain plan RECIPE --out FILE` writes a plan; it is not meant to be edited")
        })
    }

    fn parse(text: &str, path: &Path) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct PlanFileHeader {
            digest: Option<String>,
            made_from: Option<PlanOrigin>,
        }
        let words = |error: &dyn std::error::Error| error.to_string();
        // The format is checked first: a newer one may have other fields.
        let json: Value = serde_json::from_str(text).map_err(|error| words(&error))?;
        let format = check_format(&json)?;
        let mut plan = match json.get("plan") {
            Some(plan) => Plan::read(plan).map_err(|error| words(&error))?,
            None => return Err("it has no plan".to_owned()),
        };
        let stored = PlanFileHeader::deserialize(&json).map_err(|error| words(&error))?;
        // The digest of an older format covers the field names of that format.
        let digest = match format {
            VERSION => plan.digest(),
            _ => digest_of("plan", text).map_err(|error| words(&error))?.unwrap_or_default(),
        };
        if stored.digest.as_ref() != Some(&digest) {
            let expected = stored.digest.as_deref().unwrap_or("none");
            return Err(format!(
                "its digest is {}, expected {expected}: the file was modified",
                &digest[..12]
            ));
        }
        let made_from = stored.made_from;
        let recipe = made_from.as_ref().and_then(|from| from.file_now(path));
        let was = made_from.as_ref().and_then(|from| from.file.as_ref());
        if let (Some(was), Some(is)) =
            (was.and_then(|was| was.parent()), recipe.as_ref().and_then(|is| is.parent()))
            && plan.data_root == was
        {
            plan.data_root = is.to_owned();
        }
        Ok(Self { plan, made_from, recipe })
    }

    /// Returns the names of environment variables whose overrides now differ from the recorded ones; empty if
    /// the plan has no origin.
    pub(crate) fn other_variables(&self) -> Vec<String> {
        self.made_from.as_ref().map_or_else(Vec::new, |from| from.over.other_variables())
    }

    /// Describes how the recipe and the data have changed since the plan was made. Empty for plans without an
    /// origin (of a trial, or of an older version).
    pub(crate) fn changes(&self, context: &Context) -> Vec<String> {
        let Some(made_from) = &self.made_from else { return Vec::new() };
        let mut changes = self.recipe_changes(made_from);
        if let Some(inputs) = &made_from.inputs {
            changes.extend(self.data_changes(context, inputs));
        }
        changes
    }

    fn recipe_changes(&self, made_from: &PlanOrigin) -> Vec<String> {
        let name = match &self.recipe {
            Some(file) => file.display().to_string(),
            None => made_from.recipe.clone(),
        };
        // The name as it was typed, if it still names the recipe.
        let is_typed = self.recipe == made_from.file && Path::new(&made_from.recipe).exists();
        let shown = if is_typed { made_from.recipe.as_str() } else { name.as_str() };
        if self.recipe.as_ref().is_some_and(|file| !file.exists()) {
            return vec![format!("{shown}, the recipe that the plan was made from, is gone")];
        }
        match load_without_running_in(&name, &made_from.project, &made_from.over) {
            Ok(loaded) => {
                let changes = recipe_changes(shown, &self.plan.settings, &loaded.checked.settings());
                changes.iter().map(ToString::to_string).collect()
            }
            Err(failure) => {
                let why = failure
                    .recipe_problems()
                    .first()
                    .map_or_else(|| failure.in_one_line(), |problem| problem.message.clone());
                vec![format!("{shown}, the recipe that the plan was made from, cannot be read: {why}")]
            }
        }
    }

    fn data_changes(&self, context: &Context, then: &InputManifest) -> Vec<String> {
        let Plan { recipe, data_root, .. } = &self.plan;
        let weights = WeightsFolder::of_recipe(context.out, recipe, data_root);
        let tokenizer = match weights
            .and_then(|weights| weights.map_or(Ok(None), |weights| weights.tokenizer()))
        {
            Ok(tokenizer) => tokenizer,
            Err(failure) => return vec![format!("its weights cannot be read: {}", failure.in_one_line())],
        };
        match rates::inputs_of(context, recipe, data_root, tokenizer.as_deref()) {
            Ok(Some(now)) => {
                then.differences(&now).into_iter().map(|difference| format!("data: {difference}")).collect()
            }
            Ok(None) => Vec::new(),
            Err(error) => vec![format!("the data cannot be read: {error}")],
        }
    }
}

/// Returns the format version of a plan document; `Err` if it is no plan or of an unknown version.
fn check_format(json: &Value) -> Result<u32, String> {
    let format = json.get("format").and_then(Value::as_str).ok_or("it has no format")?;
    match format.strip_prefix("dtrain.plan/").map(str::parse::<u32>) {
        Some(Ok(version)) if (1..=VERSION).contains(&version) => Ok(version),
        Some(Ok(version)) if version > VERSION => Err(format!(
            "it has the format {format} of a newer version of dtrain; this one reads up to dtrain.plan/{VERSION}"
        )),
        _ => Err(format!("its format is {format}, expected dtrain.plan/{VERSION}")),
    }
}

/// Returns the absolute path, without links, of the folder of a file that may not exist yet.
fn folder_of(file: &Path) -> Option<PathBuf> {
    let file = std::path::absolute(file).ok()?;
    std::fs::canonicalize(file.parent()?).ok()
}

/// Returns the relative path from a folder to a file, both absolute; `None` if they share only the root.
fn relative(folder: &Path, file: &Path) -> Option<PathBuf> {
    let shared = folder.components().zip(file.components()).take_while(|(a, b)| a == b).count();
    if shared < 2 {
        return None;
    }
    let up = folder.components().skip(shared).map(|_| Component::ParentDir);
    Some(up.chain(file.components().skip(shared)).collect())
}

/// Writes text to a file that the user named.
pub(crate) fn save(path: &Path, text: &str) -> Result<(), CommandError> {
    std::fs::write(path, text).map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot write {}", path.display()))
            .cause(error.to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_format_of_plans_is_read() {
        let checked = |format: &str| check_format(&serde_json::json!({ "format": format }));
        assert_eq!((checked("dtrain.plan/1"), checked("dtrain.plan/2")), (Ok(1), Ok(2)));
        assert!(checked("dtrain.plan/3").expect_err("newer").contains("newer version of dtrain"));
        for other in ["dtrain.trial/1", "dtrain.plan/0", "dtrain.plan/x", ""] {
            assert!(checked(other).expect_err(other).contains("expected dtrain.plan/2"), "{other}");
        }
        assert!(check_format(&serde_json::json!({})).is_err());
    }

    #[test]
    fn a_recipe_is_found_from_the_folder_of_its_plan() {
        let way = |folder: &str, file: &str| relative(Path::new(folder), Path::new(file));
        assert_eq!(way("/a/b", "/a/b/r.toml"), Some("r.toml".into()));
        assert_eq!(way("/a/plans", "/a/b/r.toml"), Some("../b/r.toml".into()));
        assert_eq!(way("/tmp", "/home/r.toml"), None);
    }

    #[test]
    fn a_moved_plan_takes_the_recipe_that_was_moved_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = std::fs::canonicalize(folder.path()).expect("it is there");
        let (was, is) = (root.join("was"), root.join("is"));
        for place in [&was, &is] {
            std::fs::create_dir(place).expect("a folder");
            std::fs::write(place.join("r.toml"), "").expect("a file");
        }
        let made_from = PlanOrigin {
            recipe: "r.toml".into(),
            file: Some(was.join("r.toml")),
            saved_in: Some(was.clone()),
            project: was.clone(),
            over: RecipeOverrides::default(),
            inputs: None,
        };
        assert_eq!(made_from.file_now(&was.join("p.json")), Some(was.join("r.toml")));
        assert_eq!(made_from.file_now(&is.join("p.json")), Some(is.join("r.toml")));
        assert_eq!(made_from.file_now(&root.join("p.json")), Some(was.join("r.toml")));
    }
}

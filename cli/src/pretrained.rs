//! Pretrained weights from which trials start: a folder of Hugging Face transformers, or a model of the Hub, which
//! is downloaded to such a folder.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use crate::output::{Output, shell_quoted};
use crate::recipe_diff::differences;
use crate::render::data_preparation::DataPreparationBar;
use crate::weights_provenance::{DIGEST, FOLDER, MODEL};
use dtrain_recipes::{Decoder, HubModel, Model, Recipe};
use dtrain_runner::provenance::Provenance;
use dtrain_worker::hub::{self, HubError};
use dtrain_worker::pretrained::{ModelFolder, PretrainedError};
use std::path::{Component, Path};

/// A folder with a pretrained model in the format of Hugging Face transformers.
#[derive(Debug)]
pub(crate) struct WeightsFolder {
    folder: ModelFolder,
    /// The model of the Hub that was downloaded to the folder, with its commit; `None` for the user's folder.
    model: Option<HubModel>,
}

/// Returns the model of the Hub that the user typed; `None` if the text names a folder that is here, or is not a
/// name of the Hub.
pub(crate) fn hub_model(typed: &str) -> Result<Option<HubModel>, CommandError> {
    if !HubModel::is_named(typed) && Path::new(typed).is_dir() {
        return Ok(None);
    }
    let wrong = |error: dtrain_recipes::hub_model::HubModelError| {
        CommandError::new(ExitReason::Usage, error.message).hint(error.hint)
    };
    HubModel::typed(typed).transpose().map_err(wrong)
}

impl WeightsFolder {
    /// Opens the folder or the model of the Hub that the user typed; `None` if the text is neither.
    pub(crate) fn find(out: Output, typed: &str) -> Result<Option<Self>, CommandError> {
        if let Some(model) = hub_model(typed)? {
            return Self::of_hub(out, &model).map(Some).map_err(|failure| {
                if HubModel::is_named(typed) {
                    return failure;
                }
                failure.cause(format!(
                    "there is no folder {typed}, so this was taken as the name of a model of the Hugging Face Hub"
                ))
            });
        }
        let path = Path::new(typed);
        if path.is_dir() || typed.contains('/') {
            return Self::open(path).map(Some);
        }
        Ok(None)
    }

    /// Opens the folder or the model of the Hub that `train.from` names, whose model must match the recipe's;
    /// `None` if the key is not set. `root` is the folder from which the recipe's paths start.
    pub(crate) fn of_recipe(out: Output, recipe: &Recipe, root: &Path) -> Result<Option<Self>, CommandError> {
        let Some(from) = &recipe.train.from else { return Ok(None) };
        let weights = match recipe.train.hub_model() {
            Some(model) => Self::of_hub(out, &model)?,
            None => Self::open(&root.join(from))?,
        };
        weights.check(recipe)?;
        Ok(Some(weights))
    }

    /// Opens the weights of a recipe like [`Self::of_recipe`], without a request; `None` also for a model of
    /// the Hub that is not on this host, or names no commit.
    pub(crate) fn of_recipe_here(
        out: Output,
        recipe: &Recipe,
        root: &Path,
    ) -> Result<Option<Self>, CommandError> {
        match recipe.train.hub_model() {
            Some(model) if hub::cached(&model).is_none() => Ok(None),
            _ => Self::of_recipe(out, recipe, root),
        }
    }

    /// Opens a model of the Hub; downloads it unless it is on this host.
    pub(crate) fn of_hub(out: Output, model: &HubModel) -> Result<Self, CommandError> {
        let bar = DataPreparationBar::new(out);
        let accept =
            |folder: &Path| ModelFolder::check_configuration(folder).map_err(|error| failure(&error));
        let found = hub::fetch::<CommandError>(model, &accept, &|work| bar.show(work))?;
        drop(bar);
        let folder = ModelFolder::open(&found.path).map_err(|error| failure(&error))?;
        Ok(Self { folder, model: Some(found.model) })
    }

    /// Opens the model folder at `path`; the error for a folder without a model says how to download one.
    pub(crate) fn open(path: &Path) -> Result<Self, CommandError> {
        if !ModelFolder::exists_at(path) {
            return Err(no_model(path));
        }
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        ModelFolder::open(&path).map(|folder| Self { folder, model: None }).map_err(|error| failure(&error))
    }

    /// Returns the opened model folder.
    pub(crate) fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Returns the model of the Hub with its commit; `None` for the user's folder.
    pub(crate) fn model(&self) -> Option<&HubModel> {
        self.model.as_ref()
    }

    /// Returns the value of `train.from` that names these weights: name and commit of a model of the Hub,
    /// otherwise the path of the folder.
    pub(crate) fn source(&self) -> String {
        self.model.as_ref().map_or_else(|| self.path().display().to_string(), HubModel::to_string)
    }

    /// Returns the path of the opened folder.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the model's tokenizer as JSON; `None` if it has none.
    pub(crate) fn tokenizer(&self) -> Result<Option<Vec<u8>>, CommandError> {
        self.folder.tokenizer().map_err(|error| failure(&error))
    }

    /// Checks that the folder holds the model of `recipe` with all its tensors.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<(), CommandError> {
        let wanted = &decoder(recipe)?.base();
        let there = self.folder.pretrained().with_context(wanted.context);
        if there != *wanted {
            let what =
                format!("the model is not that of {}, whose weights it would begin with", self.source());
            let failure = differences("model", &Model::Decoder(there), &Model::Decoder(wanted.clone()))
                .into_iter()
                .fold(CommandError::new(ExitReason::Usage, what), CommandError::cause);
            return Err(failure.hint(format!(
                "set these keys as they are there; `dtrain init NEW.toml --from {}` writes such a recipe",
                self.source()
            )));
        }
        self.folder.check(wanted).map_err(|error| failure(&error))
    }

    /// Records the folder and the digest of the weights in a trial's provenance.
    pub(crate) fn note(&self, provenance: &mut Provenance) -> Result<(), CommandError> {
        let digest = self.folder.digest().map_err(|error| failure(&error))?;
        provenance.environment.insert(FOLDER.to_owned(), self.path().display().to_string());
        provenance.environment.insert(DIGEST.to_owned(), digest);
        if let Some(model) = &self.model {
            provenance.environment.insert(MODEL.to_owned(), model.to_string());
        }
        Ok(())
    }
}

/// Builds the error for a `path` without a model; it may be the name of a model on the Hugging Face Hub.
fn no_model(path: &Path) -> CommandError {
    let shown = path.display();
    let what = if path.is_dir() {
        format!("{shown} is not a folder with a model: it has no config.json")
    } else {
        format!("there is no folder {shown}, which would have config.json and the weights")
    };
    CommandError::new(ExitReason::Usage, what).hint(format!(
        "name a folder that transformers wrote with save_pretrained, a model of the Hugging Face Hub as hf:ORG/NAME, or \
         download one: {}",
        download(path)
    ))
}

/// Returns the command that downloads a model from the Hugging Face Hub; its name is `path` as `ORG/NAME`, or
/// the last part of `path`.
pub(crate) fn download(path: &Path) -> String {
    let name = path.file_name().map_or_else(|| "NAME".into(), |name| name.to_string_lossy());
    let parts: Vec<_> = path.components().collect();
    let org = match parts.as_slice() {
        [Component::Normal(org), Component::Normal(_)] => org.to_string_lossy(),
        _ => "ORG".into(),
    };
    format!("`hf download {} --local-dir {}`", shell_quoted(format!("{org}/{name}")), shell_quoted(&name))
}

pub(crate) fn decoder(recipe: &Recipe) -> Result<&Decoder, CommandError> {
    match &recipe.model {
        Model::Decoder(decoder) => Ok(decoder),
        _ => Err(CommandError::new(ExitReason::Usage, "only decoders begin with the weights of a folder")
            .hint("write `kind = \"decoder\"` below `[model]`, or name a trial")),
    }
}

impl From<HubError> for CommandError {
    fn from(error: HubError) -> Self {
        let exit = if error.is_passing { ExitReason::Infrastructure } else { ExitReason::Usage };
        let cached = error.cached.iter().map(|commit| format!("the commit {commit} is on this host"));
        cached.fold(Self::new(exit, error.message), Self::cause).hint(error.hint)
    }
}

/// Converts an error from a pretrained model.
pub(crate) fn failure(error: &PretrainedError) -> CommandError {
    const SHOWN: usize = 10;
    let reasons = error.reasons();
    let failure = CommandError::of(ExitReason::Usage, error);
    let failure = reasons.iter().take(SHOWN).fold(failure, |failure, reason| failure.cause(reason.clone()));
    match reasons.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => failure.cause(format!("and {more} more")),
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::color::ColorMode;

    #[test]
    fn a_folder_that_is_not_there_is_said_how_to_get() {
        let said = |path: &str| {
            let failure = WeightsFolder::open(Path::new(path)).expect_err("there is none");
            failure.render(ColorMode::plain())
        };
        let name = said("No-Such-Model-0.5B");
        assert!(name.starts_with("error: there is no folder No-Such-Model-0.5B, "), "{name}");
        assert!(
            name.contains("`hf download ORG/No-Such-Model-0.5B --local-dir No-Such-Model-0.5B`"),
            "{name}"
        );
        let hub = said("No-Such-Org/Model");
        assert!(hub.contains("`hf download No-Such-Org/Model --local-dir Model`"), "{hub}");
        let folder = tempfile::tempdir().expect("a folder");
        let empty = said(&folder.path().display().to_string());
        assert!(empty.contains("it has no config.json"), "{empty}");
    }
}

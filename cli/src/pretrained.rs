//! Trials that begin with the weights in a folder of Hugging Face transformers.

use crate::child;
use crate::context::Context;
use crate::failure::{Exit, Failure};
use dtrain_protocol::TrialId;
use dtrain_recipes::{Decoder, Model, Recipe};
use dtrain_runner::checkpoints;
use dtrain_runner::ledger::{History, Trial};
use dtrain_runner::provenance::Provenance;
use dtrain_worker::pretrained::{Folder, PretrainedError};
use std::path::{Path, PathBuf};

/// What provenance calls the folder of the weights that a trial begins with.
pub(crate) const FOLDER: &str = "weights.folder";
/// What provenance calls the blake3 of its configuration and tensors.
pub(crate) const DIGEST: &str = "weights.blake3";

/// The weights in a folder.
#[derive(Debug)]
pub(crate) struct Weights {
    folder: Folder,
}

impl Weights {
    /// The folder that the user typed; `None` where it is the name of something else.
    pub(crate) fn find(typed: &str) -> Result<Option<Self>, Failure> {
        let path = Path::new(typed);
        if Folder::is_one(path) {
            return Self::open(path).map(Some);
        }
        if path.is_dir() || typed.contains('/') {
            return Err(Failure::new(
                Exit::Usage,
                format!("{typed} is not a folder with a model: it has no config.json"),
            )
            .hint("name a folder that transformers wrote with save_pretrained, or a trial"));
        }
        Ok(None)
    }

    /// Opens the folder at `path`.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Folder::open(&path).map(|folder| Self { folder }).map_err(|error| failure(&error))
    }

    /// What is in it.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its tokenizer, as JSON, where it has one.
    pub(crate) fn tokenizer(&self) -> Result<Option<Vec<u8>>, Failure> {
        self.folder.tokenizer().map_err(|error| failure(&error))
    }

    /// Fails unless the model of `recipe` is the one in the folder, and its tensors are there.
    pub(crate) fn check(&self, recipe: &Recipe) -> Result<(), Failure> {
        let wanted = &decoder(recipe)?.base();
        let there = self.folder.pretrained().with_context(wanted.context);
        if there != *wanted {
            let what = format!(
                "the model is not that of {}, whose weights it would begin with",
                self.path().display()
            );
            let failure =
                child::differences("model", &Model::Decoder(there), &Model::Decoder(wanted.clone()))
                    .into_iter()
                    .fold(Failure::new(Exit::Usage, what), Failure::cause);
            return Err(failure.hint(format!(
                "set these keys as they are there; `dtrain init NEW.toml --from {}` writes such a recipe",
                self.path().display()
            )));
        }
        self.folder.check(wanted).map_err(|error| failure(&error))
    }

    /// Records where the weights come from.
    pub(crate) fn note(&self, provenance: &mut Provenance) -> Result<(), Failure> {
        let digest = self.folder.digest().map_err(|error| failure(&error))?;
        provenance.environment.insert(FOLDER.to_owned(), self.path().display().to_string());
        provenance.environment.insert(DIGEST.to_owned(), digest);
        Ok(())
    }

    /// Makes the weights the first checkpoint of a trial.
    pub(crate) fn take_in(
        &self,
        context: &Context,
        history: &mut History,
        trial: &TrialId,
        recipe: &Recipe,
    ) -> Result<(), Failure> {
        let model = &decoder(recipe)?.base();
        let write = |partial: &Path| self.folder.write(model, partial).map_err(|error| error.to_string());
        let point = checkpoints::begin_with(trial, &context.home.trial(trial), write).map_err(|reason| {
            Failure::new(
                Exit::Infrastructure,
                format!("cannot take in the weights of {}", self.path().display()),
            )
            .cause(reason)
        })?;
        child::record(history, trial, point)
    }
}

/// Takes the weights in once more for a trial that was recorded and then ended before they were.
pub(crate) fn take_in_again(
    context: &Context,
    history: &mut History,
    trial: &Trial,
    recipe: &Recipe,
) -> Result<(), Failure> {
    let environment = &trial.provenance.environment;
    let Some(folder) = environment.get(FOLDER).map(PathBuf::from) else { return Ok(()) };
    let weights = Weights::open(&folder)?;
    let digest = weights.folder.digest().map_err(|error| failure(&error))?;
    if environment.get(DIGEST) != Some(&digest) {
        let what = format!(
            "the weights in {} are not those that {} was to begin with",
            folder.display(),
            trial.row.label
        );
        return Err(Failure::new(Exit::Usage, what)
            .hint("restore the folder, or begin a new trial with `dtrain run RECIPE --from FOLDER`"));
    }
    weights.take_in(context, history, &trial.row.id, recipe)
}

fn decoder(recipe: &Recipe) -> Result<&Decoder, Failure> {
    match &recipe.model {
        Model::Decoder(decoder) => Ok(decoder),
        _ => Err(Failure::new(Exit::Usage, "only decoders begin with the weights of a folder")
            .hint("write `kind = \"decoder\"` below `[model]`, or name a trial")),
    }
}

/// Says what is wrong with a pretrained model.
pub(crate) fn failure(error: &PretrainedError) -> Failure {
    const SHOWN: usize = 10;
    let reasons = error.reasons();
    let failure = Failure::of(Exit::Usage, error);
    let failure = reasons.iter().take(SHOWN).fold(failure, |failure, reason| failure.cause(reason.clone()));
    match reasons.len().checked_sub(SHOWN) {
        Some(more) if more > 0 => failure.cause(format!("and {more} more")),
        _ => failure,
    }
}

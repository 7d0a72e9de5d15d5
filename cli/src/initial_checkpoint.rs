//! The first checkpoint of a trial that starts from another trial's checkpoint or from pretrained weights.

use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint;
use crate::pretrained::{WeightsFolder, decoder, failure};
use crate::trials::{self, history_failure};
use crate::weights_provenance::{DIGEST, FOLDER, MODEL};
use dtrain_protocol::checkpoint::ENGINE_FOLDER;
use dtrain_protocol::{ResumePoint, TrialId};
use dtrain_recipes::{HubModel, Recipe};
use dtrain_runner::checkpoints::{self, Adoption};
use dtrain_runner::ledger::{History, Parent, TrialDetails};
use dtrain_runner::{Fact, Ledger, TrialUpdate};
use std::path::{Path, PathBuf};

/// Copies the parent's checkpoint into the folder of a new trial, and records it as its first checkpoint.
pub(crate) fn copy_source_checkpoint(
    context: &Context,
    history: &mut History,
    trial: &TrialId,
    parent: &Parent,
) -> Result<(), CommandError> {
    if let Some(name) = engine_checkpoint_name(parent) {
        let to = context.home.trial(trial).checkpoints().join(ENGINE_FOLDER).join(name);
        return checkpoints::link_engine_checkpoint(&parent.folder, &to).map_err(|reason| {
            let what = format!("cannot take over the checkpoint of {}", parent.label);
            CommandError::new(ExitReason::Infrastructure, what).cause(reason)
        });
    }
    let what = if parent.weights_only {
        Adoption::Weights
    } else {
        Adoption::State { inputs: parent.inputs.clone() }
    };
    let point =
        checkpoints::adopt(&parent.folder, trial, &context.home.trial(trial), &what).map_err(|reason| {
            CommandError::new(
                ExitReason::Infrastructure,
                format!("cannot take over the checkpoint of {}", parent.label),
            )
            .cause(reason)
            .hint("`dtrain checkpoint verify` reads all of it")
        })?;
    record_initial_checkpoint(history, trial, point)
}

/// Returns the name of the parent's checkpoint if a training engine wrote it.
fn engine_checkpoint_name(parent: &Parent) -> Option<&str> {
    parent.folder.file_name()?.to_str().filter(|name| checkpoints::engine_step(name).is_some())
}

/// Repeats the copy for a trial with no other checkpoint to resume from: the trial ended before the first
/// copy was complete, or the copy is damaged.
pub(crate) fn copy_source_checkpoint_again(
    context: &Context,
    history: &mut History,
    trial: &TrialDetails,
    parent: &Parent,
) -> Result<(), CommandError> {
    if engine_checkpoint_name(parent).is_some() {
        // Later checkpoints of the trial's own may have replaced it.
        let engine = context.home.trial(&trial.row.id).checkpoints().join(ENGINE_FOLDER);
        let entries = std::fs::read_dir(engine).into_iter().flatten().flatten();
        let has_one = entries.into_iter().any(|entry| entry.path().join(checkpoints::MANIFEST).exists());
        return if has_one {
            Ok(())
        } else {
            copy_source_checkpoint(context, history, &trial.row.id, parent)
        };
    }
    let damage = |folder: &Path| checkpoints::verify_checksums(folder, &mut |_, _| ()).err();
    let (id, label) = (&trial.row.id, &trial.row.label);
    let mut news = TrialUpdate::default();
    for saved in trial.checkpoints.iter().filter(|saved| saved.refused.is_none()) {
        let reason = if saved.attempt == checkpoints::ADOPTED { damage(&saved.folder) } else { None };
        let Some(reason) = reason else { return Ok(()) };
        let what = format!("the checkpoint at step {} that {label} begins with is damaged", saved.step);
        context.out.say(&format!("{what} ({reason}); taking it over from {} again", parent.label));
        let folder = saved.folder.clone();
        news.facts.push(Fact::CheckpointRefused { step: saved.step, folder, reason });
    }
    history.record(id, &news).map_err(|error| history_failure(&error))?;
    if damage(&parent.folder).is_none() {
        return copy_source_checkpoint(context, history, id, parent);
    }
    let wanted = CheckpointSelector::UpTo(parent.step);
    let origin = history.trial(&parent.trial, &|id| trials::activity(context, id));
    let found =
        find_checkpoint::find_intact(context, &origin.map_err(|error| history_failure(&error))?, wanted)?;
    let parent = Parent { step: found.step, folder: found.folder, ..parent.clone() };
    copy_source_checkpoint(context, history, id, &parent)
}

/// Imports pretrained weights as the first checkpoint of a new trial.
pub(crate) fn import_weights(
    weights: &WeightsFolder,
    context: &Context,
    history: &mut History,
    trial: &TrialId,
    recipe: &Recipe,
) -> Result<(), CommandError> {
    let model = &decoder(recipe)?.base();
    let write = |partial: &Path| weights.folder().write(model, partial).map_err(|error| error.to_string());
    let point = checkpoints::begin_with(trial, &context.home.trial(trial), write).map_err(|reason| {
        CommandError::new(
            ExitReason::Infrastructure,
            format!("cannot take in the weights of {}", weights.source()),
        )
        .cause(reason)
    })?;
    record_initial_checkpoint(history, trial, point)
}

/// Repeats the import for a trial that ended before its pretrained weights were imported.
pub(crate) fn import_weights_again(
    context: &Context,
    history: &mut History,
    trial: &TrialDetails,
    recipe: &Recipe,
) -> Result<(), CommandError> {
    let environment = &trial.provenance.environment;
    let Some(folder) = environment.get(FOLDER).map(PathBuf::from) else { return Ok(()) };
    let model = environment.get(MODEL).and_then(|name| HubModel::parse(name).ok());
    let weights = match model {
        Some(model) => WeightsFolder::of_hub(context.out, &model)?,
        None => WeightsFolder::open(&folder)?,
    };
    let digest = weights.folder().digest().map_err(|error| failure(&error))?;
    if environment.get(DIGEST) != Some(&digest) {
        let what = format!(
            "the weights in {} are not those that {} was to begin with",
            folder.display(),
            trial.row.label
        );
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint("restore the folder, or begin a new trial with `dtrain run RECIPE --from FOLDER`"));
    }
    import_weights(&weights, context, history, &trial.row.id, recipe)
}

/// Records in the history the checkpoint from which a trial starts.
fn record_initial_checkpoint(
    history: &mut History,
    trial: &TrialId,
    point: ResumePoint,
) -> Result<(), CommandError> {
    let fact =
        Fact::CheckpointCommitted { attempt: checkpoints::ADOPTED, step: point.step, folder: point.folder };
    let news = TrialUpdate { facts: vec![fact], ..TrialUpdate::default() };
    history.record(trial, &news).map_err(|error| history_failure(&error))
}

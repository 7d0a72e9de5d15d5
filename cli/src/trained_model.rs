//! A trained model: a trial's checkpoint with all that a worker needs to use it.

use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint;
use crate::model_query::threads;
use crate::trials::{plan_of_trial, recipe_of_trial};
use dtrain_protocol::{StepId, TrainedModel};
use dtrain_recipes::Model;
use dtrain_runner::ledger::TrialDetails;

/// Returns the model of a trial with its checkpoint at `step`, or for `None` the newest. `Err` if `is_fit`
/// rejects the model, with a reason.
pub(crate) fn trained_checkpoint(
    context: &Context,
    trial: &TrialDetails,
    step: Option<u64>,
    is_fit: impl FnOnce(&Model) -> Result<(), String>,
) -> Result<(TrainedModel, StepId), CommandError> {
    let label = &trial.row.label;
    let recipe = recipe_of_trial(trial)?;
    is_fit(&recipe.model)
        .map_err(|reason| CommandError::new(ExitReason::Usage, format!("{label} {reason}")))?;
    let Some(data) = recipe.data else {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{label} is a program that reads its own data"),
        ));
    };
    let checkpoint = find_checkpoint::find_intact(context, trial, CheckpointSelector::of(step.map(StepId)))?;
    let trained = TrainedModel {
        model: recipe.model,
        data,
        data_root: plan_of_trial(trial)?.data_root,
        checkpoint: checkpoint.folder,
        threads: threads(),
    };
    Ok((trained, checkpoint.step))
}

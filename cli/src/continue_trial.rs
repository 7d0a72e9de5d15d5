//! Continuation of a launched trial: follows its running ranks, or restarts from its newest checkpoint.

use crate::checkpoint_sources::CheckpointSelector;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::find_checkpoint;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::{attach, run_to_end};
use crate::trials::plan_of_trial;
use crate::{engine_environments, initial_checkpoint, packages, slurm_job, trials};
use dtrain_planner::Plan;
use dtrain_recipes::sharing::repair_checkout;
use dtrain_recipes::{LauncherKind, Model};
use dtrain_runner::checkpoints::COMMIT;
use dtrain_runner::ledger::{TrialDetails, TrialStatus};
use std::ffi::OsStr;

/// Resumes or watches the trial `name`, as the mode `how` says.
pub(crate) fn resume_or_attach(context: &Context, name: &str, how: RunMode, detach: bool) -> CommandResult {
    // Looked up before opening for writing, so that a missing history is not created.
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let trial = trials::trial(context, &history, name)?;
    trials::refuse_imported(&trial)?;
    let plan = plan_of_trial(&trial)?;
    if how == RunMode::Resume
        && let Some(exit) = slurm_job::submit_resume_if_needed(context, &plan.recipe, &trial.row.id, detach)?
    {
        return Ok(exit);
    }
    if how == RunMode::Resume && matches!(plan.recipe.model, Model::Command(_)) {
        let store = packages::store(&plan.data_root, false)?;
        repair_checkout(&store, &packages::trust()?, &plan.data_root)
            .map_err(|error| packages::failure(&error))?;
    }
    let is_at_work = trial.row.status.is_live() || trial.row.status == TrialStatus::Completed;
    if how == RunMode::Resume && !is_at_work {
        engine_environments::require(context, &plan.recipe)?;
    }
    slurm_job::record_job_trial(context, &plan.recipe, &trial.row.id)?;
    let (id, label) = (&trial.row.id, trial.row.label.as_str());
    if let Some(parent) = trial.parent.as_ref().filter(|_| !trial.row.status.is_live()) {
        initial_checkpoint::copy_source_checkpoint_again(context, &mut history, &trial, parent)?;
    }
    if trial.checkpoints.is_empty() {
        initial_checkpoint::import_weights_again(context, &mut history, &trial, &plan.recipe)?;
    }
    if how == RunMode::Resume && trial.parent.is_none() {
        refuse_lost_checkpoints(context, &trial, &plan)?;
    }
    let how =
        if trial.row.status == TrialStatus::Created && how == RunMode::Resume { RunMode::Start } else { how };
    let task = TrialRun { trial: id, label, plan: &plan, how, detach, sample: 0 };
    if how == RunMode::Attach {
        attach(context, &mut history, &task)
    } else {
        run_to_end(context, &mut history, &task)
    }
}

/// Refuses to resume a local trial whose checkpoints are all damaged: it would restart from its first step.
///
/// A trial that started from another trial's checkpoint fails by itself if that checkpoint is lost too.
/// Reports the newest checkpoints that are damaged or missing if an older one is intact.
fn refuse_lost_checkpoints(context: &Context, trial: &TrialDetails, plan: &Plan) -> Result<(), CommandError> {
    let is_over = trial.row.status.is_live() || trial.row.status == TrialStatus::Completed;
    let is_here = plan.recipe.cluster.launcher == LauncherKind::Local && plan.recipe.cluster.slurm.is_none();
    // An engine finds its own checkpoints, and refuses to begin anew where one was saved.
    if trial.is_of_engine()
        || trial.checkpoints.is_empty()
        || is_over
        || !is_here
        || has_unrecorded_checkpoint(context, trial)
    {
        return Ok(());
    }
    let label = &trial.row.label;
    find_checkpoint::find_intact(context, trial, CheckpointSelector::Newest).map(drop).map_err(|failure| {
        failure.hint(format!(
            "put an intact checkpoint back into {}, or begin anew with `dtrain run RECIPE`; {label} cannot go on without one",
            context.home.trial(&trial.row.id).checkpoints().display()
        ))
    })
}

/// Returns `true` if a committed checkpoint exists that the history has not recorded yet.
fn has_unrecorded_checkpoint(context: &Context, trial: &TrialDetails) -> bool {
    let folder = context.home.trial(&trial.row.id).checkpoints();
    let is_recorded =
        |name: &OsStr| trial.checkpoints.iter().any(|known| known.folder.file_name() == Some(name));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| !is_recorded(&entry.file_name()) && entry.path().join(COMMIT).exists())
}

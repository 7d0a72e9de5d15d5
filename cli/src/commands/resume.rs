//! `dtrain resume`, `dtrain attach` and `dtrain stop`: continue, watch or stop a trial that was launched.

use crate::args::{ResumeArgs, RunningArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::find_checkpoint::{self, CheckpointSelector};
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::{attach as attach_to, record_finished_trials, run_to_end, watch_stopping};
use crate::trials::plan_of_trial;
use crate::{audit, fork, initial_checkpoint, packages, slurm_job, trials};
use dtrain_planner::Plan;
use dtrain_recipes::sharing::repair_checkout;
use dtrain_recipes::{LauncherKind, Model};
use dtrain_runner::DriveError;
use dtrain_runner::agent::STOP_GRACE_PERIOD;
use dtrain_runner::audit::AuditedAction;
use dtrain_runner::checkpoints::COMMIT;
use dtrain_runner::ledger::{TrialDetails, TrialStatus};
use std::ffi::OsStr;

/// Continues a trial; with other settings or data, as a new trial.
pub(crate) fn resume(context: &Context, args: &ResumeArgs) -> CommandResult {
    let layers = &args.layers;
    if !layers.set.is_empty()
        || layers.cluster.is_some()
        || args.accept_data
        || args.trial.trial.contains('@')
    {
        return fork::resume_as_fork(context, args);
    }
    resume_or_attach(context, &args.trial.trial, RunMode::Resume, args.detach)
}

/// Watches a trial; without a name, the running one, or else the last, which may just have ended.
pub(crate) fn attach(context: &Context, args: &RunningArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let name = match &args.trial {
        Some(name) => name.clone(),
        None => trials::only_running(context, &history)?.unwrap_or_else(|| "last".to_owned()),
    };
    let id = trials::find(&history, &name)?;
    if let Some(job) = slurm_job::job_of_trial(context, &id) {
        if !trials::is_alive(context, &id) {
            return Err(CommandError::new(ExitReason::Usage, format!("job {job} of {name} has ended"))
                .hint(format!("`dtrain resume {name}` continues from its newest checkpoint")));
        }
        return slurm_job::follow_job(context, &job, RunMode::Attach);
    }
    drop(history);
    resume_or_attach(context, &name, RunMode::Attach, false)
}

/// Stops a trial and waits for it, unless another terminal watches it.
pub(crate) fn stop(context: &Context, args: &RunningArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let name = match &args.trial {
        Some(name) => name.clone(),
        None => trials::only_running(context, &history)?.ok_or_else(|| {
            CommandError::new(ExitReason::Usage, "no trial is running")
                .hint("`dtrain history` lists all trials")
        })?,
    };
    let trial = trials::trial(context, &history, &name)?;
    trials::refuse_imported(&trial)?;
    let label = &trial.row.label;
    if trial.row.status != TrialStatus::Running {
        return Err(CommandError::new(
            ExitReason::Usage,
            format!("{label} is not running: it is {}", trial.row.status),
        ));
    }
    if let Some(job) = slurm_job::job_of_trial(context, &trial.row.id) {
        slurm_job::follow_job(context, &job, RunMode::Stop)?;
        context.out.next(&format!("dtrain show {label}"));
        return Ok(ExitReason::Done);
    }
    let plan = plan_of_trial(&trial)?;
    audit::try_append(context, &audit::audit_log_for(context, &trial, &plan)?, AuditedAction::Stop);
    let is_here = plan.recipe.cluster.launcher == LauncherKind::Local;
    match dtrain_runner::driver::stop(&context.home, &trial.row.id) {
        // The controller that attaches to its hosts tells it to stop.
        Err(DriveError::NothingRuns(_)) if !is_here => {}
        asked => asked.map_err(|error| {
            CommandError::of(ExitReason::Infrastructure, &error)
                .hint(format!("`dtrain logs {label}` shows what happened"))
        })?,
    }
    context.out.say(&if matches!(plan.recipe.model, Model::Command(_)) {
        format!("asked {label} to stop; what has not ended after {} s is killed", STOP_GRACE_PERIOD.as_secs())
    } else {
        format!("asked {label} to finish its step, save a checkpoint and stop")
    });
    // This process must stay to record how the trial ends.
    drop(history);
    let mut history = trials::open_history(context)?;
    let task =
        TrialRun { trial: &trial.row.id, label, plan: &plan, how: RunMode::Stop, detach: false, sample: 0 };
    if !watch_stopping(context, &mut history, &task)? {
        context.out.next(&format!("dtrain show {label}"));
    }
    Ok(ExitReason::Done)
}

/// Resumes or watches a trial.
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
    slurm_job::record_job_trial(context, &plan.recipe, &trial.row.id)?;
    let (id, label) = (&trial.row.id, trial.row.label.as_str());
    if let Some(parent) = trial.parent.as_ref().filter(|_| trial.row.status != TrialStatus::Running) {
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
        attach_to(context, &mut history, &task)
    } else {
        run_to_end(context, &mut history, &task)
    }
}

/// Refuses a local trial whose checkpoints are all damaged: it would restart from its first step.
///
/// A trial that started from another trial's checkpoint fails by itself if that is lost too. Reports the
/// newest checkpoints that are damaged or missing if an older one is intact.
fn refuse_lost_checkpoints(context: &Context, trial: &TrialDetails, plan: &Plan) -> Result<(), CommandError> {
    let is_over = matches!(trial.row.status, TrialStatus::Running | TrialStatus::Completed);
    let is_here = plan.recipe.cluster.launcher == LauncherKind::Local && plan.recipe.cluster.slurm.is_none();
    if trial.checkpoints.is_empty() || is_over || !is_here || has_unrecorded_checkpoint(context, trial) {
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

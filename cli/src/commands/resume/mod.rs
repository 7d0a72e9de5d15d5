//! `dtrain resume`, `dtrain attach` and `dtrain stop`: continue, watch or stop a trial that was launched.

mod fork;

use crate::args::{ResumeArgs, RunningArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::continue_trial::resume_or_attach;
use crate::exit_code::ExitReason;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_trial::{record_finished_trials, watch_stopping};
use crate::trials::plan_of_trial;
use crate::{audit, slurm_job, trials};
use dtrain_recipes::{LauncherKind, Model};
use dtrain_runner::DriveError;
use dtrain_runner::audit::AuditedAction;
use dtrain_runner::control_protocol::STOP_GRACE_PERIOD;
use dtrain_runner::ledger::TrialActivity;

/// Continues a trial; with other settings or data, starts a new trial from it.
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

/// Watches a trial; without a name, the running one, or else the last one, which may just have ended.
pub(crate) fn attach(context: &Context, args: &RunningArgs) -> CommandResult {
    let history = trials::read_history(context)?;
    let name = match &args.trial {
        Some(name) => name.clone(),
        None => trials::only_running(context, &history)?.unwrap_or_else(|| "last".to_owned()),
    };
    let id = trials::find(&history, &name)?;
    if let Some(job) = slurm_job::job_of_trial(context, &id) {
        if trials::activity(context, &id) == TrialActivity::None {
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
    if !trial.row.status.is_live() {
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

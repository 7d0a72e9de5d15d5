//! `dtrain resume`, `dtrain attach` and `dtrain stop`: what to do with a trial that was launched.

use crate::args::{ResumeArgs, RunningArgs};
use crate::context::Context;
use crate::drive::{How, Task, attach as attach_to, catch_up, drive, watch_stopping};
use crate::failure::{Exit, Failure, Outcome};
use crate::intact::{self, Wanted};
use crate::{audit, child, job, packages, pretrained, trials};
use dtrain_planner::{Plan, ReadError};
use dtrain_recipes::sharing::repair_checkout;
use dtrain_recipes::{Launcher, Model};
use dtrain_runner::DriveError;
use dtrain_runner::agent::TO_STOP;
use dtrain_runner::audit::Action;
use dtrain_runner::checkpoints::COMMIT;
use dtrain_runner::ledger::{Status, Trial};
use std::ffi::OsStr;

/// Continues a trial; with other settings or other data as a new one.
pub(crate) fn resume(context: &Context, args: &ResumeArgs) -> Outcome {
    let layers = &args.layers;
    if !layers.set.is_empty()
        || layers.cluster.is_some()
        || args.accept_data
        || args.trial.trial.contains('@')
    {
        return child::resume(context, args);
    }
    take_up(context, &args.trial.trial, How::Resume, args.detach)
}

/// Watches a trial; without a name the one that runs, or the last one, which may have ended since somebody looked.
pub(crate) fn attach(context: &Context, args: &RunningArgs) -> Outcome {
    let history = trials::read_history(context)?;
    let name = match &args.trial {
        Some(name) => name.clone(),
        None => trials::only_running(context, &history)?.unwrap_or_else(|| "last".to_owned()),
    };
    let id = trials::find(&history, &name)?;
    if let Some(job) = job::elsewhere(context, &id) {
        if !trials::is_alive(context, &id) {
            return Err(Failure::new(Exit::Usage, format!("job {job} of {name} has ended"))
                .hint(format!("`dtrain resume {name}` continues from its newest checkpoint")));
        }
        return job::follow(context, &job, How::Attach);
    }
    drop(history);
    take_up(context, &name, How::Attach, false)
}

/// Lets a trial stop, and waits until it has, unless another terminal watches it.
pub(crate) fn stop(context: &Context, args: &RunningArgs) -> Outcome {
    catch_up(context);
    let history = trials::read_history(context)?;
    let name = match &args.trial {
        Some(name) => name.clone(),
        None => trials::only_running(context, &history)?.ok_or_else(|| {
            Failure::new(Exit::Usage, "no trial is running").hint("`dtrain history` lists all trials")
        })?,
    };
    let trial = trials::trial(context, &history, &name)?;
    trials::refuse_imported(&trial)?;
    let label = &trial.row.label;
    if trial.row.status != Status::Running {
        return Err(Failure::new(Exit::Usage, format!("{label} is not running: it is {}", trial.row.status)));
    }
    if let Some(job) = job::elsewhere(context, &trial.row.id) {
        job::follow(context, &job, How::Stop)?;
        context.out.next(&format!("dtrain show {label}"));
        return Ok(Exit::Done);
    }
    let plan = plan(&trial)?;
    audit::mention(context, &audit::of(context, &trial, &plan)?, Action::Stop);
    let is_here = plan.recipe.cluster.launcher == Launcher::Local;
    match dtrain_runner::driver::stop(&context.home, &trial.row.id) {
        // Whoever attaches to it on other hosts tells it to stop.
        Err(DriveError::NothingRuns(_)) if !is_here => {}
        asked => asked.map_err(|error| {
            Failure::of(Exit::Infrastructure, &error)
                .hint(format!("`dtrain logs {label}` shows what happened"))
        })?,
    }
    context.out.say(&if matches!(plan.recipe.model, Model::Command(_)) {
        format!("asked {label} to stop; what has not ended after {} s is killed", TO_STOP.as_secs())
    } else {
        format!("asked {label} to finish its step, save a checkpoint and stop")
    });
    // Somebody has to write down how it ends.
    drop(history);
    let mut history = trials::open_history(context)?;
    let task = Task { trial: &trial.row.id, label, plan: &plan, how: How::Stop, detach: false, sample: 0 };
    if !watch_stopping(context, &mut history, &task)? {
        context.out.next(&format!("dtrain show {label}"));
    }
    Ok(Exit::Done)
}

/// Goes on with a trial, or watches it.
pub(crate) fn take_up(context: &Context, name: &str, how: How, detach: bool) -> Outcome {
    // Asked for before it is opened for writing, so that a missing history is not made.
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let trial = trials::trial(context, &history, name)?;
    trials::refuse_imported(&trial)?;
    let plan = plan(&trial)?;
    if how == How::Resume
        && let Some(exit) = job::sent_again(context, &plan.recipe, &trial.row.id, detach)?
    {
        return Ok(exit);
    }
    if how == How::Resume && matches!(plan.recipe.model, Model::Command(_)) {
        let store = packages::store(&plan.data_root, false)?;
        repair_checkout(&store, &packages::trust()?, &plan.data_root)
            .map_err(|error| packages::failure(&error))?;
    }
    job::remember(context, &plan.recipe, &trial.row.id)?;
    let (id, label) = (&trial.row.id, trial.row.label.as_str());
    if let Some(parent) = trial.parent.as_ref().filter(|_| trial.row.status != Status::Running) {
        child::adopt_again(context, &mut history, &trial, parent)?;
    }
    if trial.checkpoints.is_empty() {
        pretrained::take_in_again(context, &mut history, &trial, &plan.recipe)?;
    }
    if how == How::Resume && trial.parent.is_none() {
        refuse_lost_checkpoints(context, &trial, &plan)?;
    }
    let how = if trial.row.status == Status::Created && how == How::Resume { How::Start } else { how };
    let task = Task { trial: id, label, plan: &plan, how, detach, sample: 0 };
    if how == How::Attach {
        attach_to(context, &mut history, &task)
    } else {
        drive(context, &mut history, &task)
    }
}

/// Refuses a trial of this machine that saved checkpoints of which none is intact: it would train again from its first step.
///
/// One that began with a checkpoint of another trial ends by itself where that is lost too. Says which of the newest ones are damaged or missing where an older one is intact.
fn refuse_lost_checkpoints(context: &Context, trial: &Trial, plan: &Plan) -> Result<(), Failure> {
    let is_over = matches!(trial.row.status, Status::Running | Status::Completed);
    let is_here = plan.recipe.cluster.launcher == Launcher::Local && plan.recipe.cluster.slurm.is_none();
    if trial.checkpoints.is_empty() || is_over || !is_here || has_unrecorded(context, trial) {
        return Ok(());
    }
    let label = &trial.row.label;
    intact::checkpoint(context, trial, Wanted::Newest).map(drop).map_err(|failure| {
        failure.hint(format!(
            "put an intact checkpoint back into {}, or begin anew with `dtrain run RECIPE`; {label} cannot go on without one",
            context.home.trial(&trial.row.id).checkpoints().display()
        ))
    })
}

/// Whether a committed checkpoint is there that the history does not know yet.
fn has_unrecorded(context: &Context, trial: &Trial) -> bool {
    let folder = context.home.trial(&trial.row.id).checkpoints();
    let is_recorded =
        |name: &OsStr| trial.checkpoints.iter().any(|known| known.folder.file_name() == Some(name));
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| !is_recorded(&entry.file_name()) && entry.path().join(COMMIT).exists())
}

/// The plan that a trial carries out.
pub(crate) fn plan(trial: &Trial) -> Result<Plan, Failure> {
    Plan::read(&trial.plan).map_err(|error| {
        let label = &trial.row.label;
        let failure = Failure::new(Exit::Infrastructure, format!("the plan of {label} cannot be read"));
        let hint = match error {
            ReadError::Newer { .. } => "use the version of dtrain that recorded it".to_owned(),
            ReadError::Json(_) | ReadError::Empty => format!(
                "it cannot go on without its plan: `dtrain show {label}` shows what is known of it, and `dtrain run RECIPE` \
                 trains anew"
            ),
        };
        failure.cause(error.to_string()).hint(hint)
    })
}

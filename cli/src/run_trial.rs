//! Supervision of a trial from start to end, with a progress display.

use crate::attempt_plans::{assignments, predict};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::plan::planned_training;
use crate::render::progress::ProgressDisplay;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_summary::print_result;
use crate::trials::{history_failure, plan_of_trial};
use crate::viewer::{self, ViewerExit};
use crate::workdir::TrialWorkdir;
use crate::{audit, hosts, signals, supervisor, this_host, trials};
use dtrain_planner::{Plan, rates_key};
use dtrain_protocol::{Assignment, TrialId};
use dtrain_recipes::{GrowthPolicy, Model};
use dtrain_runner::audit::AuditedAction;
use dtrain_runner::control_protocol::STOP_GRACE_PERIOD;
use dtrain_runner::driver::{self, DriveOutcome, HostLimits};
use dtrain_runner::launch::relay::RemoteHost;
use dtrain_runner::launch::{ClusterLauncher, Launcher};
use dtrain_runner::ledger::{History, TrialActivity, TrialDetails};
use dtrain_runner::{
    Drive, DriveError, Interrupts, LaunchContext, Observer, OnInterrupt, Options, TrialEvent,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Supervises a trial to its end and prints its summary. One that is detached is supervised in the background from
/// then on.
pub(crate) fn run_to_end(context: &Context, history: &mut History, task: &TrialRun<'_>) -> CommandResult {
    let ending = match watch(context, history, task)? {
        // A closed terminal left it: this one shows its progress.
        Err(DriveError::Busy { process, .. }) if supervisor::is_supervisor(process) && !task.detach => {
            return attach(context, history, task);
        }
        ending => ending.map_err(|error| drive_failure(&error, task.label))?,
    };
    supervise_if_detached(context, task, &ending)?;
    print_result(context, history, task, &ending)
}

/// Starts the controller in the background for a trial that this process no longer controls.
fn supervise_if_detached(
    context: &Context,
    task: &TrialRun<'_>,
    ending: &DriveOutcome,
) -> Result<(), CommandError> {
    match ending {
        DriveOutcome::Detached { .. } => supervisor::start(context, task.trial, task.label),
        DriveOutcome::Ended { .. } => Ok(()),
    }
}

/// Watches a trial as its controller, or as one of many viewers if another process controls it.
pub(crate) fn attach(context: &Context, history: &mut History, task: &TrialRun<'_>) -> CommandResult {
    let is_live = driver::activity(&context.home, task.trial) != TrialActivity::None;
    let Some(mut ending) = watch_or_view(context, history, task)? else { return Ok(ExitReason::Detached) };
    if is_live {
        ending = recorded_if_over(history, task, ending)?;
    }
    let ending = ending.map_err(|error| drive_failure(&error, task.label))?;
    supervise_if_detached(context, task, &ending)?;
    print_result(context, history, task, &ending)
}

/// Watches a trial as its controller, or as a viewer, which takes over when the controller ends. Returns `None` if the
/// user leaves the viewer.
fn watch_or_view(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
) -> Result<Option<Result<DriveOutcome, DriveError>>, CommandError> {
    loop {
        let process = match watch(context, history, task)? {
            Err(DriveError::Busy { process, .. }) => process,
            ending => return Ok(Some(ending)),
        };
        match viewer::watch_until_exit(context, history, task, process)? {
            ViewerExit::Ended(ending) => return Ok(Some(Ok(ending))),
            ViewerExit::Left => return Ok(None),
            // A viewer does not take the trial back from another machine.
            ViewerExit::Unled => {
                if let Some(superseded) = driver::superseded(&context.home, task.trial) {
                    return Ok(Some(Err(superseded)));
                }
            }
        }
    }
}

/// Supervises a trial with a progress display, without printing the summary.
pub(crate) fn run_with_progress(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
) -> Result<DriveOutcome, CommandError> {
    watch(context, history, task)?.map_err(|error| drive_failure(&error, task.label))
}

/// Watches a trial that is asked to stop until it has stopped. Returns `false` if the user leaves before, or if nothing of it
/// runs and no end is recorded.
pub(crate) fn watch_stopping(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
) -> Result<bool, CommandError> {
    let Some(ending) = watch_or_view(context, history, task)? else { return Ok(false) };
    let ending = match recorded_if_over(history, task, ending)? {
        Err(DriveError::NothingRuns(_)) => return Ok(false),
        ending => ending.map_err(|error| drive_failure(&error, task.label))?,
    };
    print_result(context, history, task, &ending).map(|_| true)
}

/// Returns the recorded outcome of a trial that ended before this process could watch it, or else `ending`.
fn recorded_if_over(
    history: &History,
    task: &TrialRun<'_>,
    ending: Result<DriveOutcome, DriveError>,
) -> Result<Result<DriveOutcome, DriveError>, CommandError> {
    if !matches!(ending, Err(DriveError::NothingRuns(_))) {
        return Ok(ending);
    }
    let recorded = driver::outcome_of(history, task.trial).map_err(|error| history_failure(&error))?;
    Ok(recorded.map_or(ending, Ok))
}

/// Records the end of trials that finished without a controller. Starts nothing, and does not touch running
/// trials.
///
/// Errors are ignored here; `resume` reports them.
pub(crate) fn record_finished_trials(context: &Context) {
    if !context.home.history().exists() {
        return;
    }
    let Ok(mut history) = History::open(&context.home.history()) else { return };
    let mut open: Vec<TrialId> =
        history.open_attempts().unwrap_or_default().into_iter().map(|(trial, _)| trial).collect();
    open.dedup();
    open.retain(|trial| trials::activity(context, trial) == TrialActivity::None);
    for trial in &open {
        let Ok(known) = history.trial(trial, &|_| TrialActivity::None) else { continue };
        let plan = match plan_of_trial(&known) {
            Ok(plan) => plan,
            Err(failure) => {
                context.out.say(&failure.warning(context.out.paint));
                continue;
            }
        };
        let label = known.row.label.as_str();
        let task = TrialRun { trial, label, plan: &plan, how: RunMode::Attach, detach: false, sample: 0 };
        // Lost trials are not printed here; `history` lists them.
        let Ok(others) = connect_hosts(context, &task) else { continue };
        drop(run(context, &mut history, &task, (others, None), &mut |_: &TrialEvent| {}, Arc::default()));
    }
}

/// Drives a trial as its controller, with a progress display.
fn watch(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
) -> Result<Result<DriveOutcome, DriveError>, CommandError> {
    // Nothing is launched until the hosts are connected, so Ctrl-C simply ends the program until then.
    let mut others = connect_hosts(context, task)?;
    let workdir = TrialWorkdir::send(context, history, task, &mut others)?;
    let interrupts = signals::listen()?;
    supervisor::take_over_when_the_terminal_closes(context, task);
    let mut progress = ProgressDisplay::new(context.out, task.trial, planned_training(task.plan));
    let ending = run(context, history, task, (others, workdir), &mut progress, interrupts);
    progress.finish();
    ending
}

/// Drives a trial as its controller in the background; `interrupts` stop it.
pub(crate) fn supervise(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
    interrupts: Arc<Interrupts>,
) -> Result<Result<DriveOutcome, DriveError>, CommandError> {
    let mut others = connect_hosts(context, task)?;
    let workdir = TrialWorkdir::send(context, history, task, &mut others)?;
    let mut display = ProgressDisplay::without_steps(context.out, task.trial, planned_training(task.plan));
    run(context, history, task, (others, workdir), &mut display, interrupts)
}

/// Drives a trial as its controller, without a display; `interrupts` stop it.
pub(crate) fn run_quietly(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
    observer: &mut dyn Observer,
    interrupts: Arc<Interrupts>,
) -> Result<DriveOutcome, CommandError> {
    let mut others = connect_hosts(context, task)?;
    let workdir = TrialWorkdir::send(context, history, task, &mut others)?;
    run(context, history, task, (others, workdir), observer, interrupts)?
        .map_err(|error| drive_failure(&error, task.label))
}

/// Connects to the hosts of a trial. Empty for local training.
fn connect_hosts(context: &Context, task: &TrialRun<'_>) -> Result<Vec<RemoteHost>, CommandError> {
    match task.how {
        RunMode::Start => hosts::connect_to_start(context, &task.plan.recipe),
        RunMode::Resume | RunMode::Attach | RunMode::Stop | RunMode::Supervise => {
            hosts::connect_answering(context, &task.plan.recipe)
        }
    }
}

fn run(
    context: &Context,
    history: &mut History,
    task: &TrialRun<'_>,
    (others, workdir): (Vec<RemoteHost>, Option<TrialWorkdir>),
    observer: &mut dyn Observer,
    interrupts: Arc<Interrupts>,
) -> Result<Result<DriveOutcome, DriveError>, CommandError> {
    let programs = this_host::programs()?;
    let options = Options {
        detach: task.detach,
        on_interrupt: if task.how == RunMode::Attach { OnInterrupt::Leave } else { OnInterrupt::Stop },
        stop: task.how == RunMode::Stop,
        keep: task.plan.recipe.checkpoint.keep,
        killed_after: matches!(task.plan.recipe.model, Model::Command(_)).then_some(STOP_GRACE_PERIOD),
        notice: task.plan.recipe.cluster.notice.clone(),
        lost_after: Duration::from_secs_f64(task.plan.recipe.cluster.unreachable_timeout().0),
        hosts: host_limits(task.plan),
        ..Options::default()
    };
    let trial =
        history.trial(task.trial, &|_| TrialActivity::None).map_err(|error| history_failure(&error))?;
    let audit = audit::audit_log_for(context, &trial, task.plan)?;
    match task.how {
        RunMode::Start => audit::append(&audit, AuditedAction::Run)?,
        RunMode::Resume => audit::append(&audit, AuditedAction::Resume)?,
        // Viewing is not audited; `stop` has written its own entry.
        RunMode::Attach | RunMode::Stop | RunMode::Supervise => {}
    }
    let is_job = task.plan.recipe.cluster.slurm.is_some();
    let launcher = (!others.is_empty()).then(|| -> Box<dyn Launcher> {
        let snapshot = workdir.as_ref().and_then(|workdir| workdir.snapshot.clone());
        let launcher = ClusterLauncher::new(task.trial, &context.home.trial(task.trial), others);
        let launcher = launcher.with_workdir(snapshot);
        Box::new(if is_job { launcher.sharing(&context.home) } else { launcher })
    });
    let rates = history
        .rates(&task.plan.host, &rates_key(&task.plan.recipe, &task.plan.host))
        .map_err(|error| history_failure(&error))?;
    let saved_step = saved_engine_step(history, &trial)?;
    let digest = workdir.as_ref().map(|workdir| &workdir.digest);
    let spell_out = |launching: &LaunchContext| -> Result<Vec<Assignment>, String> {
        let mut ranks = assignments(task, rates.as_ref(), launching)?;
        for rank in &mut ranks {
            rank.workdir = digest.cloned();
            if let Some(engine) = &mut rank.engine {
                engine.saved_step = saved_step;
            }
        }
        Ok(ranks)
    };
    // Asked after many checkpoints, and always answered alike.
    let predicted = RefCell::new(BTreeMap::new());
    let predict_once = |hosts| {
        let mut predicted = predicted.borrow_mut();
        *predicted.entry(hosts).or_insert_with(|| predict(task.plan, hosts, rates.as_ref()))
    };
    let drive = Drive {
        home: &context.home,
        trial: task.trial,
        lower: &spell_out,
        predict: &predict_once,
        programs: &programs,
        launcher,
        audit: Some(audit),
        options: &options,
        ledger: history,
        observer,
        interrupts,
    };
    let ending = match task.how {
        RunMode::Start => driver::start(drive),
        RunMode::Resume => driver::resume(drive),
        RunMode::Attach | RunMode::Stop => driver::attach(drive),
        RunMode::Supervise => driver::supervise(drive),
    };
    if matches!(ending, Ok(DriveOutcome::Ended { .. })) {
        check_recorded(context, task)?;
    }
    Ok(ending)
}

/// Returns the limits of the number of hosts that train.
fn host_limits(plan: &Plan) -> HostLimits {
    let cluster = &plan.recipe.cluster;
    // What a command has trained is lost with its process, unless it saves its own checkpoints.
    let saves = !matches!(plan.recipe.model, Model::Command(_));
    HostLimits {
        least: cluster.least.unwrap_or(1),
        most: cluster.host_count(),
        grows: saves && cluster.grow == GrowthPolicy::Checkpoint,
    }
}

/// Checks that the history has the recorded end of a trial; `Err` if it is missing.
fn check_recorded(context: &Context, task: &TrialRun<'_>) -> Result<(), CommandError> {
    let lost = |failure: CommandError| {
        failure.hint(format!(
            "the end of {} could not be read back; its checkpoints are in {}",
            task.label,
            context.home.trial(task.trial).checkpoints().display()
        ))
    };
    let history = trials::read_history(context).map_err(lost)?;
    let read = history.trial(task.trial, &|_| TrialActivity::None).map_err(|error| history_failure(&error));
    let trial = read.map_err(lost)?;
    if trial.attempts.iter().any(|attempt| attempt.ended.is_none()) {
        let path = context.home.history();
        let what = format!("{} does not have the end of {}", path.display(), task.label);
        return Err(lost(CommandError::new(ExitReason::Infrastructure, what)));
    }
    Ok(())
}

/// Returns the step of the newest checkpoint that a training engine saved for a trial, or that the trial
/// continues; 0 without one.
fn saved_engine_step(history: &History, trial: &TrialDetails) -> Result<u64, CommandError> {
    if !trial.is_of_engine() {
        return Ok(0);
    }
    let saved = history.engine_checkpoints(&trial.row.id).map_err(|error| history_failure(&error))?;
    let continued = trial.parent.as_ref().filter(|parent| !parent.weights_only).map(|parent| parent.step.0);
    Ok(saved.last().map(|sample| sample.step).or(continued).unwrap_or(0))
}

pub(crate) fn drive_failure(error: &DriveError, label: &str) -> CommandError {
    match error {
        DriveError::Busy { .. } => {
            CommandError::of(ExitReason::Usage, error).hint(format!("`dtrain attach {label}` shows its progress"))
        }
        DriveError::NothingRuns(_) => CommandError::new(ExitReason::Usage, format!("{label} is not running"))
            .hint(format!("`dtrain resume {label}` continues from its newest checkpoint")),
        DriveError::Launched(_) => {
            CommandError::of(ExitReason::Usage, error).hint(format!("`dtrain resume {label}` resumes it"))
        }
        DriveError::Away { .. } => CommandError::of(ExitReason::Infrastructure, error).hint(format!(
            "it may still be running; `dtrain attach {label}` tries again, and `dtrain fence {label} HOST` gives a host up"
        )),
        DriveError::Superseded { host, .. } => CommandError::of(ExitReason::Infrastructure, error).hint(format!(
            "`dtrain attach {label}` on {host} shows its progress; `dtrain resume {label}` here takes over again"
        )),
        DriveError::Unread { .. } => CommandError::of(ExitReason::Infrastructure, error).hint(format!(
            "`dtrain attach {label}` tries again; `dtrain resume {label}` gives that host up after a while"
        )),
        DriveError::Removed(_) => CommandError::new(ExitReason::Usage, format!("{label} is partly removed: its checkpoints are gone"))
            .hint(format!("`dtrain rm {label}` removes the rest")),
        DriveError::Ledger(source) => trials::with_history_advice(CommandError::of(ExitReason::Infrastructure, error), source),
        DriveError::Audit { .. } | DriveError::Folder { .. } | DriveError::Unreachable(_) => {
            CommandError::of(ExitReason::Infrastructure, error).hint("`dtrain doctor` checks the state folder")
        }
    }
}

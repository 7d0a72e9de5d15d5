//! The controller of a trial in the background: a process of its own that supervises the trial to its end.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_summary::verdict_text;
use crate::run_trial::{drive_failure, supervise};
use crate::trials::plan_of_trial;
use crate::{signals, trials};
use dtrain_protocol::TrialId;
use dtrain_runner::driver::{self, DriveOutcome};
use dtrain_runner::{DriveError, Interrupts, files};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Time that a new controller has to take over a trial. It connects to all hosts first.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Interval between two checks whether a new controller has taken over.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time for which an earlier controller may still hold the trial.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a controller that could not do its work tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(15);

/// Starts a controller in the background for a trial without one, and waits until it has taken over.
pub(crate) fn start(context: &Context, trial: &TrialId, label: &str) -> Result<(), CommandError> {
    let log = context.home.trial(trial).controller_log();
    let failed = |cause: String| {
        CommandError::new(
            ExitReason::Infrastructure,
            format!("no process supervises {label} in the background"),
        )
        .cause(cause)
        .hint(format!("it trains on; `dtrain attach {label}` supervises it from here"))
    };
    let mut child = spawn(context, trial).map_err(|error| failed(error.to_string()))?;
    let until = Instant::now() + TAKEOVER_TIMEOUT;
    while driver::controller(&context.home, trial) != Some(child.id()) {
        match child.try_wait() {
            // The trial ended meanwhile.
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => return Err(failed(format!("it ended with {status}; see {}", log.display()))),
            // It goes on trying.
            Ok(None) | Err(_) if Instant::now() >= until => break,
            Ok(None) | Err(_) => thread::sleep(POLL_INTERVAL),
        }
    }
    Ok(())
}

/// Lets a controller in the background take over the trial if the terminal of this one is closed.
pub(crate) fn take_over_when_the_terminal_closes(context: &Context, task: &TrialRun<'_>) {
    // The controller of a Slurm job is the job itself.
    if task.plan.recipe.cluster.slurm.is_some() {
        return;
    }
    let (context, trial) = (context.clone(), task.trial.clone());
    // If that fails, the trial goes on without a controller.
    signals::on_hangup(move || drop(spawn(&context, &trial)));
}

/// Starts `dtrain supervise`, which writes to a log in the folder of the trial.
fn spawn(context: &Context, trial: &TrialId) -> std::io::Result<Child> {
    let program = std::env::current_exe()?;
    let log: File = files::append(&context.home.trial(trial).controller_log())?;
    let mut command = in_own_scope(&program, trial);
    command
        .arg("--state")
        .arg(context.home.path())
        .args(["supervise", &trial.0])
        .current_dir(context.home.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
}

/// Returns a command that starts `program`. If the user's services outlive the user's sessions, it starts in a scope
/// of its own there, which the end of this session does not touch.
fn in_own_scope(program: &Path, trial: &TrialId) -> Command {
    if !lingers() {
        return Command::new(program);
    }
    let mut command = Command::new("systemd-run");
    command
        .args(["--user", "--scope", "--quiet", "--collect"])
        .arg(format!("--unit=dtrain-{}", trial.0))
        .arg("--")
        .arg(program);
    command
}

/// Returns `true` if the user's service manager runs, and stays when the user logs out (`loginctl enable-linger`).
fn lingers() -> bool {
    let runs = std::env::var_os("XDG_RUNTIME_DIR")
        .is_some_and(|folder| Path::new(&folder).join("systemd/private").exists());
    let user = std::env::var("USER").unwrap_or_default();
    runs && !user.is_empty() && Path::new("/var/lib/systemd/linger").join(user).exists()
}

/// `dtrain supervise`: controls a trial until it ends. What it cannot do now, it tries again.
pub(crate) fn run(context: &Context, trial: &TrialId) -> CommandResult {
    // Fails only if the process already leads a session.
    let _ = rustix::process::setsid();
    let interrupts = signals::listen_in_background()?;
    let begun = Instant::now();
    loop {
        match attempt(context, trial, &interrupts) {
            Ok(Supervised::Ended(words)) => {
                context.out.say(&words);
                return Ok(ExitReason::Done);
            }
            Ok(Supervised::Busy(_)) if begun.elapsed() < BUSY_TIMEOUT => thread::sleep(POLL_INTERVAL),
            Ok(Supervised::Busy(failure)) => return Err(failure),
            Ok(Supervised::Failed(failure)) => {
                context.out.say(&failure.warning(context.out.paint));
                pause(&interrupts);
            }
            Err(failure) if failure.exit() == ExitReason::Usage => return Err(failure),
            Err(failure) => {
                context.out.say(&failure.warning(context.out.paint));
                pause(&interrupts);
            }
        }
    }
}

/// Result of one attempt to supervise a trial.
enum Supervised {
    /// The trial has ended, as these words say.
    Ended(String),
    /// Another process controls the trial.
    Busy(CommandError),
    /// Something failed that may work later.
    Failed(CommandError),
}

fn attempt(
    context: &Context,
    id: &TrialId,
    interrupts: &Arc<Interrupts>,
) -> Result<Supervised, CommandError> {
    // Looked up before opening for writing, so that a missing history is not created.
    drop(trials::read_history(context)?);
    let mut history = trials::open_history(context)?;
    let trial = trials::trial(context, &history, &id.0)?;
    let plan = plan_of_trial(&trial)?;
    let label = trial.row.label.as_str();
    let task = TrialRun { trial: id, label, plan: &plan, how: RunMode::Supervise, detach: false, sample: 0 };
    Ok(match supervise(context, &mut history, &task, Arc::clone(interrupts))? {
        Ok(DriveOutcome::Ended { verdict, .. }) => {
            Supervised::Ended(format!("{label} {}", verdict_text(&verdict)))
        }
        Ok(DriveOutcome::Detached { .. }) => {
            Supervised::Ended(format!("{label} continues without this process"))
        }
        Err(error @ DriveError::Busy { .. }) => Supervised::Busy(drive_failure(&error, label)),
        Err(error) if is_final(&error) => return Err(drive_failure(&error, label)),
        Err(error) => Supervised::Failed(drive_failure(&error, label)),
    })
}

/// Returns `true` if trying again cannot help.
fn is_final(error: &DriveError) -> bool {
    match error {
        DriveError::Ledger(error) => error.is_gone(),
        DriveError::Superseded { .. }
        | DriveError::Removed(_)
        | DriveError::NothingRuns(_)
        | DriveError::Launched(_) => true,
        DriveError::Busy { .. }
        | DriveError::Audit { .. }
        | DriveError::Unreachable(_)
        | DriveError::Away { .. }
        | DriveError::Unread { .. }
        | DriveError::Folder { .. } => false,
    }
}

/// Waits before the next try; an interrupt shortens the wait.
fn pause(interrupts: &Interrupts) {
    let until = Instant::now() + RETRY_PAUSE;
    while Instant::now() < until && !interrupts.is_pending() {
        thread::sleep(Duration::from_millis(200));
    }
}

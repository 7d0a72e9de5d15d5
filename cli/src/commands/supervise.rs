//! `dtrain supervise`: the controller of a trial in the background.

use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::run_mode::{RunMode, TrialRun};
use crate::run_summary::verdict_text;
use crate::run_trial::{drive_failure, supervise};
use crate::trials::plan_of_trial;
use crate::{signals, supervisor, trials};
use dtrain_protocol::TrialId;
use dtrain_runner::driver::DriveOutcome;
use dtrain_runner::{DriveError, Interrupts};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Interval between two tries while another controller holds the trial.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time for which an earlier controller may still hold the trial.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Pause before a controller that could not do its work tries again.
const RETRY_PAUSE: Duration = Duration::from_secs(15);

/// Controls a trial until it ends. What it cannot do now, it tries again.
pub(crate) fn run(context: &Context, trial: &TrialId) -> CommandResult {
    supervisor::forget_allocator_options();
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
            Ok(Supervised::Busy(failure) | Supervised::Refused(failure)) => return Err(failure),
            // No trial or no history is there.
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
    /// Trying again cannot help, or would take the trial back from another machine.
    Refused(CommandError),
}

/// Supervises the trial once; `Err` if something failed that may work later.
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
        Err(error) if is_final(&error) => Supervised::Refused(drive_failure(&error, label)),
        Err(error) => return Err(drive_failure(&error, label)),
    })
}

/// Returns `true` if the trial is no longer that of a controller on this machine.
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

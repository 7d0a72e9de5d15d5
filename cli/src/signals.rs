//! Signals of the user and of the machine: Ctrl-C once stops cleanly, twice at once; a closed terminal leaves training alone.

use crate::command_error::{CommandError, ExitReason};
use dtrain_runner::Interrupts;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// What a Slurm job is sent when its time is nearly over.
pub(crate) const TIME_IS_OVER: i32 = SIGUSR1;

/// The signal that asked last to stop; 0 is none.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Counts SIGINT, SIGTERM and SIGUSR1 from here on. The third ends this program, whatever it waits for; SIGHUP does so too, and
/// leaves the trial to its agent.
pub(crate) fn listen() -> Result<Arc<Interrupts>, CommandError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, TIME_IS_OVER]).map_err(|error| {
        CommandError::new(ExitReason::Infrastructure, "cannot listen for Ctrl-C").cause(error.to_string())
    })?;
    let interrupts = Arc::new(Interrupts::default());
    let counted = Arc::clone(&interrupts);
    std::thread::spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                std::process::exit(ExitReason::Detached.exit_code().into());
            }
            LAST.store(signal, Ordering::SeqCst);
            counted.add();
            if counted.count() > 2 {
                std::process::exit(stop_exit().exit_code().into());
            }
        }
    });
    Ok(interrupts)
}

/// The signal that asked last to stop.
pub(crate) fn last_stop_signal() -> Option<i32> {
    Some(LAST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// How a command ends that was asked to stop: by the machine, or by the user.
pub(crate) fn stop_exit() -> ExitReason {
    match last_stop_signal() {
        Some(SIGTERM | TIME_IS_OVER) => ExitReason::Preempted,
        Some(_) | None => ExitReason::Interrupted,
    }
}

/// Makes a write beyond the file size limit an error, in place of the end of this process.
///
/// A signal that is noted, unlike one that is ignored, has its default action again in other programs that this one starts.
pub(crate) fn outlive_the_file_size_limit() {
    // Where it cannot be noted, everything is as it was.
    drop(signal_hook::flag::register(SIGXFSZ, Arc::default()));
}

/// Leaves SIGTERM to the agent: a scheduler sends it to every process, and a rank that ends by it has saved nothing.
pub(crate) fn leave_to_the_agent() {
    // Where it cannot be, the rank ends a little early.
    drop(signal_hook::flag::register(SIGTERM, Arc::default()));
}

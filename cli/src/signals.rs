//! Signals: the first Ctrl-C stops cleanly, the second at once; after SIGHUP (closed terminal) training
//! continues.

use crate::command_error::CommandError;
use crate::exit_code::ExitReason;
use dtrain_runner::Interrupts;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Signal that a Slurm job receives shortly before its time limit (SIGUSR1).
pub(crate) const TIME_IS_OVER: i32 = SIGUSR1;

/// Number of the last signal that requested a stop; 0 for none.
static LAST: AtomicI32 = AtomicI32::new(0);

/// Action at a SIGHUP, before this program ends.
static ON_HANGUP: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Sets the action at a SIGHUP (a closed terminal), before this program ends.
pub(crate) fn on_hangup(action: impl Fn() + Send + 'static) {
    *ON_HANGUP.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(action));
}

/// Counts SIGINT from now on, for a process without a terminal. SIGTERM ends it, since the trial can continue without
/// it; SIGHUP is ignored.
pub(crate) fn listen_in_background() -> Result<Arc<Interrupts>, CommandError> {
    let mut signals = Signals::new([SIGINT, SIGHUP]).map_err(cannot_listen)?;
    let interrupts = Arc::new(Interrupts::default());
    let counted = Arc::clone(&interrupts);
    std::thread::spawn(move || {
        for signal in &mut signals {
            if signal == SIGINT {
                counted.add();
            }
        }
    });
    Ok(interrupts)
}

fn cannot_listen(error: std::io::Error) -> CommandError {
    CommandError::new(ExitReason::Infrastructure, "cannot listen for Ctrl-C").cause(error.to_string())
}

/// Counts SIGINT, SIGTERM and SIGUSR1 from now on. The third one ends this program immediately, as does
/// SIGHUP, which leaves the trial to its agent.
pub(crate) fn listen() -> Result<Arc<Interrupts>, CommandError> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP, TIME_IS_OVER]).map_err(cannot_listen)?;
    let interrupts = Arc::new(Interrupts::default());
    let counted = Arc::clone(&interrupts);
    std::thread::spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                if let Some(action) = &*ON_HANGUP.lock().unwrap_or_else(PoisonError::into_inner) {
                    action();
                }
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

/// Returns the number of the last signal that requested a stop; `None` if there was none.
pub(crate) fn last_stop_signal() -> Option<i32> {
    Some(LAST.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

/// Returns the exit reason of a stopped command: preempted by the machine, or interrupted by the user.
pub(crate) fn stop_exit() -> ExitReason {
    match last_stop_signal() {
        Some(SIGTERM | TIME_IS_OVER) => ExitReason::Preempted,
        Some(_) | None => ExitReason::Interrupted,
    }
}

/// Turns a write beyond the file size limit (SIGXFSZ) into an error instead of the end of this process.
///
/// Uses a handler: unlike an ignored signal, it is reset to the default action in started programs.
pub(crate) fn outlive_the_file_size_limit() {
    // If registering fails, the default action stays.
    drop(signal_hook::flag::register(SIGXFSZ, Arc::default()));
}

/// Makes a rank ignore SIGTERM, which schedulers send to every process; its agent stops it after a
/// checkpoint.
pub(crate) fn leave_to_the_agent() {
    // If that fails, the rank ends a little early.
    drop(signal_hook::flag::register(SIGTERM, Arc::default()));
}

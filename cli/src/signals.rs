//! Signals of the user: Ctrl-C once stops cleanly, twice at once; a closed terminal leaves training alone.

use crate::failure::{Exit, Failure};
use dtrain_runner::Interrupts;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::Arc;

/// Counts SIGINT and SIGTERM from here on. The third ends this program, whatever it waits for; SIGHUP does
/// so too, and leaves the trial to its agent.
pub(crate) fn listen() -> Result<Arc<Interrupts>, Failure> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| {
        Failure::new(Exit::Infrastructure, "cannot listen for Ctrl-C").cause(error.to_string())
    })?;
    let interrupts = Arc::new(Interrupts::default());
    let counted = Arc::clone(&interrupts);
    std::thread::spawn(move || {
        for signal in &mut signals {
            if signal == SIGHUP {
                std::process::exit(Exit::Detached.code().into());
            }
            counted.add();
            if counted.count() > 2 {
                std::process::exit(Exit::Interrupted.code().into());
            }
        }
    });
    Ok(interrupts)
}

//! Runs the launcher in its own thread, so that the controller sees interrupts while it waits for hosts.

use super::TrialController;
use crate::driver::{DriveError, OnInterrupt};
use crate::launch::Launcher;
use crate::machine::TrialInput;
use crate::trial_event::ControllerStatus;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Interval between two checks for interrupts during a wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl TrialController<'_> {
    /// Runs a slow operation of the launcher. An interrupt ends it as soon as the launcher can; the caller
    /// then finds out how far the operation came. `Err` if a host reported meanwhile that another controller took over.
    pub(super) fn with_launcher<T: Send>(
        &mut self,
        work: impl FnOnce(&mut dyn Launcher) -> T + Send,
    ) -> Result<T, DriveError> {
        let mut launcher = self.launcher.take().expect("it is only away inside this function");
        let cancel = launcher.cancel();
        cancel.reset();
        let (sender, answer) = channel();
        let waited = thread::scope(|scope| {
            let working = &mut launcher;
            scope.spawn(move || drop(sender.send(work(working.as_mut()))));
            let mut failed = None;
            loop {
                match answer.recv_timeout(LOOK_EVERY) {
                    Ok(answer) => break failed.map_or(Ok(answer), Err),
                    Err(RecvTimeoutError::Timeout) if self.drive.interrupts.is_pending() => {
                        cancel.cancel();
                        failed = failed.or(self.handle_interrupt().err());
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => unreachable!("the work panicked"),
                }
            }
        });
        self.launcher = Some(launcher);
        self.end_if_superseded()?;
        waited
    }

    /// Handles an interrupt during a wait for a host, and reports it at once.
    fn handle_interrupt(&mut self) -> Result<(), DriveError> {
        self.drive.interrupts.acknowledge();
        self.is_cancelled = true;
        match self.drive.options.on_interrupt {
            OnInterrupt::Leave => {
                self.is_leaving = true;
                Ok(())
            }
            OnInterrupt::Stop => {
                self.inputs.push_back(TrialInput::Stop);
                self.show(ControllerStatus::Interrupted)
            }
        }
    }
}

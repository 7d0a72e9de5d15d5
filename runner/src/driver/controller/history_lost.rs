//! The stop of a trial whose history is gone: its progress could not be recorded, and no later controller
//! would know of it.

use super::{BEAT, TrialController};
use crate::control_protocol::STOP_GRACE_PERIOD;
use crate::driver::DriveError;
use crate::spool::SpoolRecord;
use crate::trial_event::{ControllerStatus, TrialEvent};
use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

impl TrialController<'_> {
    /// Stops the running attempt if `result` says that the history is gone; returns `result`.
    pub(super) fn stop_if_history_lost<T>(&mut self, result: Result<T, DriveError>) -> Result<T, DriveError> {
        if let Err(DriveError::Ledger(error)) = &result
            && error.is_gone()
        {
            self.stop_without_history();
        }
        result
    }

    fn stop_without_history(&mut self) {
        let Some(attempt) = self.machine.open_attempt() else { return };
        self.drive.observer.observe(&TrialEvent::Status(ControllerStatus::Stopping {
            attempt,
            killed_after_seconds: Some(STOP_GRACE_PERIOD.as_secs_f64()),
        }));
        self.send_stop();
        if !self.wait_for_end() {
            self.drive.observer.observe(&TrialEvent::Status(ControllerStatus::Killing { attempt }));
        }
        // A failed kill is not reported: the error is about the history.
        drop(self.with_launcher(|launcher| launcher.kill(attempt)));
    }

    /// Waits until the agent ends its attempt or is gone; returns `true` if that happens in time. An
    /// interrupt ends the wait.
    fn wait_for_end(&mut self) -> bool {
        let until = Instant::now() + STOP_GRACE_PERIOD;
        while let Some(link) = &self.link
            && Instant::now() < until
            && !self.drive.interrupts.is_pending()
        {
            match link.heard.recv_timeout(BEAT) {
                Ok(Ok((_, SpoolRecord::Over { .. }))) | Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    return true;
                }
                Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => {}
            }
        }
        false
    }
}

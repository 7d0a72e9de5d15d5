//! Fencing: hosts that were lost and come back run nothing of the attempts that went on without them.

use super::TrialController;
use crate::driver::DriveError;
use crate::launch::{FencedAgent, FencingReport, FinalFencing, KnownAttempts, lost_hosts};
use crate::trial_event::ControllerStatus;
use dtrain_protocol::AttemptId;

impl TrialController<'_> {
    /// Returns the attempt before which no attempt may be alive, if known.
    fn oldest_alive(&self) -> Option<AttemptId> {
        let known = KnownAttempts {
            connected: self.link.as_ref().map(|link| link.attempt),
            open: self.machine.open_attempt(),
            newest: self.machine.attempt(),
        };
        known.oldest_alive()
    }

    /// Ends older attempts on hosts that were lost and came back. Does not wait for hosts.
    pub(super) fn fence_returned(&mut self) -> Result<(), DriveError> {
        let before = self.oldest_alive();
        let (Some(launcher), Some(before)) = (&mut self.launcher, before) else { return Ok(()) };
        let Some(pool) = launcher.pool() else { return Ok(()) };
        for FencedAgent { host, attempt } in pool.fence_returned(before) {
            self.show(ControllerStatus::Fenced { host, attempt })?;
        }
        Ok(())
    }

    /// Ends what hosts still run of attempts that are over, before the trial ends, and names those that do not answer. To
    /// be called when all facts are stored.
    pub(in crate::driver) fn fence_at_end(&mut self) -> Result<(), DriveError> {
        let lost = lost_hosts(&self.drive.ledger.facts(self.drive.trial)?);
        let end = FinalFencing { last: self.machine.attempt(), lost };
        let report = self.with_launcher(|launcher| launcher.pool().map(|pool| pool.fence_at_end(&end)))?;
        let FencingReport { fenced, unanswered } = report.unwrap_or_default();
        for FencedAgent { host, attempt } in fenced {
            self.show(ControllerStatus::Fenced { host, attempt })?;
        }
        for host in unanswered {
            self.show(ControllerStatus::Unfenced { host })?;
        }
        Ok(())
    }
}

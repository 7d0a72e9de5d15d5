//! The claim of this controller on a trial of several hosts. A controller ends once another one has a newer claim.

use super::TrialController;
use crate::driver::DriveError;
use crate::launch::{ControllerClaim, HostPool};
use dtrain_protocol::Failure;

impl TrialController<'_> {
    fn pool(&mut self) -> Option<&mut dyn HostPool> {
        self.launcher.as_mut().expect("no wait is under way").pool()
    }

    /// Claims the trial on its hosts.
    pub(super) fn claim(&mut self) -> Result<(), DriveError> {
        if self.pool().is_none() {
            return Ok(());
        }
        self.with_launcher(|launcher| launcher.pool().map(HostPool::claim)).map(drop)
    }

    /// Asks the hosts of the attempt for newer claims, now and then. `Err` if one of them has reported one. Does not wait
    /// for hosts.
    pub(super) fn poll_claims(&mut self) -> Result<(), DriveError> {
        if let Some(pool) = self.pool() {
            pool.poll_claims();
        }
        self.end_if_superseded()
    }

    /// Returns `Err` if a host has reported a newer claim.
    pub(super) fn end_if_superseded(&mut self) -> Result<(), DriveError> {
        match self.pool().and_then(|pool| pool.newer_claim()) {
            Some(newer) => {
                // Found by viewers that wait for the end of this controller.
                drop(newer.store(&self.folder));
                let ControllerClaim { host, process, .. } = newer;
                Err(DriveError::Superseded { trial: self.trial(), host, process })
            }
            None => Ok(()),
        }
    }

    /// Asks the hosts of an attempt that was lost to `failure` for newer claims, before the loss is recorded: another
    /// controller may have ended the attempt.
    pub(super) fn end_if_lost_to_another_controller(&mut self, failure: &Failure) -> Result<(), DriveError> {
        if self.pool().is_none() {
            return Ok(());
        }
        if let Failure::HostLost { host, .. } | Failure::HostLeft { host: Some(host), .. } = failure {
            self.suspect(host);
        }
        self.with_launcher(|launcher| launcher.pool().map(HostPool::ask_for_claims)).map(drop)
    }
}

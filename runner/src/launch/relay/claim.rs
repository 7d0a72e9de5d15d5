//! The claims of controllers in requests and replies.

use super::client::unexpected_reply;
use super::{RemoteHost, Reply, Request};
use crate::controller_claim::{ControllerClaim, HeldClaim};
use dtrain_protocol::TrialId;

impl Request {
    /// Returns the trial and the claim of a request that a host refuses if it has a newer claim; `None` if the request
    /// is carried out in any case.
    pub(crate) fn claim(&self) -> Option<(&TrialId, &ControllerClaim)> {
        match self {
            Self::Lead { order, claim } => Some((&order.trial, claim.as_ref()?)),
            Self::Follow { order, claim } => Some((&order.trial, claim.as_ref()?)),
            Self::Fence { trial, claim, .. } | Self::Kill { trial, claim, .. } => {
                Some((trial, claim.as_ref()?))
            }
            _ => None,
        }
    }
}

impl RemoteHost {
    /// Makes `claim` the one that the requests to this host carry, and that takes note of newer ones.
    pub(in crate::launch) fn claiming(mut self, claim: &HeldClaim) -> Self {
        self.claim = claim.clone();
        self
    }

    /// Gives the host the claim of this controller, if it has one, and asks for the newest claim.
    pub(in crate::launch) fn newest_claim(
        &mut self,
        trial: &TrialId,
    ) -> Result<Option<ControllerClaim>, String> {
        match self.ask(&Request::Claim { trial: trial.clone(), claim: self.claim.own() })? {
            Reply::Claim(newest) => {
                newest.iter().for_each(|newest| self.claim.observe(newest));
                Ok(newest)
            }
            other => Err(unexpected_reply(&other)),
        }
    }

    /// Returns a reply; `Err` if it is that another controller took over, which is noted.
    pub(super) fn unless_superseded(&self, reply: Reply) -> Result<Reply, String> {
        match reply {
            Reply::Superseded(newer) => {
                self.claim.observe(&newer);
                let ControllerClaim { host, process, .. } = newer;
                Err(format!("another controller, process {process} on {host}, took over"))
            }
            reply => Ok(reply),
        }
    }
}

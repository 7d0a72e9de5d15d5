//! The newest claim of a controller on a trial, as this host keeps it.

use crate::control_protocol::LaunchError;
use crate::controller_claim::ControllerClaim;
use crate::home::{Home, TrialFolder};
use crate::launch::relay::{Reply, Request};
use dtrain_protocol::TrialId;

/// Stores the claim that a request carries; returns the refusal of the request if a newer claim is here.
///
/// `make_trial_folder` creates the trial's folder before a launch, so that it can hold the claim.
pub(super) fn refusal(
    request: &Request,
    home: &Home,
    make_trial_folder: impl Fn(&TrialId) -> Result<(), LaunchError>,
) -> Option<Reply> {
    let (trial, claim) = request.claim()?;
    if matches!(request, Request::Lead { .. } | Request::Follow { .. }) {
        // The launch itself reports a failure.
        drop(make_trial_folder(trial));
    }
    // A host that cannot store a claim, such as one whose disk is full, must still be able to end its ranks.
    let newest = claim.store(&home.trial(trial)).ok()?;
    (newest > *claim).then_some(Reply::Superseded(newest))
}

/// Stores `claim`, if one is given; returns the newest claim on the trial.
pub(super) fn newest(
    trial: &TrialFolder,
    claim: Option<&ControllerClaim>,
) -> Result<Option<ControllerClaim>, String> {
    let newest = match claim {
        Some(claim) => claim.store(trial).map(Some),
        None => ControllerClaim::read(trial),
    };
    newest.map_err(|error| format!("{}: {error}", trial.claim().display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::AttemptId;

    #[test]
    fn a_request_of_a_controller_is_refused_once_another_has_claimed_the_trial() {
        let root = tempfile::tempdir().expect("a folder");
        let (home, trial) = (Home::at(root.path()), TrialId("01T".into()));
        home.trial(&trial).create().expect("room on disk");
        let claim = |epoch| ControllerClaim { epoch, host: "a".into(), process: 1 };
        let refused = |request: &Request| match refusal(request, &home, |_| Ok(())) {
            Some(Reply::Superseded(newer)) => Some(newer.epoch),
            Some(other) => panic!("{other:?}"),
            None => None,
        };
        let attempt = AttemptId(1);
        let kill = |epoch| Request::Kill { trial: trial.clone(), attempt, claim: Some(claim(epoch)) };
        let fence = |claim| Request::Fence { trial: trial.clone(), attempt, claim };
        assert_eq!((refused(&kill(1)), refused(&fence(Some(claim(1))))), (None, None));
        assert_eq!(refused(&kill(2)), None, "the host keeps it");
        assert_eq!((refused(&kill(1)), refused(&fence(Some(claim(1))))), (Some(2), Some(2)));
        assert_eq!(refused(&fence(None)), None, "a user may fence");
        assert_eq!(newest(&home.trial(&trial), None), Ok(Some(claim(2))));
        assert_eq!(newest(&home.trial(&trial), Some(&claim(3))), Ok(Some(claim(3))));
        assert_eq!(refused(&kill(2)), Some(3));
    }
}

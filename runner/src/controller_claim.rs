//! Claims of controllers on a trial of several hosts: of two controllers with copies of one history, the later one wins.

use crate::durable;
use crate::files;
use crate::home::TrialFolder;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A controller's claim on a trial, which every host of the trial keeps.
///
/// A greater claim is newer. Host and process decide between two controllers that claim at the same time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ControllerClaim {
    /// One more than the highest epoch that the controller found when it took over.
    pub epoch: u64,
    /// Name of the controller's machine.
    pub host: String,
    /// Process id of the controller.
    pub process: u32,
}

impl ControllerClaim {
    /// Creates a claim of this process that is newer than those in `known`.
    pub(crate) fn newer_than(known: impl IntoIterator<Item = Self>) -> Self {
        let highest = known.into_iter().map(|claim| claim.epoch).max().unwrap_or(0);
        Self { epoch: highest.saturating_add(1), host: this_machine(), process: std::process::id() }
    }

    /// Returns `true` if the claim is that of a controller on another machine.
    pub(crate) fn is_of_another_machine(&self) -> bool {
        self.host != this_machine()
    }

    /// Reads the newest claim on the trial in `folder`. A damaged file counts as none.
    pub(crate) fn read(folder: &TrialFolder) -> io::Result<Option<Self>> {
        match files::read(&folder.claim()) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores this claim durably in `folder` unless a newer one is there; returns the newest. Nothing is stored if the
    /// trial has no folder.
    pub(crate) fn store(&self, folder: &TrialFolder) -> io::Result<Self> {
        if !folder.path().is_dir() {
            return Ok(self.clone());
        }
        // Released when the file is closed. Another controller's relay may store its claim at the same time.
        let lock = files::append(&folder.claim_lock())?;
        flock(&lock, FlockOperation::LockExclusive)?;
        match Self::read(folder)? {
            Some(stored) if stored >= *self => Ok(stored),
            Some(_) | None => {
                let bytes = serde_json::to_vec(self).map_err(io::Error::other)?;
                durable::atomic_write(&folder.claim(), &bytes)?;
                Ok(self.clone())
            }
        }
    }
}

/// Returns the name of this machine.
fn this_machine() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// The claim of this controller, and the newest one of another controller that a host reported. Clones share their
/// state.
#[derive(Clone, Debug, Default)]
pub(crate) struct HeldClaim(Arc<Mutex<ReportedClaims>>);

#[derive(Debug, Default)]
struct ReportedClaims {
    own: Option<ControllerClaim>,
    newer: Option<ControllerClaim>,
}

impl HeldClaim {
    /// Makes `claim` the one of this controller.
    pub(crate) fn set(&self, claim: ControllerClaim) {
        *self.lock() = ReportedClaims { own: Some(claim), newer: None };
    }

    /// Returns the claim of this controller; `None` before it has claimed the trial.
    pub(crate) fn own(&self) -> Option<ControllerClaim> {
        self.lock().own.clone()
    }

    /// Returns the claim of the controller that took over from this one, if a host reported one.
    pub(crate) fn newer(&self) -> Option<ControllerClaim> {
        self.lock().newer.clone()
    }

    /// Takes note of a claim that a host reported.
    pub(crate) fn observe(&self, reported: &ControllerClaim) {
        let mut claims = self.lock();
        let is_newer = |than: &Option<ControllerClaim>| than.as_ref().is_none_or(|claim| reported > claim);
        if claims.own.is_some() && is_newer(&claims.own) && is_newer(&claims.newer) {
            claims.newer = Some(reported.clone());
        }
    }

    fn lock(&self) -> MutexGuard<'_, ReportedClaims> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn claim(epoch: u64, host: &str, process: u32) -> ControllerClaim {
        ControllerClaim { epoch, host: host.into(), process }
    }

    fn folder() -> (tempfile::TempDir, TrialFolder) {
        let root = tempfile::tempdir().expect("a folder");
        let folder = TrialFolder::at(root.path().join("trial"));
        folder.create().expect("room on disk");
        (root, folder)
    }

    #[test]
    fn a_later_claim_is_newer_and_of_two_at_the_same_time_one_is() {
        assert!(claim(2, "a", 1) > claim(1, "b", 9));
        assert!(claim(1, "b", 1) > claim(1, "a", 9));
        assert!(claim(1, "a", 2) > claim(1, "a", 1));
        assert_eq!(ControllerClaim::newer_than([]).epoch, 1);
        let next = ControllerClaim::newer_than([claim(4, "a", 1), claim(7, "b", 1), claim(5, "c", 1)]);
        assert_eq!((next.epoch, next.process), (8, std::process::id()));
        assert!(!next.host.is_empty(), "messages name it");
        assert!(!next.is_of_another_machine() && claim(1, "another machine", 1).is_of_another_machine());
    }

    #[test]
    fn a_host_keeps_the_newest_claim() {
        let (_root, folder) = folder();
        assert_eq!(ControllerClaim::read(&folder).expect("readable"), None);
        let (first, second) = (claim(1, "b", 7), claim(2, "a", 8));
        assert_eq!(first.store(&folder).expect("room on disk"), first);
        assert_eq!(second.store(&folder).expect("room on disk"), second);
        assert_eq!(first.store(&folder).expect("room on disk"), second, "the older one is refused");
        assert_eq!(ControllerClaim::read(&folder).expect("readable"), Some(second));
        fs::write(folder.claim(), "{").expect("room on disk");
        assert_eq!(first.store(&folder).expect("room on disk"), first, "a damaged one is replaced");
    }

    #[test]
    fn a_claim_on_a_trial_without_a_folder_leaves_nothing() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = TrialFolder::at(root.path().join("trial"));
        assert_eq!(claim(1, "a", 1).store(&folder).expect("nothing to do"), claim(1, "a", 1));
        assert!(!folder.path().exists());
    }

    #[test]
    fn of_many_claims_at_the_same_time_the_newest_is_kept() {
        let (_root, folder) = folder();
        let all: Vec<_> = (0..16).map(|process| claim(1, "a", process)).collect();
        let kept: Vec<_> = thread::scope(|scope| {
            let store = |claim: &ControllerClaim| claim.store(&folder).expect("room on disk");
            let stored: Vec<_> = all.iter().map(|claim| scope.spawn(move || store(claim))).collect();
            stored.into_iter().map(|stored| stored.join().expect("it does not panic")).collect()
        });
        let newest = claim(1, "a", 15);
        assert_eq!(ControllerClaim::read(&folder).expect("readable"), Some(newest.clone()));
        assert!(all.iter().zip(&kept).all(|(claim, kept)| kept >= claim && *kept <= newest), "{kept:?}");
    }

    #[test]
    fn only_a_newer_claim_than_the_own_one_ends_a_controller() {
        let held = HeldClaim::default();
        held.observe(&claim(9, "a", 1));
        assert_eq!(held.newer(), None, "nothing is claimed yet");
        held.set(claim(2, "b", 2));
        held.observe(&claim(2, "b", 2));
        held.observe(&claim(2, "a", 3));
        assert_eq!(held.newer(), None);
        held.clone().observe(&claim(4, "a", 1));
        held.observe(&claim(3, "c", 1));
        assert_eq!(held.newer(), Some(claim(4, "a", 1)));
    }
}

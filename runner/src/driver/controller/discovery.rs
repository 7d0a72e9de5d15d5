//! Search of the disks before a launch: the hosts that answer, and the checkpoints on them that no record mentions.

use super::TrialController;
use crate::driver::DriveError;
use crate::launch::{AvailableHosts, DiskSearch, Launcher};
use crate::machine::TrialInput;
use dtrain_protocol::{AttemptId, StepId};
use std::path::{Path, PathBuf};

/// Number of times that the hosts are searched if one of them answers and does not list its checkpoints.
const SEARCHES: u32 = 3;

impl TrialController<'_> {
    /// Searches the disks of the reachable hosts for checkpoints that no record mentions.
    pub(super) fn discover_checkpoints(&mut self) -> Result<(), DriveError> {
        self.inputs.retain(|input| !input.is_from_discovery());
        let (folder, machine) = (self.folder.clone(), self.machine.clone());
        let folder = |attempt, step| folder.checkpoint(step, attempt);
        let is_wanted = |attempt, step| machine.would_adopt(attempt, step, &folder(attempt, step));
        let known: Vec<PathBuf> = self.machine.checkpoint_folders().map(Path::to_owned).collect();
        let (usable, found, missing) = self.with_launcher(move |launcher| {
            let missing: Vec<PathBuf> =
                known.into_iter().filter(|folder| launcher.is_missing(folder)).collect();
            let (usable, found) = search_hosts(launcher, &is_wanted);
            (usable, found, missing)
        })?;
        let found = found.into_iter();
        let found =
            found.map(|(attempt, step)| TrialInput::Found { attempt, step, folder: folder(attempt, step) });
        if self.is_leaving {
            // No attempt follows; the next resume searches again.
            return Ok(());
        }
        self.usable = Some(usable);
        self.inputs.extend(missing.into_iter().map(|folder| TrialInput::Missing { folder }));
        self.inputs.extend(found);
        self.inputs.push_back(TrialInput::DiscoveryDone);
        Ok(())
    }
}

/// Asks which hosts answer, and searches them for complete checkpoints. A host that does not list its checkpoints may
/// have the newest one, so all are searched again. In the end, it counts as one that does not answer.
fn search_hosts(
    launcher: &mut dyn Launcher,
    is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync),
) -> (AvailableHosts, Vec<(AttemptId, StepId)>) {
    let mut searches = 0;
    loop {
        searches += 1;
        let mut usable = AvailableHosts::of(launcher);
        let DiskSearch { complete, silent } = launcher.complete_checkpoints(is_wanted);
        if silent.is_empty() || searches == SEARCHES {
            usable.set_aside(&silent);
            return (usable, complete);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_protocol::{AgentCard, AgentOrder, LaunchError};
    use crate::launch::{AgentContact, CancellationToken, CheckpointPlacement, HostPool, SpoolUnreadable};
    use std::io::Read;

    /// A launcher of one host, which lists its checkpoint at the search with this number.
    struct SlowDisk {
        lists_at: u32,
        searches: u32,
    }

    impl CheckpointPlacement for SlowDisk {
        fn complete_checkpoints(&mut self, _: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> DiskSearch {
            self.searches += 1;
            let lists = self.searches >= self.lists_at;
            let complete = lists.then_some((AttemptId(1), StepId(7))).into_iter().collect();
            DiskSearch { complete, silent: (!lists).then(|| "node1".to_owned()).into_iter().collect() }
        }

        fn is_missing(&self, _: &Path) -> bool {
            false
        }

        fn verify(&mut self, _: &Path) -> Result<(), String> {
            Ok(())
        }
    }

    impl Launcher for SlowDisk {
        fn cancel(&self) -> CancellationToken {
            CancellationToken::default()
        }

        fn pool(&mut self) -> Option<&mut dyn HostPool> {
            None
        }

        fn launch(&mut self, _: &AgentOrder) -> Result<AgentCard, LaunchError> {
            unreachable!("nothing is launched here")
        }

        fn reach(&mut self, _: AttemptId, _: u64) -> AgentContact {
            AgentContact::Gone
        }

        fn is_responsive(&mut self, _: AttemptId) -> bool {
            false
        }

        fn spool_remainder(&mut self, _: AttemptId, _: u64) -> Result<Box<dyn Read + Send>, SpoolUnreadable> {
            unreachable!("no attempt was launched")
        }

        fn kill(&mut self, _: AttemptId) -> bool {
            true
        }
    }

    #[test]
    fn a_host_that_does_not_list_its_checkpoints_is_asked_again_and_not_taken_for_empty() {
        let search = |lists_at| {
            let mut launcher = SlowDisk { lists_at, searches: 0 };
            let (usable, found) = search_hosts(&mut launcher, &|_, _| true);
            (usable.hosts, found.len(), usable.away.len(), launcher.searches)
        };
        assert_eq!(search(1), (1, 1, 0, 1));
        assert_eq!(search(2), (1, 1, 0, 2), "the checkpoint is found at the second search");
        assert_eq!(search(9), (0, 0, 1, SEARCHES), "it counts as a host that does not answer");
    }
}

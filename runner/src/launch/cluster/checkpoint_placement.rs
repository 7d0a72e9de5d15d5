//! The checkpoints of a trial on several hosts: their locations, and the copy of an adopted one to the
//! leader's host.

use super::super::relay::{RemoteHost, RemoteStore};
use super::super::timeouts::{ANSWER_TIMEOUT, LAUNCH_TIMEOUT, MANIFEST_TIMEOUT};
use super::super::{CheckpointPlacement, DiskSearch, LocalLauncher};
use super::ClusterLauncher;
use crate::checkpoints::{self, CheckpointStore, FolderListing, Inventory, read_manifest};
use crate::control_protocol::{AgentOrder, LaunchError};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, StepId};
use std::path::Path;

impl ClusterLauncher {
    /// Copies the checkpoint to resume from to the leader's host if it is on this machine, as an adopted one
    /// of another trial is. The other hosts get it from there.
    pub(super) fn put_checkpoint(&self, order: &AgentOrder) -> Result<(), LaunchError> {
        let point = order.assignments.first().and_then(|assignment| assignment.resume.as_ref());
        let name = point.and_then(|point| point.folder.file_name());
        let Some(own) = name.map(|name| self.folder.checkpoints().join(name)) else { return Ok(()) };
        if self.shared.is_some() || checkpoints::verify(&own).is_err() {
            return Ok(());
        }
        let trial = self.trial.clone();
        let put = self.leader().ask(move |leader| leader.put_checkpoint(&trial, &own));
        put.answer(LAUNCH_TIMEOUT).map_err(|reason| LaunchError::because_of(&self.leader().name, &reason))
    }
}

impl CheckpointPlacement for ClusterLauncher {
    fn complete_checkpoints(&mut self, is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> DiskSearch {
        if let Some(home) = &self.shared {
            return LocalLauncher::new(&home.trial(&self.trial)).complete_checkpoints(is_wanted);
        }
        let trial = self.trial.clone();
        let folders =
            self.ask_all(&self.usable, ANSWER_TIMEOUT, move |host| RemoteStore::new(host, &trial).folders());
        let (mut listed, mut listing, mut silent) = (Vec::new(), Vec::new(), Vec::new());
        for (host, folders) in self.usable.iter().zip(folders) {
            match folders {
                Ok(folders) => {
                    listed.push(folders);
                    listing.push(*host);
                }
                Err(_) => silent.push(self.name(*host).to_owned()),
            }
        }
        self.usable = listing;
        let inventory = Inventory::of(listed);
        let contents = |index: usize, folder: &FolderListing| {
            let (trial, folder) = (self.trial.clone(), folder.clone());
            let read =
                move |host: &mut RemoteHost| read_manifest(&mut RemoteStore::new(host, &trial), &folder);
            Ok(self.hosts[self.usable[index]].ask(read).answer(MANIFEST_TIMEOUT)?.1)
        };
        let found = inventory.names().into_iter().filter_map(|name| {
            let (step, attempt) = parse_folder_name(&name)?;
            (is_wanted(attempt, step) && inventory.is_whole(&name, contents).is_ok())
                .then_some((attempt, step))
        });
        DiskSearch { complete: found.collect(), silent }
    }

    /// Always `false`: the folder may be on a host that does not answer.
    fn is_missing(&self, _folder: &Path) -> bool {
        false
    }

    /// Verifies the checkpoint if all hosts share it. Hosts with their own folders verify it when they fetch
    /// its parts.
    fn verify(&mut self, folder: &Path) -> Result<(), String> {
        if self.shared.is_some() { checkpoints::verify(folder).map(drop) } else { Ok(()) }
    }
}

//! Simulated fetches of checkpoint files between machines.

use super::World;
use super::disk::{CheckpointId, RankFileSet};
use super::network::Endpoint;
use super::reports::machine_at;
use crate::agent::messages::FetchRefusal;
use crate::control_protocol::{LaunchError, PeerAddress};
use crate::fault_attribution::unfetched;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, FileEntry};

impl World<'_> {
    /// Fetches missing files of a checkpoint from machines that have them.
    pub(super) fn fetch(
        &mut self,
        machine: usize,
        folder: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
    ) -> Result<(), FetchRefusal> {
        let name = name_of(folder)?;
        for (file, peers) in files {
            let rank = rank_of(file)?;
            if !self.has_file(machine, name, rank) {
                self.get(machine, name, rank, peers)?;
                self.places[machine].disk.write(name, rank);
            }
        }
        Ok(())
    }

    /// Fetches the parts of a checkpoint that a machine's ranks read, which are in every file.
    pub(super) fn fetch_parts(
        &mut self,
        machine: usize,
        folder: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
    ) -> Result<(), FetchRefusal> {
        let name = name_of(folder)?;
        for (file, peers) in files {
            let rank = rank_of(file)?;
            let is_here =
                self.places[machine].disk.parts.get(&name).is_some_and(|parts| parts.contains(rank));
            if !is_here && !self.has_file(machine, name, rank) {
                self.get(machine, name, rank, peers)?;
                self.reached.note("fetched in parts");
                self.places[machine].disk.parts.entry(name).or_default().insert(rank);
            }
        }
        Ok(())
    }

    /// Returns `true` if a machine has the whole file of a rank.
    fn has_file(&self, machine: usize, name: CheckpointId, rank: u32) -> bool {
        let copy = self.places[machine].disk.checkpoints().get(&name);
        copy.is_some_and(|copy| copy.files.contains(rank))
    }

    /// Checks that a reachable machine has the file of a rank, so that it can be fetched.
    fn get(
        &self,
        machine: usize,
        name: CheckpointId,
        rank: u32,
        peers: &[PeerAddress],
    ) -> Result<(), FetchRefusal> {
        let mut machines = peers.iter().filter_map(|peer| machine_at(&peer.address));
        let (here, there) = (Endpoint::Machine(machine), Endpoint::Machine);
        if machines.any(|peer| self.talk(here, there(peer)) && self.has_file(peer, name, rank)) {
            return Ok(());
        }
        let reason = format!("no host gives {}", RankFileSet::name(rank));
        let error = if peers.is_empty() { LaunchError::Checkpoint(reason) } else { unfetched(peers, reason) };
        Err(error.into())
    }

    /// Checks that ranks start only where all files that they read are present.
    pub(super) fn has_what_it_reads(&mut self, attempt: AttemptId, machine: usize) {
        let agent = self.agents.get(&(attempt, machine));
        let Some(folder) = agent.and_then(|agent| agent.resume.as_deref()) else { return };
        let Ok(name) = name_of(folder) else { return };
        let Some(read) = self.files_of(name) else { return };
        let disk = &self.places[machine].disk;
        let mut there = disk.parts.get(&name).cloned().unwrap_or_default();
        if let Some(copy) = disk.checkpoints().get(&name) {
            there.extend(&copy.files);
        }
        if let Some(file) = read.without(&there).names().first() {
            self.breaks(|| {
                format!("ranks are started where all is that they read: no {file} on machine {machine}")
            });
        }
    }
}

/// Parses the name of a checkpoint folder.
fn name_of(folder: &str) -> Result<CheckpointId, FetchRefusal> {
    let refusal = || LaunchError::Checkpoint("no checkpoint".to_owned()).into();
    parse_folder_name(folder).map(|(step, attempt)| (attempt, step)).ok_or_else(refusal)
}

/// Returns the rank that wrote a checkpoint file.
fn rank_of(file: &FileEntry) -> Result<u32, FetchRefusal> {
    let refusal = || LaunchError::Checkpoint(format!("no file {}", file.name)).into();
    RankFileSet::rank(&file.name).ok_or_else(refusal)
}

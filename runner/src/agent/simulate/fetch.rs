//! How files of checkpoints come from one machine to another.

use super::World;
use super::network::Node;
use crate::agent::messages::Refusal;
use crate::agent::peers::PeerAddress;
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, FileEntry};

impl World<'_> {
    /// Fetches files that are not here from machines that have them.
    pub(super) fn fetch(
        &mut self,
        machine: usize,
        folder: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
    ) -> Result<(), Refusal> {
        let Some((step, attempt)) = parse_folder_name(folder) else {
            return Err(Refusal { reason: "no checkpoint".to_owned(), is_of_checkpoint: true });
        };
        for (file, peers) in files {
            if !self.has_file(machine, folder, &file.name) {
                self.get(machine, folder, file, peers)?;
                self.places[machine].disk.write(attempt, step, file.name.clone());
            }
        }
        Ok(())
    }

    /// Fetches for the ranks of a machine what they read, which is something of every file.
    pub(super) fn fetch_parts(
        &mut self,
        machine: usize,
        folder: &str,
        files: &[(FileEntry, Vec<PeerAddress>)],
    ) -> Result<(), Refusal> {
        for (file, peers) in files {
            let parts = self.places[machine].disk.parts.get(folder);
            let is_here = parts.is_some_and(|parts| parts.contains(&file.name));
            if !is_here && !self.has_file(machine, folder, &file.name) {
                self.get(machine, folder, file, peers)?;
                self.reached.note("fetched in parts");
                let parts = self.places[machine].disk.parts.entry(folder.to_owned()).or_default();
                parts.insert(file.name.clone());
            }
        }
        Ok(())
    }

    /// Whether a file of a checkpoint lies on a machine, whole.
    fn has_file(&self, machine: usize, folder: &str, file: &str) -> bool {
        self.places[machine].disk.named(folder).is_some_and(|copy| copy.files.contains(file))
    }

    /// Gets a file from a machine that has it.
    fn get(
        &self,
        machine: usize,
        folder: &str,
        file: &FileEntry,
        peers: &[PeerAddress],
    ) -> Result<(), Refusal> {
        let mut peers = peers.iter().filter_map(|peer| peer.address.parse::<usize>().ok()).peekable();
        let is_of_checkpoint = peers.peek().is_none();
        let (here, there) = (Node::Machine(machine), Node::Machine);
        let gives = |peer: usize| self.talk(here, there(peer)) && self.has_file(peer, folder, &file.name);
        if peers.any(gives) {
            return Ok(());
        }
        Err(Refusal { reason: format!("no host gives {}", file.name), is_of_checkpoint })
    }

    /// Ranks are started where all is that they read.
    pub(super) fn has_what_it_reads(&mut self, attempt: AttemptId, machine: usize) {
        let agent = self.agents.get(&(attempt, machine));
        let Some(folder) = agent.and_then(|agent| agent.resume.clone()) else { return };
        let disks = self.places.iter().filter_map(|place| place.disk.named(&folder));
        let Some(manifest) = disks.map(|copy| copy.manifest.clone()).find(|text| !text.is_empty()) else {
            return;
        };
        let Ok(manifest) = serde_json::from_str::<dtrain_protocol::Manifest>(&manifest) else { return };
        let parts = self.places[machine].disk.parts.get(&folder).cloned().unwrap_or_default();
        let lacks =
            |file: &&FileEntry| !parts.contains(&file.name) && !self.has_file(machine, &folder, &file.name);
        let lacking = manifest.files.iter().find(lacks).map(|file| file.name.clone());
        if let Some(file) = lacking {
            self.breaks(|| {
                format!("ranks are started where all is that they read: no {file} on machine {machine}")
            });
        }
    }
}

//! Inventory of a trial's checkpoints: which stores hold which of their files.

use super::{COMMIT, CheckpointStore, FolderListing, MANIFEST, PARTIAL};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, Manifest, StepId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 1 << 30;

/// Inventory of the checkpoint folders of a trial in all stores.
#[derive(Debug)]
pub struct Inventory {
    /// Checkpoint folders of each store; empty for a store that did not answer.
    folders: Vec<Vec<FolderListing>>,
    /// Names of the stores that did not answer, each with the reason.
    pub away: Vec<(String, String)>,
}

/// One checkpoint of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointInfo {
    /// Name of the checkpoint's folder, without `.partial`.
    pub name: String,
    /// Training steps completed when the checkpoint was saved.
    pub step: u64,
    /// Number of the attempt that wrote the checkpoint.
    pub attempt: u64,
    /// State of the checkpoint's files: committed, damaged, refused or partial.
    pub state: State,
    /// Reason why the checkpoint cannot be used, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Size of the checkpoint in bytes; a file that several stores hold counts once.
    pub bytes: u64,
    /// Time of the last change to the checkpoint, in milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Stores that hold files of the checkpoint.
    pub places: Vec<StoredFiles>,
}

/// State of a checkpoint, as far as it is known without reading all of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All ranks saved their part, and every file has its full length.
    Committed,
    /// The checkpoint was committed, but a file is missing or differs from the committed one.
    Damaged,
    /// The checkpoint could not be read on resume and is no longer used.
    Refused,
    /// The checkpoint is being written, or its attempt ended before the commit.
    Partial,
}

/// Files of a checkpoint in one store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredFiles {
    /// Name of the store.
    pub holder: String,
    /// Number of the checkpoint's files in the store.
    pub files: usize,
    /// Total size of the checkpoint's files in the store, in bytes.
    pub bytes: u64,
}

impl Inventory {
    /// Lists the checkpoint folders of all stores. `Err` if none of them answered.
    pub fn collect(holders: &mut [Box<dyn CheckpointStore + '_>]) -> Result<Self, String> {
        let (mut folders, mut away) = (Vec::new(), Vec::new());
        for holder in holders.iter_mut() {
            let found = holder.folders().unwrap_or_else(|reason| {
                away.push((holder.name().to_owned(), reason));
                Vec::new()
            });
            folders.push(found);
        }
        if away.len() == holders.len() {
            let reasons: Vec<_> = away.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
            return Err(reasons.join("; "));
        }
        Ok(Self { folders, away })
    }

    /// Builds an inventory from the checkpoint folders of each store.
    pub(crate) fn of(folders: Vec<Vec<FolderListing>>) -> Self {
        Self { folders, away: Vec::new() }
    }

    /// Checks that a checkpoint was committed and that every file is in some store with its full length.
    /// `table` returns the manifest that a store, given by its index, has in a folder.
    pub(crate) fn is_whole(
        &self,
        name: &str,
        table: impl Fn(usize, &FolderListing) -> Result<Manifest, String>,
    ) -> Result<(), String> {
        if self.is_committed(name) {
            check_completeness(&self.copies_of(name), table)
        } else {
            Err(format!("{name} was not committed"))
        }
    }

    /// Returns the names of all checkpoints, oldest first: by attempt, then by step.
    pub fn names(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.folders.iter().flatten().map(checkpoint).collect();
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| parse_folder_name(name).map(|(step, attempt)| (attempt, step)));
        names
    }

    /// Returns `true` if any store has committed the checkpoint.
    pub fn is_committed(&self, name: &str) -> bool {
        self.folders.iter().flatten().any(|folder| folder.name == name)
    }

    /// Returns all folders that hold files of a checkpoint, each with the index of its store. A store whose
    /// commit was interrupted has all files under the partial name.
    pub(super) fn copies_of(&self, name: &str) -> Vec<(usize, FolderListing)> {
        let of = |(index, folders): (usize, &Vec<FolderListing>)| {
            let folder = folders.iter().find(|folder| folder.name == name);
            let folder = folder.or_else(|| folders.iter().find(|folder| checkpoint(folder) == name));
            folder.map(|folder| (index, folder.clone()))
        };
        self.folders.iter().enumerate().filter_map(of).collect()
    }

    /// Lists all checkpoints, oldest first. `refused` names those that no longer count, each with the reason.
    pub fn list(
        &self,
        holders: &mut [Box<dyn CheckpointStore + '_>],
        refused: &BTreeMap<String, String>,
    ) -> Vec<CheckpointInfo> {
        let names = self.names();
        names.iter().map(|name| self.listed(name, holders, refused.get(name).cloned())).collect()
    }

    fn listed(
        &self,
        name: &str,
        holders: &mut [Box<dyn CheckpointStore + '_>],
        refused: Option<String>,
    ) -> CheckpointInfo {
        let held = self.copies_of(name);
        let mut files: BTreeMap<&str, u64> = BTreeMap::new();
        for (file, bytes) in held.iter().flat_map(|(_, folder)| &folder.files) {
            let most = files.entry(file).or_default();
            *most = (*bytes).max(*most);
        }
        let place = |(index, folder): &(usize, FolderListing)| StoredFiles {
            holder: holders[*index].name().to_owned(),
            files: folder.files.len(),
            bytes: folder.files.values().sum(),
        };
        let places = held.iter().map(place).collect();
        let (state, reason) = match refused {
            Some(reason) => (State::Refused, Some(reason)),
            None if !self.is_committed(name) => (State::Partial, None),
            None => match check_completeness(&held, |index, folder| {
                let holder = &mut holders[index];
                let found = read_manifest(&mut **holder, folder);
                found.map(|(_, manifest)| manifest).map_err(|reason| format!("{}: {reason}", holder.name()))
            }) {
                Ok(()) => (State::Committed, None),
                Err(reason) => (State::Damaged, Some(reason)),
            },
        };
        let (StepId(step), AttemptId(attempt)) = parse_folder_name(name).unwrap_or((StepId(0), AttemptId(0)));
        let modified_ms = held.iter().map(|(_, folder)| folder.modified_ms).max().unwrap_or(0);
        CheckpointInfo {
            name: name.to_owned(),
            step,
            attempt,
            state,
            reason,
            bytes: files.values().sum(),
            modified_ms,
            places,
        }
    }
}

/// Returns the name of the checkpoint that a folder belongs to.
fn checkpoint(folder: &FolderListing) -> &str {
    folder.name.strip_suffix(PARTIAL).unwrap_or(&folder.name)
}

/// Checks that some store has the manifest, and that every file is in some store with its full length.
fn check_completeness(
    held: &[(usize, FolderListing)],
    mut table: impl FnMut(usize, &FolderListing) -> Result<Manifest, String>,
) -> Result<(), String> {
    let mut reasons = Vec::new();
    for (index, folder) in held {
        match table(*index, folder) {
            Ok(manifest) => return every_file(&manifest, held),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

fn every_file(manifest: &Manifest, held: &[(usize, FolderListing)]) -> Result<(), String> {
    for file in &manifest.files {
        let mut found: Vec<u64> =
            held.iter().filter_map(|(_, folder)| folder.files.get(&file.name).copied()).collect();
        found.sort_by_key(|bytes| *bytes != file.bytes);
        if let Some(damage) = manifest.wrong_length(file, found.first().copied(), None) {
            return Err(damage.to_string());
        }
    }
    Ok(())
}

/// Reads and verifies the manifest of the checkpoint `folder` in a store; returns its text too.
pub(crate) fn read_manifest(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
) -> Result<(Vec<u8>, Manifest), String> {
    let text = read_whole_file(holder, folder, MANIFEST, MAX_MANIFEST)?;
    let commit = read_whole_file(holder, folder, COMMIT, 1024)?;
    let manifest = Manifest::parse_committed(&text, &commit)?;
    Ok((text, manifest))
}

/// Reads a file from a store to its end, or until at least `limit` bytes are read.
fn read_whole_file(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
    file: &str,
    limit: u64,
) -> Result<Vec<u8>, String> {
    if !folder.files.contains_key(file) {
        return Err(format!("{file} is missing"));
    }
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < limit {
        let mut more = holder.read(&folder.name, file, bytes.len() as u64)?;
        if more.is_empty() {
            break;
        }
        bytes.append(&mut more);
    }
    Ok(bytes)
}

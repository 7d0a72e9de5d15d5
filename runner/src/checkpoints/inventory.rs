//! Which checkpoints of a trial there are, over all who hold files of them.

use super::{COMMIT, CheckpointStore, FolderListing, MANIFEST, PARTIAL};
use dtrain_protocol::checkpoint::parse_folder_name;
use dtrain_protocol::{AttemptId, Manifest, StepId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Longest table of contents that is read, in bytes.
const MAX_MANIFEST: u64 = 1 << 30;

/// The folders of a trial's checkpoints at all of its holders.
#[derive(Debug)]
pub struct Inventory {
    /// By holder; none of one that could not be asked.
    folders: Vec<Vec<FolderListing>>,
    /// Those that could not be asked, with why not.
    pub away: Vec<(String, String)>,
}

/// A checkpoint of a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointInfo {
    /// Name of its folder.
    pub name: String,
    /// Steps completed in it.
    pub step: u64,
    /// The attempt that wrote it.
    pub attempt: u64,
    /// Whether training can go on from it.
    pub state: State,
    /// Why not, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Bytes of its files, each counted once.
    pub bytes: u64,
    /// When it was changed last, in milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Where its files lie.
    pub places: Vec<StoredFiles>,
}

/// Whether training can go on from a checkpoint, as far as can be told without reading all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// All ranks saved, and all of it is there in its length.
    Committed,
    /// It was committed, and something of it is missing or not what was committed.
    Damaged,
    /// It could not be read when training was to go on from it, and no longer counts.
    Refused,
    /// It is being written, or its attempt ended before it was committed.
    Partial,
}

/// What one holder has of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StoredFiles {
    /// What people call it.
    pub holder: String,
    /// Number of its files there.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

impl Inventory {
    /// Asks all holders. `Err` when none could be asked.
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

    /// Of the folders of each holder; none of one that could not be asked.
    pub(crate) fn of(folders: Vec<Vec<FolderListing>>) -> Self {
        Self { folders, away: Vec::new() }
    }

    /// `Err` unless a checkpoint was committed and every file of it lies somewhere in its length; `table` gives the table of contents
    /// that a holder, by its index, has in a folder.
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

    /// The names of all checkpoints, oldest first: by attempt, then by step.
    pub fn names(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.folders.iter().flatten().map(checkpoint).collect();
        let mut names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        names.sort_by_key(|name| parse_folder_name(name).map(|(step, attempt)| (attempt, step)));
        names
    }

    /// Whether somebody has committed a checkpoint.
    pub fn is_committed(&self, name: &str) -> bool {
        self.folders.iter().flatten().any(|folder| folder.name == name)
    }

    /// What holders have of a checkpoint, each with its index. Who was cut off while it committed has all of it under another name.
    pub(super) fn copies_of(&self, name: &str) -> Vec<(usize, FolderListing)> {
        let of = |(index, folders): (usize, &Vec<FolderListing>)| {
            let folder = folders.iter().find(|folder| folder.name == name);
            let folder = folder.or_else(|| folders.iter().find(|folder| checkpoint(folder) == name));
            folder.map(|folder| (index, folder.clone()))
        };
        self.folders.iter().enumerate().filter_map(of).collect()
    }

    /// All checkpoints, oldest first; `refused` are those that no longer count, by name, each with why not.
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

/// The checkpoint that a folder is of.
fn checkpoint(folder: &FolderListing) -> &str {
    folder.name.strip_suffix(PARTIAL).unwrap_or(&folder.name)
}

/// `Err` unless somebody has the table of contents, and every file lies somewhere in its length.
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

/// The table of contents of a checkpoint at a holder, as text too, if it is what was committed.
pub(crate) fn read_manifest(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
) -> Result<(Vec<u8>, Manifest), String> {
    let text = read_whole_file(holder, folder, MANIFEST, MAX_MANIFEST)?;
    let commit = read_whole_file(holder, folder, COMMIT, 1024)?;
    let manifest = Manifest::parse_committed(&text, &commit)?;
    Ok((text, manifest))
}

/// A whole file, of `limit` bytes at most.
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

//! Checkpoints that a training engine writes in its own format: their list, verification and copies.
//!
//! Each is a folder `step-N` of torch's distributed checkpoints. Its `manifest.json`, which dtrain's Python
//! package writes last, names all files with their lengths and CRC-32 checksums. Every host has the files of
//! its own ranks, and copies of those of another host.

use super::store::{engine_step, is_engine_file};
use super::{
    CheckpointInfo, CheckpointStore, DamagedItem, FolderListing, MANIFEST, State, StoredFiles,
    VerificationReport, adopt,
};
use crate::files;
use dtrain_protocol::checkpoint::CorruptRange;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Largest manifest that is read, in bytes.
const MAX_MANIFEST: u64 = 64 << 20;

/// The table of contents of an engine's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct EngineManifest {
    /// Attempt that wrote the checkpoint; 0 if unknown.
    #[serde(default)]
    attempt: u64,
    /// Files of all hosts, by their names.
    files: BTreeMap<String, EngineFile>,
    /// The manifest as it was written.
    #[serde(skip)]
    text: Vec<u8>,
}

/// A file of an engine's checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct EngineFile {
    /// Length of the file in bytes.
    bytes: u64,
    /// CRC-32 of the whole file.
    crc32: u32,
}

/// The checkpoints of an engine in all stores that answered.
pub struct EngineInventory {
    /// Checkpoint folders of each store, by step.
    folders: Vec<BTreeMap<u64, FolderListing>>,
    /// Manifests by step; a step without one was not completed.
    manifests: BTreeMap<u64, EngineManifest>,
    /// Names of the stores that did not answer, each with the reason.
    pub away: Vec<(String, String)>,
}

impl EngineInventory {
    /// Asks every store for its folders and manifests. `Err` if none answered.
    pub fn collect(stores: &mut [Box<dyn CheckpointStore + '_>]) -> Result<Self, String> {
        let mut found = Self { folders: Vec::new(), manifests: BTreeMap::new(), away: Vec::new() };
        let mut all: BTreeMap<u64, Vec<EngineManifest>> = BTreeMap::new();
        for store in stores.iter_mut() {
            let listed = store.folders().unwrap_or_else(|reason| {
                found.away.push((store.name().to_owned(), reason));
                Vec::new()
            });
            let by_step = |folder: FolderListing| Some((engine_step(&folder.name)?, folder));
            let listed: BTreeMap<u64, FolderListing> = listed.into_iter().filter_map(by_step).collect();
            for (step, folder) in &listed {
                all.entry(*step).or_default().extend(read_manifest(&mut **store, folder));
            }
            found.folders.push(listed);
        }
        // A host that was lost for a while may have a manifest of an earlier attempt: that of most counts.
        found.manifests = all.into_iter().filter_map(|(step, all)| Some((step, of_most(all)?))).collect();
        if found.away.len() == stores.len() {
            let reasons: Vec<_> =
                found.away.iter().map(|(name, reason)| format!("{name}: {reason}")).collect();
            return Err(reasons.join("; "));
        }
        Ok(found)
    }

    /// Lists all checkpoints, oldest first.
    pub fn list(&self, stores: &[Box<dyn CheckpointStore + '_>]) -> Vec<CheckpointInfo> {
        let steps: BTreeSet<u64> = self.folders.iter().flat_map(BTreeMap::keys).copied().collect();
        steps.into_iter().map(|step| self.info(step, stores)).collect()
    }

    fn info(&self, step: u64, stores: &[Box<dyn CheckpointStore + '_>]) -> CheckpointInfo {
        let manifest = self.manifests.get(&step);
        let copies =
            || self.folders.iter().zip(stores).filter_map(|(held, store)| Some((held.get(&step)?, store)));
        let places = copies()
            .map(|(folder, store)| StoredFiles {
                holder: store.name().to_owned(),
                files: folder.files.len(),
                bytes: folder.files.values().sum(),
            })
            .collect();
        let missing = manifest.map(|manifest| self.missing(step, manifest)).unwrap_or_default();
        let (state, reason) = match manifest {
            None => (State::Partial, None),
            Some(_) if missing.is_empty() => (State::Committed, None),
            Some(_) => (State::Damaged, Some(format!("{} is on no host, or not whole", missing.join(", ")))),
        };
        let on_disk = copies().map(|(folder, _)| folder.files.values().sum()).max().unwrap_or(0);
        CheckpointInfo {
            name: format!("step-{step}"),
            step,
            attempt: manifest.map_or(0, |manifest| manifest.attempt),
            state,
            reason,
            bytes: manifest.map_or(on_disk, EngineManifest::bytes),
            modified_ms: copies().map(|(folder, _)| folder.modified_ms).max().unwrap_or(0),
            places,
        }
    }

    /// Returns the files that no store has with their full length.
    fn missing(&self, step: u64, manifest: &EngineManifest) -> Vec<String> {
        let is_missing =
            |(name, file): &(&String, &EngineFile)| self.holders_of(step, name, file.bytes).next().is_none();
        manifest.files.iter().filter(is_missing).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the indices of the stores that have a file with its full length.
    fn holders_of<'a>(&'a self, step: u64, name: &'a str, bytes: u64) -> impl Iterator<Item = usize> + 'a {
        let has = move |folders: &BTreeMap<u64, FolderListing>| {
            folders.get(&step).and_then(|folder| folder.files.get(name)) == Some(&bytes)
        };
        self.folders.iter().enumerate().filter(move |(_, folders)| has(folders)).map(|(index, _)| index)
    }

    /// Returns the indices of the stores that have a file with another length than `bytes`, each with its length.
    fn short_copies(&self, step: u64, name: &str, bytes: u64) -> Vec<(usize, u64)> {
        let length = |folders: &BTreeMap<u64, FolderListing>| folders.get(&step)?.files.get(name).copied();
        let all = self.folders.iter().enumerate().filter_map(|(index, held)| Some((index, length(held)?)));
        all.filter(|(_, length)| *length != bytes).collect()
    }

    /// Verifies every copy of a checkpoint, reading it whole on its host. `read` is called with the bytes read
    /// so far and the bytes in all. `Err` if the checkpoint was not completed.
    pub fn verify(
        &self,
        stores: &mut [Box<dyn CheckpointStore + '_>],
        step: u64,
        read: &mut dyn FnMut(u64, u64),
    ) -> Result<VerificationReport, String> {
        let (name, manifest) = self.manifest_of(step)?;
        let mut found = VerificationReport {
            name: name.clone(),
            bytes: 0,
            files: manifest.files.len(),
            tensors: 0,
            damaged: Vec::new(),
            lost: Vec::new(),
        };
        let total = manifest.bytes();
        let mut done = 0;
        for (file, known) in &manifest.files {
            let mut is_intact = false;
            for (index, found_bytes) in self.short_copies(step, file, known.bytes) {
                let detail = format!("it has {found_bytes} bytes, not {}", known.bytes);
                let damage = damage(file, known.bytes, detail);
                found.damaged.push(DamagedItem { holder: Some(stores[index].name().to_owned()), damage });
            }
            for index in self.holders_of(step, file, known.bytes) {
                let checksum = stores[index].crc32(&name, file);
                found.bytes += known.bytes;
                let detail = match checksum {
                    Ok(checksum) if checksum == known.crc32 => {
                        is_intact = true;
                        continue;
                    }
                    Ok(checksum) => format!("its CRC-32 is {checksum:08x}, not {:08x}", known.crc32),
                    Err(reason) => reason,
                };
                let damage = damage(file, known.bytes, detail);
                found.damaged.push(DamagedItem { holder: Some(stores[index].name().to_owned()), damage });
            }
            if !is_intact {
                found.lost.push(file.clone());
            }
            done += known.bytes;
            read(done, total);
        }
        Ok(found)
    }

    /// Copies a checkpoint from the stores that have it to the folder `to`, which must not exist, and which is
    /// removed again after an error. `read` is called with the bytes copied so far and the bytes in all.
    pub fn pull(
        &self,
        stores: &mut [Box<dyn CheckpointStore + '_>],
        step: u64,
        to: &Path,
        read: &mut dyn FnMut(u64, u64),
    ) -> Result<(), String> {
        fs::create_dir(to).map_err(|error| format!("{}: {error}", to.display()))?;
        let copied = self.copy(stores, step, to, read);
        if copied.is_err() {
            drop(fs::remove_dir_all(to));
        }
        copied
    }

    fn copy(
        &self,
        stores: &mut [Box<dyn CheckpointStore + '_>],
        step: u64,
        to: &Path,
        read: &mut dyn FnMut(u64, u64),
    ) -> Result<(), String> {
        let (name, manifest) = self.manifest_of(step)?;
        let total = manifest.bytes();
        let mut done = 0;
        for (file, known) in &manifest.files {
            let mut reasons = Vec::new();
            let is_copied = self.holders_of(step, file, known.bytes).any(|index| {
                let mut told = |bytes| read(done + bytes, total);
                let copied = copy_file(&mut *stores[index], (&name, file), known, &to.join(file), &mut told);
                let reason = copied.err().map(|reason| format!("{}: {reason}", stores[index].name()));
                let is_copied = reason.is_none();
                reasons.extend(reason);
                is_copied
            });
            if !is_copied {
                let reasons =
                    if reasons.is_empty() { "no host has it".to_owned() } else { reasons.join("; ") };
                return Err(format!("{name}/{file}: {reasons}"));
            }
            done += known.bytes;
        }
        // Without it the copy is no checkpoint.
        let table = to.join(MANIFEST);
        files::write(&table, &manifest.text).map_err(|error| format!("{}: {error}", table.display()))
    }

    fn manifest_of(&self, step: u64) -> Result<(String, &EngineManifest), String> {
        let manifest = self.manifests.get(&step).ok_or_else(|| format!("step {step} was not completed"))?;
        Ok((format!("step-{step}"), manifest))
    }
}

impl EngineManifest {
    fn bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes).sum()
    }
}

/// Returns the manifest that most stores have, and of several the one of the latest attempt.
fn of_most(all: Vec<EngineManifest>) -> Option<EngineManifest> {
    let count = |one: &EngineManifest| all.iter().filter(|other| *other == one).count();
    let best = all.iter().max_by_key(|one| (count(one), one.attempt))?;
    Some(best.clone())
}

fn damage(file: &str, bytes: u64, detail: String) -> CorruptRange {
    CorruptRange { file: file.to_owned(), begin: 0, end: bytes, tensors: Vec::new(), detail }
}

/// Makes the engine's checkpoint in the folder `from` also the folder `to`, unless that exists. Files are
/// hard-linked, and copied only if `to` is on another file system.
///
/// `Err` names the folder that cannot be made.
pub fn link_engine_checkpoint(from: &Path, to: &Path) -> Result<(), String> {
    if to.exists() {
        return Ok(());
    }
    let partial = to.with_extension("partial");
    let link = || -> io::Result<()> {
        if partial.exists() {
            fs::remove_dir_all(&partial)?;
        }
        if let Some(parent) = to.parent() {
            files::make_folder(parent)?;
        }
        files::make_folder(&partial)?;
        let mut entries: Vec<_> = fs::read_dir(from)?.collect::<io::Result<_>>()?;
        // The manifest last: without it the folder is no checkpoint.
        entries.sort_by_key(|entry| entry.file_name() == MANIFEST);
        for entry in entries {
            adopt::link_or_copy(&entry.path(), &partial.join(entry.file_name()))?;
        }
        fs::rename(&partial, to)
    };
    link().map_err(|error| {
        drop(fs::remove_dir_all(&partial));
        format!("{}: {error}", to.display())
    })
}

/// Reads the manifest of a checkpoint folder; `None` if there is none that can be read.
fn read_manifest(store: &mut dyn CheckpointStore, folder: &FolderListing) -> Option<EngineManifest> {
    let length = *folder.files.get(MANIFEST)?;
    if length > MAX_MANIFEST {
        return None;
    }
    let mut text = Vec::new();
    while (text.len() as u64) < length {
        let piece = store.read(&folder.name, MANIFEST, text.len() as u64).ok()?;
        if piece.is_empty() {
            return None;
        }
        text.extend(piece);
    }
    let manifest: EngineManifest = serde_json::from_slice(&text).ok()?;
    let manifest = EngineManifest { text, ..manifest };
    manifest.files.keys().all(|name| is_engine_file(name)).then_some(manifest)
}

/// Copies a file of a checkpoint and verifies it. `read` is called with the bytes copied so far.
fn copy_file(
    store: &mut dyn CheckpointStore,
    (folder, file): (&str, &str),
    known: &EngineFile,
    to: &Path,
    read: &mut dyn FnMut(u64),
) -> Result<(), String> {
    let words = |error: io::Error| format!("{}: {error}", to.display());
    let mut copy: File = files::create(to).map_err(words)?;
    let (mut done, mut checksum) = (0, crc32fast::Hasher::new());
    while done < known.bytes {
        let piece = store.read(folder, file, done)?;
        if piece.is_empty() {
            return Err(format!("it ends after {done} of {} bytes", known.bytes));
        }
        checksum.update(&piece);
        copy.write_all(&piece).map_err(words)?;
        done += piece.len() as u64;
        read(done);
    }
    let checksum = checksum.finalize();
    if checksum == known.crc32 {
        Ok(())
    } else {
        Err(format!("its CRC-32 is {checksum:08x}, not {:08x}", known.crc32))
    }
}

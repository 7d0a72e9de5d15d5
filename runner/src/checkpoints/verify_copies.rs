//! Verifies every copy of a checkpoint against its checksums.

use super::inventory::read_manifest;
use super::{CheckpointStore, FolderListing, Inventory, MANIFEST};
use dtrain_protocol::checkpoint::CorruptRange;
use dtrain_protocol::checkpoint::header::{self, ByteRanges};
use dtrain_protocol::{FileEntry, Manifest};
use serde::Serialize;

/// Number of chunks that a store hashes in one call.
const CHUNKS: u64 = 16;

/// Result of verifying all copies of one checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerificationReport {
    /// Name of the checkpoint folder.
    pub name: String,
    /// Number of bytes read, over all copies.
    pub bytes: u64,
    /// Number of files in the manifest.
    pub files: usize,
    /// Number of tensors in the manifest.
    pub tensors: usize,
    /// Damaged parts of all copies, each with the store that holds it.
    pub damaged: Vec<DamagedItem>,
    /// Files of which no reachable store has an intact copy. If empty, the whole checkpoint can be restored.
    pub lost: Vec<String>,
}

/// Damaged or missing part of a copy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DamagedItem {
    /// Name of the store that holds the damaged part; `None` if no store has the file.
    pub holder: Option<String>,
    /// Damaged range of the file.
    #[serde(flatten)]
    pub damage: CorruptRange,
}

/// Verifies all copies of the committed checkpoint `name`, reading them whole. `read` is called with the
/// bytes read so far and the bytes in all.
///
/// `Err` if no store has it, or it was never committed.
pub fn verify_all_copies(
    holders: &mut [Box<dyn CheckpointStore + '_>],
    inventory: &Inventory,
    name: &str,
    read: &mut dyn FnMut(u64, u64),
) -> Result<VerificationReport, String> {
    if !inventory.is_committed(name) {
        return Err(format!("{name} was not committed"));
    }
    let held = inventory.copies_of(name);
    let mut found = VerificationReport {
        name: name.to_owned(),
        bytes: 0,
        files: 0,
        tensors: 0,
        damaged: Vec::new(),
        lost: Vec::new(),
    };
    let mut manifest = None;
    for (index, folder) in &held {
        match read_manifest(&mut *holders[*index], folder) {
            Ok((_, table)) => manifest = manifest.or(Some(table)),
            // A store whose commit was interrupted may lack the manifest.
            Err(_) if folder.name != name => {}
            Err(detail) => {
                let end = folder.files.get(MANIFEST).copied().unwrap_or(0);
                let damage =
                    CorruptRange { file: MANIFEST.into(), begin: 0, end, tensors: Vec::new(), detail };
                found.damaged.push(DamagedItem { holder: Some(holders[*index].name().to_owned()), damage });
            }
        }
    }
    let Some(manifest) = manifest else {
        found.lost.push(MANIFEST.into());
        return Ok(found);
    };
    (found.files, found.tensors) = (manifest.files.len(), manifest.tensors.len());
    let copies = |file: &FileEntry| {
        held.iter().filter(|(_, folder)| folder.files.contains_key(&file.name)).collect::<Vec<_>>()
    };
    let total = manifest.files.iter().map(|file| file.bytes * copies(file).len() as u64).sum();
    for file in &manifest.files {
        let mut is_somewhere = false;
        let copies = copies(file);
        if copies.is_empty() {
            let damage = manifest.wrong_length(file, None, None);
            found.damaged.extend(damage.map(|damage| DamagedItem { holder: None, damage }));
        }
        for (index, folder) in copies {
            let holder = &mut *holders[*index];
            let mut bytes = 0;
            let damages = verify_copy(holder, folder, file, &manifest, &mut |more| {
                bytes += more;
                read(found.bytes + bytes, total);
            })?;
            found.bytes += bytes;
            is_somewhere |= damages.is_empty();
            let of = |damage| DamagedItem { holder: Some(holder.name().to_owned()), damage };
            found.damaged.extend(damages.into_iter().map(of));
        }
        if !is_somewhere {
            found.lost.push(file.name.clone());
        }
    }
    Ok(found)
}

/// Returns the damage of one copy of a file, empty if it is intact; calls `read` with the size of each chunk.
fn verify_copy(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
    file: &FileEntry,
    manifest: &Manifest,
    read: &mut dyn FnMut(u64),
) -> Result<Vec<CorruptRange>, String> {
    // Until the file is known to be intact its header may name wrong tensors, which does no harm.
    let holds_tensors =
        manifest.tensors.iter().any(|tensor| tensor.pieces.iter().any(|p| p.file == file.name));
    let places =
        if holds_tensors { tensor_ranges(holder, folder, file, manifest) } else { Ok(ByteRanges::default()) };
    let known = places.as_ref().ok().filter(|_| holds_tensors);
    if let Some(damage) = manifest.wrong_length(file, folder.files.get(&file.name).copied(), known) {
        return Ok(vec![damage]);
    }
    let chunks = file.chunks.len() as u64;
    let mut damages = Vec::new();
    let mut first = 0;
    while first < chunks {
        let count = CHUNKS.min(chunks - first);
        let hashes = match holder.hashes(&folder.name, &file.name, first, count) {
            Ok(hashes) => hashes,
            Err(detail) => {
                let rest = file.chunk(first).start..file.bytes;
                damages.push(manifest.damage(&file.name, known, rest, detail));
                return Ok(damages);
            }
        };
        for (index, hash) in (first..first + count).zip(pad(hashes)) {
            let range = file.chunk(index);
            read(range.end - range.start);
            if let Err(detail) = hash.and_then(|hash| file.check(index, &hash)) {
                damages.push(manifest.damage(&file.name, known, range, detail));
            }
        }
        first += count;
    }
    // All chunks are intact; then so is the header, and it must name every tensor.
    if let (true, Err(damage)) = (damages.is_empty(), places) {
        damages.push(damage);
    }
    Ok(damages)
}

/// Returns the hashes, followed by an error for every further chunk.
fn pad(hashes: Vec<Result<String, String>>) -> impl Iterator<Item = Result<String, String>> {
    hashes.into_iter().chain(std::iter::repeat_with(|| Err("the file ends before it".into())))
}

/// Returns the ranges of the tensors in a file, from its header; `Err` if the header is not plausible.
fn tensor_ranges(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
    file: &FileEntry,
    manifest: &Manifest,
) -> Result<ByteRanges, CorruptRange> {
    let mut read = || -> Result<ByteRanges, String> {
        let mut bytes = holder.read(&folder.name, &file.name, 0)?;
        let length =
            usize::try_from(header::length(&bytes, file.bytes)?).map_err(|error| error.to_string())?;
        while bytes.len() < 8 + length {
            let mut more = holder.read(&folder.name, &file.name, bytes.len() as u64)?;
            if more.is_empty() {
                return Err("the file ends inside its head".into());
            }
            bytes.append(&mut more);
        }
        header::decode(&bytes[8..8 + length], file.bytes)
    };
    let places = read().map_err(|detail| manifest.damage(&file.name, None, 0..file.bytes, detail))?;
    manifest.check_places(file, &places)?;
    Ok(places)
}

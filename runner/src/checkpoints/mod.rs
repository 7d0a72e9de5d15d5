//! Checkpoints on disk: commit, inventory, verification and copies.

mod adopt;
pub mod commit;
mod inventory;
mod pull;
pub mod retention;
mod store;
mod verify_copies;

#[cfg(test)]
mod tests;

pub use adopt::{ADOPTED, Adoption, adopt, begin_with};
pub use inventory::{CheckpointInfo, Inventory, State, StoredFiles};
pub use pull::{pull, remove_unfinished};
pub use store::{CheckpointStore, FolderListing, LocalStore};
pub use verify_copies::{DamagedItem, VerificationReport, verify_all_copies};

pub(crate) use inventory::read_manifest;

use dtrain_protocol::checkpoint::{CHUNK_BYTES, parse_folder_name};
use dtrain_protocol::{FileEntry, Manifest, ResumePoint};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// File name of the manifest, a checkpoint's table of contents.
pub const MANIFEST: &str = "manifest.json";

/// Name of the file that marks a checkpoint as committed: the blake3 of the manifest, in hex.
pub const COMMIT: &str = "COMMIT";

/// Suffix of a folder's name until the checkpoint is committed.
const PARTIAL: &str = ".partial";

/// Returns `true` if a folder of this name holds an uncommitted checkpoint.
pub(crate) fn is_partial(name: &str) -> bool {
    name.ends_with(PARTIAL) && parse_folder_name(name).is_some()
}

/// Lists the committed checkpoints in a trial's checkpoint folder, oldest first: by attempt, then by step.
pub fn committed(checkpoints: &Path) -> io::Result<Vec<ResumePoint>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(checkpoints)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.ends_with(PARTIAL)) else { continue };
        if let Some((step, attempt)) = parse_folder_name(name) {
            found.push((attempt, step, ResumePoint { folder: entry.path(), step }));
        }
    }
    found.sort_by_key(|(attempt, step, _)| (*attempt, *step));
    Ok(found.into_iter().map(|(_, _, point)| point).collect())
}

/// Reads the manifest of a committed checkpoint; checks that it is the committed one and that every file has
/// its full length. The contents of files are checked when they are read.
///
/// `Err` names the file and the fault.
pub fn verify(folder: &Path) -> Result<Manifest, String> {
    let (_, manifest) = read_local_manifest(folder)?;
    for file in &manifest.files {
        let found = fs::metadata(folder.join(&file.name)).map(|found| found.len());
        let found = match found {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{}: {error}", folder.join(&file.name).display())),
        };
        if let Some(damage) = manifest.wrong_length(file, found, None) {
            return Err(damage.to_string());
        }
    }
    Ok(manifest)
}

/// Like [`verify`], but also compares every file with its checksums, which reads the whole checkpoint. `read`
/// gets the bytes read so far and the bytes of all files.
///
/// `Err` names the file, the offset and the fault.
pub fn verify_checksums(folder: &Path, read: &mut dyn FnMut(u64, u64)) -> Result<Manifest, String> {
    let manifest = verify(folder)?;
    let total = manifest.files.iter().map(|file| file.bytes).sum();
    let mut done = 0;
    for file in &manifest.files {
        verify_file(folder, file, &manifest, &mut |bytes| {
            done += bytes;
            read(done, total);
        })?;
    }
    Ok(manifest)
}

/// Compares one file of a checkpoint with its checksums; `read` gets the bytes of each chunk.
fn verify_file(
    folder: &Path,
    file: &FileEntry,
    manifest: &Manifest,
    read: &mut dyn FnMut(u64),
) -> Result<(), String> {
    let path = folder.join(&file.name);
    let failed = |error: io::Error| format!("{}: {error}", path.display());
    let mut opened = File::open(&path).map_err(failed)?;
    let mut chunk = Vec::new();
    for index in 0..file.chunks.len() as u64 {
        chunk.clear();
        (&mut opened).take(CHUNK_BYTES).read_to_end(&mut chunk).map_err(failed)?;
        let hash = blake3::hash(&chunk).to_hex();
        file.check(index, &hash).map_err(|detail| {
            // Without the names of tensors, which would hide the name of the file.
            let mut damage = manifest.damage(&file.name, None, file.chunk(index), detail);
            damage.tensors.clear();
            damage.to_string()
        })?;
        read(chunk.len() as u64);
    }
    Ok(())
}

/// Reads and verifies the manifest of a local checkpoint; returns its text too.
pub(crate) fn read_local_manifest(folder: &Path) -> Result<(String, Manifest), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let (text, commit) = (read(MANIFEST)?, read(COMMIT)?);
    let manifest = Manifest::parse_committed(&text, &commit)?;
    let text = String::from_utf8(text).map_err(|error| format!("{MANIFEST}: {error}"))?;
    Ok((text, manifest))
}

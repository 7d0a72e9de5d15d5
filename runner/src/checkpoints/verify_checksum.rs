//! Verification of a checkpoint on this machine: the lengths of its files, and the checksum of every chunk.

use super::read_local_manifest;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use dtrain_protocol::{FileEntry, Manifest};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

/// Verifies the lengths of a committed checkpoint: its manifest must be the committed one, and every file
/// must have its full length. The contents of files are checked when they are read.
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
/// is called with the bytes read so far and the bytes of all files.
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

/// Compares one file of a checkpoint with its checksums; calls `read` with the size of each chunk.
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

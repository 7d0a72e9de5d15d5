//! Pulls a checkpoint: copies all of its files to a folder and verifies every byte, or leaves no checkpoint
//! there.

use super::inventory::read_manifest;
use super::{CheckpointStore, FolderListing, Inventory, PARTIAL, commit};
use crate::durable;
use crate::files;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use dtrain_protocol::{FileEntry, Manifest};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Copies the checkpoint `name` to the folder `to`, which must not exist. `read` gets the bytes copied so far
/// and the bytes in all.
///
/// Every chunk is compared with the committed checksums, and taken from another store if it differs. The copy
/// is called `TO.partial` until it is complete and durable; an interrupted copy is continued.
///
/// `Err` names the file and offset of which no store has an intact copy, or the write that failed.
pub fn pull(
    holders: &mut [Box<dyn CheckpointStore + '_>],
    inventory: &Inventory,
    name: &str,
    to: &Path,
    read: &mut dyn FnMut(u64, u64),
) -> Result<(), String> {
    if !inventory.is_committed(name) {
        return Err(format!("{name} was not committed"));
    }
    if fs::symlink_metadata(to).is_ok() {
        return Err(format!("{} exists already; name a folder that does not", to.display()));
    }
    let held = inventory.copies_of(name);
    let (text, manifest) = first_manifest(holders, &held)?;
    let partial = partial_path(to)?;
    let words = |error: io::Error| format!("{}: {error}", partial.display());
    files::make_folder(&partial).map_err(words)?;
    let total: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let mut done = 0;
    for file in &manifest.files {
        let path = partial.join(&file.name);
        let mut copy =
            PartialFile::open(&path, file).map_err(|error| format!("{}: {error}", path.display()))?;
        for index in 0..file.chunks.len() as u64 {
            let have = copy.has(index).map_err(words)?;
            if !have {
                let chunk = fetch_verified_chunk(holders, &held, &manifest, file, index)?;
                copy.put(index, &chunk).map_err(words)?;
            }
            let range = file.chunk(index);
            done += range.end - range.start;
            read(done, total);
        }
        copy.finish().map_err(words)?;
    }
    let text = String::from_utf8(text).map_err(|error| error.to_string())?;
    commit::prepare(&partial, &text)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let renamed = fs::rename(&partial, to).and_then(|()| durable::sync_folder(parent));
    renamed.map_err(|error| format!("{}: {error}", to.display()))
}

/// Removes the partial copy that an unfinished [`pull`] to the folder `to` left.
///
/// `Err` names the folder that cannot be removed.
pub fn remove_unfinished(to: &Path) -> Result<(), String> {
    let partial = partial_path(to)?;
    match fs::remove_dir_all(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(format!("{}: {error}", partial.display()))
        }
        _ => Ok(()),
    }
}

/// Returns `TO.partial`, the path of an incomplete copy to the folder `to`.
fn partial_path(to: &Path) -> Result<PathBuf, String> {
    let name = to.file_name().ok_or_else(|| format!("{} is not the name of a folder", to.display()))?;
    let mut name = name.to_owned();
    name.push(PARTIAL);
    Ok(to.with_file_name(name))
}

fn first_manifest(
    holders: &mut [Box<dyn CheckpointStore + '_>],
    held: &[(usize, FolderListing)],
) -> Result<(Vec<u8>, Manifest), String> {
    let mut reasons = Vec::new();
    for (index, folder) in held {
        match read_manifest(&mut *holders[*index], folder) {
            Ok(table) => return Ok(table),
            Err(reason) => reasons.push(format!("{}: {reason}", holders[*index].name())),
        }
    }
    Err(reasons.join("; "))
}

/// Returns a chunk of a file from the first store that has it intact.
fn fetch_verified_chunk(
    holders: &mut [Box<dyn CheckpointStore + '_>],
    held: &[(usize, FolderListing)],
    manifest: &Manifest,
    file: &FileEntry,
    index: u64,
) -> Result<Vec<u8>, String> {
    let mut reasons = Vec::new();
    for (holder, folder) in held.iter().filter(|(_, folder)| folder.files.contains_key(&file.name)) {
        let holder = &mut *holders[*holder];
        match chunk(holder, folder, file, index) {
            Ok(bytes) => return Ok(bytes),
            Err(reason) => reasons.push(format!("{}: {reason}", holder.name())),
        }
    }
    let detail = if reasons.is_empty() { "no host has the file".into() } else { reasons.join("; ") };
    Err(manifest.damage(&file.name, None, file.chunk(index), detail).to_string())
}

fn chunk(
    holder: &mut dyn CheckpointStore,
    folder: &FolderListing,
    file: &FileEntry,
    index: u64,
) -> Result<Vec<u8>, String> {
    let range = file.chunk(index);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < range.end - range.start {
        let mut more = holder.read(&folder.name, &file.name, range.start + bytes.len() as u64)?;
        if more.is_empty() {
            return Err(format!("the file ends at byte {}", range.start + bytes.len() as u64));
        }
        bytes.append(&mut more);
    }
    bytes.truncate(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
    file.check(index, &blake3::hash(&bytes).to_hex())?;
    Ok(bytes)
}

/// File that is being copied; its beginning may come from an interrupted copy.
struct PartialFile<'a> {
    file: File,
    entry: &'a FileEntry,
}

impl<'a> PartialFile<'a> {
    fn open(path: &Path, entry: &'a FileEntry) -> io::Result<Self> {
        let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
        Ok(Self { file: files::open_as(&options, path)?, entry })
    }

    /// Returns `true` if the local file already has an intact copy of the chunk `index`.
    fn has(&self, index: u64) -> io::Result<bool> {
        let range = self.entry.chunk(index);
        if self.file.metadata()?.len() < range.end {
            return Ok(false);
        }
        let mut bytes = vec![0; usize::try_from((range.end - range.start).min(CHUNK_BYTES)).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, range.start)?;
        Ok(self.entry.check(index, &blake3::hash(&bytes).to_hex()).is_ok())
    }

    fn put(&mut self, index: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.entry.chunk(index).start)
    }

    /// Truncates the file to its full length and makes it durable. Call it once all chunks are written.
    fn finish(self) -> io::Result<()> {
        self.file.set_len(self.entry.bytes)?;
        self.file.sync_all()
    }
}

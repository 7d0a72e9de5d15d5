//! Writes what one rank holds.

use super::CheckpointError;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use dtrain_protocol::checkpoint::head::{self, Entry};
use dtrain_protocol::{FileEntry, Piece, Rank, SavedFile, Slice, Tensor, TensorKind};
use rustix::fs::statvfs;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Bytes that stay free after a checkpoint was written: for the ledger, the spool and the manifest.
const RESERVE_BYTES: u64 = 16 << 20;

/// Some elements of a global tensor with their values.
#[derive(Clone, Copy, Debug)]
pub struct NamedPiece<'a> {
    /// Global name.
    pub name: &'a str,
    /// What it is to training.
    pub kind: TensorKind,
    /// Which elements.
    pub slice: &'a Slice,
    /// Their values, in the order of the slice.
    pub values: &'a [f32],
}

impl NamedPiece<'_> {
    /// Key in the file: the plain name for a whole weight, so that any reader of safetensors finds it; otherwise it
    /// tells the region, when that is not the whole tensor, and the range, when that is not the whole region.
    fn key(&self) -> String {
        let mut key = format!("{}{}", self.name, self.kind.suffix());
        let region = self.slice.region();
        if !region.is_whole() {
            let sides: Vec<_> = region.sides.iter().map(|side| format!("{side:?}")).collect();
            key.push_str(&format!("[{}]", sides.join(",")));
        }
        if !self.slice.is_all() {
            key.push_str(&format!("[{:?}]", self.slice.range()));
        }
        key
    }

    /// Shape of the entry: the region's, when all of it is there.
    fn entry_shape(&self) -> Vec<u64> {
        if self.slice.is_all() { self.slice.region().local_shape() } else { vec![self.slice.elements()] }
    }
}

/// Writes `pieces` durably as this rank's file under `partial`, which is made when it is not there.
///
/// The file has its final name only when it is complete and synced. Panics when two pieces are the same slice of
/// the same tensor, or one has not as many values as elements.
pub fn save(partial: &Path, rank: Rank, pieces: &[NamedPiece<'_>]) -> Result<SavedFile, CheckpointError> {
    let name = format!("rank-{:05}.safetensors", rank.0);
    let head = head_of(pieces);
    let data: u64 = pieces.iter().map(|piece| 4 * piece.values.len() as u64).sum();
    make_folder(partial)?;
    check_room(partial, head.len() as u64 + data + RESERVE_BYTES)?;
    let (path, temporary) = (partial.join(&name), partial.join(format!(".{name}.new")));
    let file = write(&temporary, &head, pieces).map_err(|error| {
        // What could not be written to its end would only take room.
        drop(fs::remove_file(&temporary));
        io_error("writing", &temporary)(error)
    })?;
    fs::rename(&temporary, &path).map_err(io_error("renaming", &temporary))?;
    File::open(partial).and_then(|folder| folder.sync_all()).map_err(io_error("syncing", partial))?;
    let tensors = pieces.iter().map(|piece| tensor(piece, &name)).collect();
    Ok(SavedFile { file: FileEntry { name, ..file }, tensors })
}

fn make_folder(folder: &Path) -> Result<(), CheckpointError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(io_error("making", folder))
}

fn check_room(folder: &Path, needed: u64) -> Result<(), CheckpointError> {
    let room = statvfs(folder).map_err(|error| io_error("asking for the room in", folder)(error.into()))?;
    let available = room.f_bavail.saturating_mul(room.f_frsize);
    if available >= needed {
        return Ok(());
    }
    Err(CheckpointError::Full { folder: folder.to_owned(), needed, available })
}

fn head_of(pieces: &[NamedPiece<'_>]) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut offset = 0;
    for piece in pieces {
        let (elements, found) = (piece.slice.elements(), piece.values.len() as u64);
        assert_eq!(elements, found, "values of {}", piece.key());
        let end = offset + 4 * piece.values.len() as u64;
        let entry = Entry { dtype: "F32".into(), shape: piece.entry_shape(), data_offsets: (offset, end) };
        assert!(entries.insert(piece.key(), entry).is_none(), "{} is written twice", piece.key());
        offset = end;
    }
    head::encode(&entries)
}

/// Writes and syncs a file; returns its length and the hashes of its chunks.
fn write(path: &Path, head: &[u8], pieces: &[NamedPiece<'_>]) -> io::Result<FileEntry> {
    let mut chunks =
        Chunks { file: File::create(path)?, bytes: 0, chunk: blake3::Hasher::new(), hashes: Vec::new() };
    chunks.push(head)?;
    for piece in pieces {
        chunks.push(bytemuck::cast_slice(piece.values))?;
    }
    chunks.end();
    chunks.file.sync_all()?;
    Ok(FileEntry { name: String::new(), bytes: chunks.bytes, chunks: chunks.hashes })
}

/// A file that is written and hashed chunk by chunk.
struct Chunks {
    file: File,
    /// Bytes written.
    bytes: u64,
    /// Of the chunk that is not full yet.
    chunk: blake3::Hasher,
    /// Of those that are.
    hashes: Vec<String>,
}

impl Chunks {
    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES - self.bytes % CHUNK_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX)));
            self.chunk.update(now);
            self.file.write_all(now)?;
            self.bytes += now.len() as u64;
            if self.bytes.is_multiple_of(CHUNK_BYTES) {
                self.end();
            }
            bytes = later;
        }
        Ok(())
    }

    /// Ends a chunk, unless nothing of it is written.
    fn end(&mut self) {
        if self.chunk.count() > 0 {
            self.hashes.push(self.chunk.finalize().to_hex().to_string());
            self.chunk.reset();
        }
    }
}

fn tensor(piece: &NamedPiece<'_>, file: &str) -> Tensor {
    Tensor {
        name: piece.name.to_owned(),
        kind: piece.kind,
        shape: piece.slice.region().shape.clone(),
        pieces: vec![Piece::of(piece.slice, file, piece.key())],
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io { action, path: path.clone(), source }
}

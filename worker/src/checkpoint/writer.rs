//! Writes what one rank holds.

use super::CheckpointError;
use super::header::{self, Entry};
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use dtrain_protocol::{FileEntry, Piece, Rank, SavedFile, Tensor, TensorKind};
use rustix::fs::statvfs;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Bytes that stay free after a checkpoint was written: for the ledger, the spool and the manifest.
const RESERVE_BYTES: u64 = 16 << 20;

/// A contiguous range of a global tensor's elements, in row-major order.
#[derive(Clone, Copy, Debug)]
pub struct NamedPiece<'a> {
    /// Global name.
    pub name: &'a str,
    /// What it is to training.
    pub kind: TensorKind,
    /// Global shape.
    pub shape: &'a [u64],
    /// First element.
    pub begin: u64,
    /// The elements.
    pub values: &'a [f32],
}

impl NamedPiece<'_> {
    /// One past the last element.
    fn end(&self) -> u64 {
        self.begin + self.values.len() as u64
    }

    fn is_whole(&self) -> bool {
        self.begin == 0 && self.end() == self.shape.iter().product::<u64>()
    }

    /// Key in the file: the plain name for a whole weight, so that any reader of safetensors finds it.
    fn key(&self) -> String {
        let kind = match self.kind {
            TensorKind::Parameter => "",
            TensorKind::FirstMoment => "#first_moment",
            TensorKind::SecondMoment => "#second_moment",
        };
        if self.is_whole() {
            format!("{}{kind}", self.name)
        } else {
            format!("{}{kind}[{}..{}]", self.name, self.begin, self.end())
        }
    }
}

/// Writes `pieces` durably as this rank's file under `partial`, which is made when it is not there.
///
/// The file has its final name only when it is complete and synced. Panics when two pieces are the same range of
/// the same tensor, or one reaches beyond its tensor.
pub fn save(partial: &Path, rank: Rank, pieces: &[NamedPiece<'_>]) -> Result<SavedFile, CheckpointError> {
    let name = format!("rank-{:05}.safetensors", rank.0);
    let head = head(pieces);
    let data: u64 = pieces.iter().map(|piece| 4 * piece.values.len() as u64).sum();
    make_folder(partial)?;
    check_room(partial, head.len() as u64 + data + RESERVE_BYTES)?;
    let (path, temporary) = (partial.join(&name), partial.join(format!(".{name}.new")));
    let file = write(&temporary, &head, pieces).map_err(io_error("writing", &temporary))?;
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

fn head(pieces: &[NamedPiece<'_>]) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut offset = 0;
    for piece in pieces {
        let elements: u64 = piece.shape.iter().product();
        assert!(piece.end() <= elements, "{} has {elements} elements", piece.name);
        let shape = if piece.is_whole() { piece.shape.to_vec() } else { vec![piece.values.len() as u64] };
        let end = offset + 4 * piece.values.len() as u64;
        let entry = Entry { dtype: "F32".into(), shape, data_offsets: (offset, end) };
        assert!(entries.insert(piece.key(), entry).is_none(), "{} is written twice", piece.key());
        offset = end;
    }
    header::encode(&entries)
}

/// Writes and syncs a file; returns its length and the hashes of its chunks.
fn write(path: &Path, head: &[u8], pieces: &[NamedPiece<'_>]) -> io::Result<FileEntry> {
    let mut chunks = Chunks { file: File::create(path)?, chunk: Vec::new(), bytes: 0, hashes: Vec::new() };
    chunks.push(head)?;
    for piece in pieces {
        chunks.push(bytemuck::cast_slice(piece.values))?;
    }
    chunks.flush()?;
    chunks.file.sync_all()?;
    Ok(FileEntry { name: String::new(), bytes: chunks.bytes, chunks: chunks.hashes })
}

/// A file that is written and hashed chunk by chunk.
struct Chunks {
    file: File,
    /// The chunk that is not full yet.
    chunk: Vec<u8>,
    /// Bytes written, the unfinished chunk not counted.
    bytes: u64,
    hashes: Vec<String>,
}

impl Chunks {
    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let room = CHUNK_BYTES as usize - self.chunk.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
            if self.chunk.len() as u64 == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        self.hashes.push(blake3::hash(&self.chunk).to_hex().to_string());
        self.file.write_all(&self.chunk)?;
        self.bytes += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }
}

fn tensor(piece: &NamedPiece<'_>, file: &str) -> Tensor {
    Tensor {
        name: piece.name.to_owned(),
        kind: piece.kind,
        shape: piece.shape.to_vec(),
        pieces: vec![Piece { file: file.to_owned(), key: piece.key(), begin: piece.begin, end: piece.end() }],
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io { action, path: path.clone(), source }
}

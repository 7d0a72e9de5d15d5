//! Writes the file with one rank's tensors in a checkpoint.

use super::CheckpointError;
use dtrain_protocol::checkpoint::CHUNK_BYTES;
use dtrain_protocol::checkpoint::header::{self, TensorInfo};
use dtrain_protocol::{FileEntry, Rank, SavedFile, Slice, StoredSlice, Tensor, TensorKind};
use rustix::fs::{OFlags, statvfs};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Number of bytes kept free on the disk after a checkpoint: for the history, the spool and the manifest.
const RESERVE_BYTES: u64 = 16 << 20;

/// Some elements of a global tensor, with their values, to be written to a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct NamedPiece<'a> {
    /// Global name of the tensor, such as `blocks.3.ffn.up.weight`.
    pub name: &'a str,
    /// Role of the tensor: weight, optimizer state, or other state.
    pub kind: TensorKind,
    /// The elements to be written, as a slice of the global tensor.
    pub slice: &'a Slice,
    /// Values of the elements, in the order of the slice.
    pub values: &'a [f32],
}

impl NamedPiece<'_> {
    /// Returns the piece's key in the file. A whole weight has its plain name as its key, so that any
    /// safetensors reader finds it; otherwise the key also names the region and the range where they are
    /// not the whole.
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

    /// Returns the shape of the piece's entry in the file: that of the region if all of it is stored,
    /// otherwise one dimension.
    fn entry_shape(&self) -> Vec<u64> {
        if self.slice.is_all() { self.slice.region().local_shape() } else { vec![self.slice.elements()] }
    }
}

/// Writes `pieces` durably as the file of `rank` in the folder `partial`, which is created if absent.
///
/// The file gets its final name once it is complete and synced. Panics if two pieces are the same slice of
/// the same tensor, or if a piece has not as many values as elements.
pub fn save(partial: &Path, rank: Rank, pieces: &[NamedPiece<'_>]) -> Result<SavedFile, CheckpointError> {
    let name = format!("rank-{:05}.safetensors", rank.0);
    let head = head_of(pieces);
    let data: u64 = pieces.iter().map(|piece| 4 * piece.values.len() as u64).sum();
    make_folder(partial)?;
    let needed = head.len() as u64 + data + RESERVE_BYTES;
    check_room(partial, needed)?;
    let (path, temporary) = (partial.join(&name), partial.join(format!(".{name}.new")));
    let file = write(&temporary, &head, pieces).map_err(|error| {
        let error = write_error(error, &temporary, needed);
        // An incomplete file would only take up space.
        drop(fs::remove_file(&temporary));
        error
    })?;
    fs::rename(&temporary, &path).map_err(io_error("renaming", &temporary))?;
    File::open(partial).and_then(|folder| folder.sync_all()).map_err(io_error("syncing", partial))?;
    let tensors = pieces.iter().map(|piece| tensor(piece, &name)).collect();
    Ok(SavedFile { file: FileEntry { name, ..file }, tensors })
}

/// Writes a file without tensors to a checkpoint. Its name becomes durable with the next [`save`] in the
/// same folder.
pub fn save_file(partial: &Path, name: &str, content: &[u8]) -> Result<SavedFile, CheckpointError> {
    make_folder(partial)?;
    let path = partial.join(name);
    let write = || {
        let mut chunks = HashedFileWriter::create(&path)?;
        chunks.push(content)?;
        chunks.finish()
    };
    let file = write().map_err(io_error("writing", &path))?;
    Ok(SavedFile { file: FileEntry { name: name.to_owned(), ..file }, tensors: Vec::new() })
}

fn make_folder(folder: &Path) -> Result<(), CheckpointError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(io_error("making", folder))
}

fn check_room(folder: &Path, needed: u64) -> Result<(), CheckpointError> {
    let available = available(folder).map_err(io_error("asking for the room in", folder))?;
    if available >= needed {
        return Ok(());
    }
    Err(CheckpointError::Full { folder: folder.to_owned(), needed, available })
}

/// Returns the error of a write to `path`, which is still there. Other processes write to the same disk, so it
/// may become full although there was room before the write.
fn write_error(error: io::Error, path: &Path, needed: u64) -> CheckpointError {
    let folder = path.parent().unwrap_or(Path::new("."));
    if error.kind() == io::ErrorKind::StorageFull
        && let (Ok(free), Ok(written)) = (available(folder), fs::metadata(path))
    {
        let available = free.saturating_add(written.len());
        return CheckpointError::Full { folder: folder.to_owned(), needed, available };
    }
    io_error("writing", path)(error)
}

/// Returns the number of free bytes on the disk of `folder`.
fn available(folder: &Path) -> io::Result<u64> {
    let room = statvfs(folder)?;
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

fn head_of(pieces: &[NamedPiece<'_>]) -> Vec<u8> {
    let mut entries = BTreeMap::new();
    let mut offset = 0;
    for piece in pieces {
        let (elements, found) = (piece.slice.elements(), piece.values.len() as u64);
        assert_eq!(elements, found, "values of {}", piece.key());
        let end = offset + 4 * piece.values.len() as u64;
        let entry =
            TensorInfo { dtype: "F32".into(), shape: piece.entry_shape(), data_offsets: (offset, end) };
        assert!(entries.insert(piece.key(), entry).is_none(), "{} is written twice", piece.key());
        offset = end;
    }
    header::encode(&entries)
}

/// Writes and syncs the file with `pieces` after the header `head`; returns its length and the hashes of
/// its chunks.
fn write(path: &Path, head: &[u8], pieces: &[NamedPiece<'_>]) -> io::Result<FileEntry> {
    let mut chunks = HashedFileWriter::create(path)?;
    chunks.push(head)?;
    for piece in pieces {
        chunks.push(bytemuck::cast_slice(piece.values))?;
    }
    chunks.finish()
}

/// Required alignment of addresses and lengths in direct I/O, in bytes.
const ALIGNMENT: usize = 4096;

/// A file that is written and hashed chunk by chunk, with direct I/O where the file system allows it:
/// copying into the page cache would cost more processor time than everything else here, and the file is
/// not read again soon.
struct HashedFileWriter {
    folder: PathBuf,
    file: File,
    is_direct: bool,
    /// Buffer with room for a chunk and its alignment; the chunk starts at index `begin`.
    room: Vec<u8>,
    begin: usize,
    /// Number of bytes of the chunk in the buffer.
    filled: usize,
    /// Number of bytes written so far, without those in the buffer.
    bytes: u64,
    hashes: Vec<String>,
}

impl HashedFileWriter {
    fn create(path: &Path) -> io::Result<Self> {
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).expect("flags of the kernel");
            OpenOptions::new().write(true).create(true).truncate(true).custom_flags(flags).open(path)
        };
        let (file, is_direct) = match open(OFlags::DIRECT | OFlags::NOFOLLOW) {
            Err(error) if is_refused(&error) => (open(OFlags::NOFOLLOW)?, false),
            file => (file?, true),
        };
        let room = vec![0; CHUNK_BYTES as usize + ALIGNMENT];
        let begin = room.as_ptr().align_offset(ALIGNMENT);
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        Ok(Self { folder, file, is_direct, room, begin, filled: 0, bytes: 0, hashes: Vec::new() })
    }

    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = CHUNK_BYTES as usize - self.filled;
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            self.room[self.begin + self.filled..][..now.len()].copy_from_slice(now);
            self.filled += now.len();
            bytes = later;
            if self.filled as u64 == CHUNK_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes and hashes the buffered chunk, which must be full unless it is the last one.
    fn flush(&mut self) -> io::Result<()> {
        // Other ranks write to the same disk, and each of them checked its own part alone.
        if available(&self.folder)? < RESERVE_BYTES {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let chunk = &self.room[self.begin..][..self.filled];
        self.hashes.push(blake3::hash(chunk).to_hex().to_string());
        self.bytes += self.filled as u64;
        let whole = if self.is_direct { self.filled.next_multiple_of(ALIGNMENT) } else { self.filled };
        let written = self.file.write_all(&self.room[self.begin..][..whole]);
        if let Err(error) = written {
            if !self.is_direct || !is_refused(&error) {
                return Err(error);
            }
            // The file system let the file be opened with `O_DIRECT`, but not written.
            rustix::fs::fcntl_setfl(&self.file, OFlags::empty())?;
            self.is_direct = false;
            // A part of the chunk may have been written.
            self.file.seek(SeekFrom::Start(self.bytes - self.filled as u64))?;
            self.file.write_all(&self.room[self.begin..][..self.filled])?;
        }
        self.filled = 0;
        Ok(())
    }

    /// Writes the rest in the buffer and syncs the file; returns its length and the hashes of its chunks.
    fn finish(mut self) -> io::Result<FileEntry> {
        if self.filled > 0 {
            self.flush()?;
        }
        // What fills the last block is not of the file.
        self.file.set_len(self.bytes)?;
        self.file.sync_all()?;
        Ok(FileEntry { name: String::new(), bytes: self.bytes, chunks: self.hashes })
    }
}

/// Returns `true` if an error means that the file system refuses direct I/O.
fn is_refused(error: &io::Error) -> bool {
    let refusals =
        [rustix::io::Errno::INVAL, rustix::io::Errno::OPNOTSUPP].map(rustix::io::Errno::raw_os_error);
    error.raw_os_error().is_some_and(|found| refusals.contains(&found))
}

fn tensor(piece: &NamedPiece<'_>, file: &str) -> Tensor {
    Tensor {
        name: piece.name.to_owned(),
        kind: piece.kind,
        shape: piece.slice.region().shape.clone(),
        pieces: vec![StoredSlice::of(piece.slice, file, piece.key())],
    }
}

pub(super) fn io_error(action: &'static str, path: &Path) -> impl Fn(io::Error) -> CheckpointError + use<> {
    let path = path.to_owned();
    move |source| CheckpointError::Io { action, path: path.clone(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_becomes_full_during_a_write_is_an_error_in_bytes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, [0; 5]).expect("written");
        let error = write_error(io::ErrorKind::StorageFull.into(), &path, 7);
        let CheckpointError::Full { folder: found, needed: 7, available } = &error else { panic!("{error}") };
        assert_eq!(found, folder.path());
        assert!(*available >= 5, "what was written was free: {available}");
        let other = write_error(io::ErrorKind::PermissionDenied.into(), &path, 7);
        assert!(matches!(other, CheckpointError::Io { action: "writing", .. }), "{other}");
    }
}

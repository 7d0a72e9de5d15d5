//! Reads slices of global tensors from a committed checkpoint, whatever layout wrote it (resharding).
//!
//! The requested slice is intersected with each stored slice, and the overlap is copied, run by run in the
//! order of the file. So a chunk is read once for each stored slice, and at most one is in memory. A chunk
//! is hashed before a byte of it is used.

use super::CheckpointError;
use super::writer::io_error;
use dtrain_protocol::checkpoint::header::{self, ByteRanges};
use dtrain_protocol::checkpoint::{CHUNK_BYTES, FETCHED, SliceOverlap};
use dtrain_protocol::{FileEntry, Manifest, Slice, StoredSlice, Tensor, TensorKind};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

/// Limit on the size of a checkpoint's manifest, in bytes.
const MAX_MANIFEST: u64 = 1 << 30;

/// A committed checkpoint, opened for reading.
#[derive(Debug)]
pub struct TensorReader {
    folder: PathBuf,
    manifest: Manifest,
    tensors: BTreeMap<(String, TensorKind), ManifestTensor>,
    files: BTreeMap<String, OpenFile>,
    /// File, number and content of the chunk that was verified last: adjacent ranges are read one after
    /// another.
    last: Mutex<Option<(String, u64, Vec<u8>)>>,
    /// All reads that are allowed, if [`TensorReader::expect`] declared them.
    #[cfg(test)]
    expected: OnceLock<Vec<dtrain_protocol::checkpoint::TensorRead>>,
}

/// A tensor that the manifest lists.
#[derive(Debug)]
struct ManifestTensor {
    /// Index of the tensor in the manifest's list.
    index: usize,
    /// Slice of the tensor that each stored piece holds.
    slices: Vec<Slice>,
}

#[derive(Debug)]
struct OpenFile {
    file: File,
    entry: FileEntry,
    /// Byte ranges of the tensors in the file; read when first needed.
    places: OnceLock<ByteRanges>,
}

impl TensorReader {
    /// Opens the checkpoint in `folder`.
    ///
    /// `Err` unless the manifest matches its commit record and is valid, and every file has its recorded
    /// length.
    pub fn open(folder: &Path) -> Result<Self, CheckpointError> {
        let manifest = committed(folder)?;
        let mut files = BTreeMap::new();
        for entry in &manifest.files {
            files.insert(entry.name.clone(), open_file(folder, entry)?);
        }
        let unusable = |detail: String| CheckpointError::Unusable { folder: folder.to_owned(), detail };
        let mut tensors = BTreeMap::new();
        for (index, tensor) in manifest.tensors.iter().enumerate() {
            let slices = tensor.pieces.iter().map(|piece| piece.slice(&tensor.shape));
            let slices = slices.collect::<Result<_, _>>().map_err(unusable)?;
            tensors.insert((tensor.name.clone(), tensor.kind), ManifestTensor { index, slices });
        }
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            tensors,
            files,
            last: Mutex::default(),
            #[cfg(test)]
            expected: OnceLock::new(),
        })
    }

    /// Declares all reads to come, so that any other read panics. Hosts fetch only the parts that a rank
    /// declares.
    #[cfg(test)]
    pub(crate) fn expect(&self, reads: Vec<dtrain_protocol::checkpoint::TensorRead>) {
        self.expected.set(reads).expect("once");
    }

    #[cfg(test)]
    fn is_expected(&self, tensor: usize, wanted: &Slice) -> bool {
        self.expected.get().is_none_or(|all| {
            let of = all.iter().filter(|read| read.tensor == tensor);
            let shared = of.flat_map(|read| read.slice.overlaps(wanted)).map(|run| run.length).sum::<u64>();
            shared == wanted.elements()
        })
    }

    /// Returns the manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the folder of the checkpoint, as it was opened.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the content of the file called `name`; `None` if the checkpoint has no such file.
    ///
    /// `Err` if its content does not match its hashes.
    pub fn file(&self, name: &str) -> Result<Option<Vec<u8>>, CheckpointError> {
        let Some(file) = self.files.get(name) else { return Ok(None) };
        let mut bytes = vec![0; index(file.entry.bytes)];
        self.read_bytes(file, 0, &mut bytes).map_err(|(offset, detail)| CheckpointError::Unusable {
            folder: self.folder.clone(),
            detail: format!("{name} at byte {offset}: {detail}"),
        })?;
        Ok(Some(bytes))
    }

    /// Returns the manifest entry of the tensor of this name and kind; `None` if the checkpoint has no
    /// such tensor.
    pub fn tensor(&self, name: &str, kind: TensorKind) -> Option<&Tensor> {
        self.tensors.get(&(name.to_owned(), kind)).map(|stored| &self.manifest.tensors[stored.index])
    }

    /// Reads the elements `wanted` of a global tensor into `into`, which has as many elements.
    ///
    /// Every chunk that is touched is verified. `Err` if there is no such tensor, its shape differs from
    /// that of `wanted`, or a chunk is damaged; the content of `into` is then unspecified.
    pub fn read(
        &self,
        name: &str,
        kind: TensorKind,
        wanted: &Slice,
        into: &mut [f32],
    ) -> Result<(), CheckpointError> {
        assert_eq!(wanted.elements(), into.len() as u64, "room for exactly what is wanted");
        let shape = &wanted.region().shape;
        let missing = |detail| {
            let wanted = format!("{name}{} of shape {shape:?}", kind.suffix());
            CheckpointError::Missing { wanted, detail }
        };
        let Some(stored) = self.tensors.get(&(name.to_owned(), kind)) else {
            return Err(missing("no such tensor".into()));
        };
        let tensor = &self.manifest.tensors[stored.index];
        if tensor.shape != *shape {
            return Err(missing(format!("it has shape {:?} there", tensor.shape)));
        }
        #[cfg(test)]
        assert!(self.is_expected(stored.index, wanted), "{} is read beside the table", tensor.full_name());
        for (piece, slice) in tensor.pieces.iter().zip(&stored.slices) {
            self.read_piece(tensor, piece, slice.overlaps(wanted), into)?;
        }
        Ok(())
    }

    /// Reads `runs` of the stored slice `piece` and copies each to its offset in `into`.
    fn read_piece(
        &self,
        tensor: &Tensor,
        piece: &StoredSlice,
        runs: impl Iterator<Item = SliceOverlap>,
        into: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let mut runs = runs.peekable();
        if runs.peek().is_none() {
            return Ok(());
        }
        let file = &self.files[&piece.file];
        let corrupt = |(offset, detail)| {
            let (tensor, name) = (tensor.full_name(), piece.file.clone());
            if self.is_hole(file, offset) {
                return CheckpointError::NotFetched { tensor, file: name, offset };
            }
            CheckpointError::Corrupt { tensor, file: name, offset, detail }
        };
        let begin = piece.byte_range(self.places(file).map_err(corrupt)?).map_err(corrupt)?.start;
        for SliceOverlap { first, second, length } in runs {
            let room = &mut into[index(second)..index(second + length)];
            self.read_bytes(file, begin + 4 * first, bytemuck::cast_slice_mut(room)).map_err(corrupt)?;
        }
        Ok(())
    }

    fn places<'a>(&self, file: &'a OpenFile) -> Result<&'a ByteRanges, (u64, String)> {
        if let Some(places) = file.places.get() {
            return Ok(places);
        }
        let bytes = file.entry.bytes;
        let mut first = vec![0; index(bytes.min(8))];
        self.read_bytes(file, 0, &mut first)?;
        let length = header::length(&first, bytes).map_err(|detail| (0, detail))?;
        let mut json = vec![0; index(length)];
        self.read_bytes(file, 8, &mut json)?;
        let places = header::decode(&json, bytes).map_err(|detail| (0, detail))?;
        Ok(file.places.get_or_init(|| places))
    }

    /// Returns `true` if the chunk at byte `offset` was never written, because the file was fetched only
    /// in part.
    fn is_hole(&self, file: &OpenFile, offset: u64) -> bool {
        let mut chunk = vec![0; index(CHUNK_BYTES.min(file.entry.bytes.saturating_sub(offset)))];
        let is_in_parts = self.folder.to_string_lossy().ends_with(FETCHED);
        is_in_parts
            && file.file.read_exact_at(&mut chunk, offset).is_ok()
            && chunk.iter().all(|byte| *byte == 0)
    }

    /// Fills `into` with the bytes of a file from `begin` on, and verifies each chunk. `Err` has the
    /// offset of the damaged chunk, and the damage.
    fn read_bytes(&self, file: &OpenFile, begin: u64, into: &mut [u8]) -> Result<(), (u64, String)> {
        let end = begin + into.len() as u64;
        let mut last = self.last.lock().expect("reading does not panic while it holds the chunk");
        let mut at = begin;
        while at < end {
            let chunk = at / CHUNK_BYTES;
            let is_kept =
                last.as_ref().is_some_and(|(name, kept, _)| *name == file.entry.name && *kept == chunk);
            if !is_kept {
                let mut buffer = last.take().map(|(_, _, buffer)| buffer).unwrap_or_default();
                verified_chunk(file, chunk, &mut buffer).map_err(|detail| (chunk * CHUNK_BYTES, detail))?;
                *last = Some((file.entry.name.clone(), chunk, buffer));
            }
            let (_, _, buffer) = last.as_ref().expect("it was just set");
            let from = index(at - chunk * CHUNK_BYTES);
            let length = (buffer.len() - from).min(index(end - at));
            into[index(at - begin)..][..length].copy_from_slice(&buffer[from..][..length]);
            at += length as u64;
        }
        Ok(())
    }
}

/// Reads chunk number `chunk` of a file into `buffer` and verifies its hash; `Err` describes the damage.
fn verified_chunk(file: &OpenFile, chunk: u64, buffer: &mut Vec<u8>) -> Result<(), String> {
    let range = file.entry.chunk(chunk);
    buffer.resize(index(range.end - range.start), 0);
    file.file.read_exact_at(buffer, range.start).map_err(|error| format!("reading failed: {error}"))?;
    file.entry.check(chunk, &blake3::hash(buffer).to_hex())
}

/// Reads the manifest of the checkpoint in `folder`; `Err` unless it matches its commit record.
fn committed(folder: &Path) -> Result<Manifest, CheckpointError> {
    let commit = read_limited(&folder.join("COMMIT"), 1024)?;
    let manifest = read_limited(&folder.join("manifest.json"), MAX_MANIFEST)?;
    let unusable = |detail| CheckpointError::Unusable { folder: folder.to_owned(), detail };
    Manifest::parse_committed(&manifest, &commit).map_err(unusable)
}

fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, CheckpointError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    read.map_err(io_error("reading", path))?;
    Ok(bytes)
}

/// Opens a file that the manifest lists: it must be a regular file in the folder, of the recorded length.
fn open_file(folder: &Path, entry: &FileEntry) -> Result<OpenFile, CheckpointError> {
    let unusable = |detail: String| CheckpointError::Unusable { folder: folder.to_owned(), detail };
    let path = folder.join(&entry.name);
    let about = fs::symlink_metadata(&path).map_err(io_error("looking at", &path))?;
    if !about.is_file() {
        return Err(unusable(format!("{} is not a regular file", entry.name)));
    }
    if about.len() != entry.bytes {
        let (found, promised) = (about.len(), entry.bytes);
        return Err(unusable(format!("{} has {found} bytes, expected {promised}", entry.name)));
    }
    let file = File::open(&path).map_err(io_error("opening", &path))?;
    Ok(OpenFile { file, entry: entry.clone(), places: OnceLock::new() })
}

/// Converts a position that is known to fit into memory to an index.
fn index(value: u64) -> usize {
    usize::try_from(value).expect("addresses have 64 bits")
}

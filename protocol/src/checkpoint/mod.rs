//! The format of checkpoints: named slices of global tensors, readable under any layout (resharding).
//!
//! ```text
//! <checkpoints>/step-000000120.a1.partial/   renamed to step-000000120.a1/ when complete
//!     rank-00000.safetensors                 the pieces rank 0 wrote
//!     manifest.json                          a Manifest, written after every rank's files are durable
//!     COMMIT                                 blake3 of manifest.json, in hex, written last
//! ```

mod corruption;
mod coverage;
pub mod header;
mod manifest;
mod reshard;
mod slice;

pub use corruption::CorruptRange;
pub use manifest::{Manifest, is_file_name};
pub use reshard::{ChunkSet, TensorRead};
pub use slice::{Slice, SliceOverlap};

use crate::{AttemptId, Region, StepId, sharding};
use coverage::CoverageError;
use header::ByteRanges;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Range;

/// Version of the checkpoint format. Older versions can be read, newer ones are refused.
///
/// Version 1 had no regions: its pieces are ranges of whole tensors.
pub const FORMAT: u32 = 2;

/// Name of the folder, beside the checkpoints of dtrain's own worker, of those that a training engine writes in
/// its own format.
pub const ENGINE_FOLDER: &str = "engine";

/// Size in bytes of a chunk, the part of a file that has its own hash.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// Maximum number of dimensions of a tensor, over which the coverage check recurses.
const DIMENSIONS: usize = 8;

/// A global tensor, with the places in files where its elements are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Global name of the parameter, such as `blocks.3.ffn.up.weight`.
    pub name: String,
    /// Role of the tensor in training.
    pub kind: TensorKind,
    /// Global shape of the tensor.
    pub shape: Vec<u64>,
    /// Stored slices of the tensor, which cover every element exactly once.
    pub pieces: Vec<StoredSlice>,
}

/// The role of a tensor in training. All tensors are stored in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// A weight of the model.
    Parameter,
    /// The optimizer's first moment of the parameter with the tensor's name.
    FirstMoment,
    /// The optimizer's second moment of the parameter with the tensor's name.
    SecondMoment,
    /// The momentum of the outer optimizer (DiLoCo).
    OuterMomentum,
    /// The PowerSGD factor `[columns, rank]` of a matrix, from the last low-rank compression.
    Factor,
    /// The f16 loss scale, and the number of steps since it changed; belongs to no parameter.
    LossScale,
    /// State of a single replica, different from that of other replicas.
    Own {
        /// Index of the replica.
        replica: u32,
        /// Kind of the replica's state.
        state: ReplicaState,
    },
}

/// The kind of state that each replica has of its own under approximate synchronization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplicaState {
    /// The replica's weights, which have changed since the last synchronization.
    Weights,
    /// The replica's first moment of the optimizer; that of replica 0 is [`TensorKind::FirstMoment`].
    FirstMoment,
    /// The replica's second moment of the optimizer; that of replica 0 is [`TensorKind::SecondMoment`].
    SecondMoment,
    /// The replica's error feedback of compression: the part of a gradient or a weight change that was not
    /// sent yet.
    Residual,
}

/// A slice of a tensor, stored in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredSlice {
    /// Name of the file that stores the slice.
    pub file: String,
    /// Key of the slice's entry in the safetensors file.
    pub key: String,
    /// Range of the slice's region along each dimension of the tensor; empty if the region is the whole
    /// tensor.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sides: Vec<Range<u64>>,
    /// First element of the slice, in the row-major order of the region.
    pub begin: u64,
    /// One past the last element of the slice, in the row-major order of the region.
    pub end: u64,
}

/// A checkpoint file, with the hashes of its chunks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name of the file within the checkpoint's folder.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// blake3 hash of each chunk of [`CHUNK_BYTES`] bytes, in hex.
    pub chunks: Vec<String>,
}

/// A checkpoint file that one rank wrote, with the pieces of tensors in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// The file that was written.
    pub file: FileEntry,
    /// Tensors that have pieces in the file, with only these pieces.
    pub tensors: Vec<Tensor>,
}

/// Returns the folder name of a committed checkpoint.
pub fn folder_name(step: StepId, attempt: AttemptId) -> String {
    format!("step-{:09}.a{attempt}", step.0)
}

/// Suffix of the name of a folder that has only those parts of a checkpoint that the ranks of its host read.
/// Its files have their full length, with holes where nothing was fetched. Other ranks cannot resume from it.
pub const FETCHED: &str = ".fetched";

/// Parses the name of a checkpoint folder, committed or `.partial`, into step and attempt; `None` for any
/// other name.
pub fn parse_folder_name(name: &str) -> Option<(StepId, AttemptId)> {
    let (step, attempt) =
        name.strip_suffix(".partial").unwrap_or(name).strip_prefix("step-")?.split_once(".a")?;
    Some((StepId(step.parse().ok()?), AttemptId(attempt.parse().ok()?)))
}

impl TensorKind {
    /// Returns the suffix that a tensor of this kind has in messages and keys; empty for a weight.
    pub fn suffix(self) -> String {
        match self {
            Self::Parameter => String::new(),
            Self::FirstMoment => "#first_moment".into(),
            Self::SecondMoment => "#second_moment".into(),
            Self::OuterMomentum => "#outer_momentum".into(),
            Self::Factor => "#factor".into(),
            Self::LossScale => "#loss_scale".into(),
            Self::Own { replica, state } => {
                let state = match state {
                    ReplicaState::Weights => "weights",
                    ReplicaState::FirstMoment => "first_moment",
                    ReplicaState::SecondMoment => "second_moment",
                    ReplicaState::Residual => "residual",
                };
                format!("#replica.{replica}.{state}")
            }
        }
    }
}

impl StoredSlice {
    /// Returns `slice` as a piece that is stored under `key` in `file`.
    pub fn of(slice: &Slice, file: &str, key: String) -> Self {
        let region = slice.region();
        let sides = if region.is_whole() { Vec::new() } else { region.sides.clone() };
        let Range { start: begin, end } = slice.range();
        Self { file: file.to_owned(), key, sides, begin, end }
    }

    /// Returns the byte range of the piece in its file.
    ///
    /// `Err` is the first wrong byte of the file, and the reason in words.
    pub fn byte_range(&self, places: &ByteRanges) -> Result<Range<u64>, (u64, String)> {
        let Some(place) = places.get(&self.key) else {
            return Err((0, format!("the file has no entry {}", self.key)));
        };
        let (promised, found) = (self.end - self.begin, place.end - place.start);
        if promised.checked_mul(4) != Some(found) {
            let detail = format!("expected {promised} elements, found {found} bytes");
            return Err((place.start, detail));
        }
        Ok(place.clone())
    }

    /// Returns the piece as a slice of a tensor of `shape`.
    ///
    /// `Err` is the reason why they do not fit. The number of elements of `shape` must not overflow.
    pub fn slice(&self, shape: &[u64]) -> Result<Slice, String> {
        let Self { sides, begin, end, .. } = self;
        let region = match sides.as_slice() {
            [] => Region::whole(shape),
            sides => Region { shape: shape.to_vec(), sides: sides.to_vec() },
        };
        let fits = |(side, size): (&Range<u64>, &u64)| side.start <= side.end && side.end <= *size;
        if region.sides.len() != shape.len() || !region.sides.iter().zip(shape).all(fits) {
            return Err(format!("a piece of region {sides:?} does not fit into shape {shape:?}"));
        }
        let elements = region.elements();
        if begin > end || *end > elements {
            return Err(format!("a piece has elements {begin}..{end} of a region of {elements}"));
        }
        Ok(Slice::of(region, *begin..*end))
    }
}

impl FileEntry {
    /// Returns the byte range of chunk `index` in the file.
    pub fn chunk(&self, index: u64) -> Range<u64> {
        let begin = index.saturating_mul(CHUNK_BYTES).min(self.bytes);
        begin..begin.saturating_add(CHUNK_BYTES).min(self.bytes)
    }

    /// Checks that `found` is the blake3 hash of chunk `index`. `Err` is the reason in words.
    pub fn check(&self, index: u64, found: &str) -> Result<(), String> {
        let promised = usize::try_from(index).ok().and_then(|index| self.chunks.get(index));
        match promised {
            Some(promised) if promised == found => Ok(()),
            Some(promised) => Err(format!(
                "the content has changed since it was written (blake3 {found}, expected {promised})"
            )),
            None => Err(format!("there is no hash for chunk {index}")),
        }
    }
}

impl Tensor {
    /// Returns the tensor's name with the suffix of its kind.
    pub fn full_name(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }

    /// Returns the tensor's pieces as slices, in order; `Err` unless they cover every element exactly once.
    pub fn slices(&self) -> Result<Vec<Slice>, IncompleteTensor> {
        let Self { shape, pieces, .. } = self;
        let wrong = |detail| IncompleteTensor { tensor: self.full_name(), detail };
        if shape.len() > DIMENSIONS {
            return Err(wrong(format!(
                "{} dimensions found, at most {DIMENSIONS} are supported",
                shape.len()
            )));
        }
        let bytes = shape.iter().try_fold(4u64, |bytes, side| bytes.checked_mul(*side));
        if bytes.is_none() {
            return Err(wrong(format!("the shape {shape:?} is impossible")));
        }
        let slices: Result<Vec<_>, _> = pieces.iter().map(|piece| piece.slice(shape)).collect();
        let slices = slices.map_err(wrong)?;
        match coverage::first_coverage_error(shape, &slices) {
            None => Ok(slices),
            Some(CoverageError { index, times: 0 }) => {
                Err(wrong(format!("element {index:?} lies in no piece")))
            }
            Some(CoverageError { index, times }) => {
                Err(wrong(format!("element {index:?} lies in {times} pieces")))
            }
        }
    }
}

/// Merges the tensors in the files that ranks wrote into one list.
///
/// `Err` names the first tensor whose elements are not covered exactly once, whose shape differs between
/// ranks, that is a moment without its parameter, or that lacks a moment that others have. Such a checkpoint
/// must not be committed.
pub fn merge(
    saved: impl IntoIterator<Item = SavedFile>,
) -> Result<(Vec<Tensor>, Vec<FileEntry>), IncompleteTensor> {
    let (mut files, mut tensors) = (Vec::new(), BTreeMap::<_, Tensor>::new());
    for SavedFile { file, tensors: parts } in saved {
        files.push(file);
        for part in parts {
            let whole = tensors
                .entry((part.name.clone(), part.kind))
                .or_insert_with(|| Tensor { pieces: Vec::new(), ..part.clone() });
            if whole.shape != part.shape {
                return Err(IncompleteTensor {
                    tensor: part.name,
                    detail: "two ranks report different shapes".into(),
                });
            }
            whole.pieces.extend(part.pieces);
        }
    }
    for tensor in tensors.values_mut() {
        let first = |piece: &StoredSlice| {
            (piece.sides.iter().map(|side| side.start).collect::<Vec<_>>(), piece.begin)
        };
        tensor.pieces.sort_by_cached_key(first);
        tensor.slices()?;
    }
    complete(&tensors)?;
    Ok((tensors.into_values().collect(), files))
}

/// Checks that every moment has a parameter, and every trained parameter has all kinds of moments; with
/// adapters, only these are trained. Factors exist only for matrices, with their own shapes; the loss scale
/// has no parameter.
fn complete(tensors: &BTreeMap<(String, TensorKind), Tensor>) -> Result<(), IncompleteTensor> {
    let has_all = |kind: &TensorKind| !matches!(kind, TensorKind::Factor | TensorKind::LossScale);
    let kinds: std::collections::BTreeSet<_> =
        tensors.keys().map(|(_, kind)| *kind).filter(has_all).collect();
    let has_adapters = tensors.keys().any(|(name, _)| sharding::is_adapter(name));
    let is_trained = |name: &str| !has_adapters || sharding::is_adapter(name);
    for ((name, kind), tensor) in tensors.iter().filter(|((_, kind), _)| has_all(kind)) {
        if *kind == TensorKind::Parameter && !is_trained(name) {
            continue;
        }
        for kind in [TensorKind::Parameter].iter().chain(&kinds) {
            let found = tensors.get(&(name.clone(), *kind)).map(|tensor| &tensor.shape);
            if found != Some(&tensor.shape) {
                let found = found.map_or("is missing".into(), |shape| format!("has shape {shape:?}"));
                let detail = format!("{name}{} has shape {:?}", tensor.kind.suffix(), tensor.shape);
                return Err(IncompleteTensor {
                    tensor: format!("{name}{}", kind.suffix()),
                    detail: format!("it {found}, but {detail}"),
                });
            }
        }
    }
    Ok(())
}

/// An error: a tensor is not complete in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {tensor}: {detail}")]
pub struct IncompleteTensor {
    /// Name of the incomplete tensor.
    pub tensor: String,
    /// Reason why the tensor is not complete.
    pub detail: String,
}

#[cfg(test)]
mod tests;

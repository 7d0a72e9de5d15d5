//! What lies in a checkpoint: named ranges of global tensors, readable under any layout.
//!
//! ```text
//! <checkpoints>/step-000000120.a1.partial/   renamed to step-000000120.a1/ when complete
//!     rank-00000.safetensors                 the pieces rank 0 wrote
//!     manifest.json                          a Manifest, written after every rank's files are durable
//!     COMMIT                                 blake3 of manifest.json, in hex, written last
//! ```

use crate::{AttemptId, Layout, StepId, TrialId};
use serde::{Deserialize, Serialize};

/// Version of the format; an older one is migrated while reading, a newer one refused.
pub const FORMAT: u32 = 1;

/// Length of the pieces of a file that have their own hash.
pub const CHUNK_BYTES: u64 = 4 << 20;

/// The table of contents, written last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The trial.
    pub trial: TrialId,
    /// The attempt that wrote it.
    pub attempt: AttemptId,
    /// Steps completed.
    pub step: StepId,
    /// The layout that wrote it. Reading does not depend on it.
    pub layout: Layout,
    /// Version of the program that wrote it.
    pub program: String,
    /// Position in the sample stream: the next sample to be read.
    pub cursor: u64,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// All files.
    pub files: Vec<FileEntry>,
}

/// One global tensor and where its elements lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Global name, such as `blocks.3.ffn.up.weight`.
    pub name: String,
    /// What it is to training.
    pub kind: TensorKind,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Where its elements lie; the ranges cover every element exactly once.
    pub pieces: Vec<Piece>,
}

/// What a tensor is to training. All are stored in f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorKind {
    /// A weight.
    Parameter,
    /// The optimizer's first moment of the parameter of the same name.
    FirstMoment,
    /// The optimizer's second moment of the parameter of the same name.
    SecondMoment,
}

/// A contiguous range of a tensor's elements, in row-major order, stored in one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Name of the file.
    pub file: String,
    /// Key of the entry inside the safetensors file.
    pub key: String,
    /// First element.
    pub begin: u64,
    /// One past the last element.
    pub end: u64,
}

/// A file and its hashes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Name inside the folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// blake3 of each chunk of [`CHUNK_BYTES`], in hex.
    pub chunks: Vec<String>,
}

/// What one rank wrote: a file, and the pieces of tensors in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFile {
    /// The file.
    pub file: FileEntry,
    /// The tensors with the pieces that lie in this file.
    pub tensors: Vec<Tensor>,
}

/// The name of the folder of a committed checkpoint.
pub fn folder_name(step: StepId, attempt: AttemptId) -> String {
    format!("step-{:09}.a{attempt}", step.0)
}

/// The step and attempt of a folder name, committed or `.partial`; `None` for any other name.
pub fn parse_folder_name(name: &str) -> Option<(StepId, AttemptId)> {
    let (step, attempt) =
        name.strip_suffix(".partial").unwrap_or(name).strip_prefix("step-")?.split_once(".a")?;
    Some((StepId(step.parse().ok()?), AttemptId(attempt.parse().ok()?)))
}

/// Joins what the ranks wrote into one table of tensors.
///
/// `Err` names the first tensor whose elements are not covered exactly once, or whose shape two ranks tell
/// differently: such a checkpoint must not be committed.
pub fn merge(saved: impl IntoIterator<Item = SavedFile>) -> Result<(Vec<Tensor>, Vec<FileEntry>), Uncovered> {
    let (mut files, mut tensors) = (Vec::new(), std::collections::BTreeMap::<_, Tensor>::new());
    for SavedFile { file, tensors: parts } in saved {
        files.push(file);
        for part in parts {
            let whole = tensors
                .entry((part.name.clone(), part.kind))
                .or_insert_with(|| Tensor { pieces: Vec::new(), ..part.clone() });
            if whole.shape != part.shape {
                return Err(Uncovered {
                    tensor: part.name,
                    detail: "two ranks tell different shapes".into(),
                });
            }
            whole.pieces.extend(part.pieces);
        }
    }
    for tensor in tensors.values_mut() {
        tensor.pieces.sort_by_key(|piece| piece.begin);
        covered(tensor)?;
    }
    Ok((tensors.into_values().collect(), files))
}

/// Fails unless the sorted pieces of `tensor` cover every element exactly once.
fn covered(tensor: &Tensor) -> Result<(), Uncovered> {
    let elements: u64 = tensor.shape.iter().product();
    let mut next = 0;
    for piece in &tensor.pieces {
        if piece.begin != next || piece.end < piece.begin {
            let detail = format!("expected a piece at element {next}, found {}..{}", piece.begin, piece.end);
            return Err(Uncovered { tensor: tensor.name.clone(), detail });
        }
        next = piece.end;
    }
    if next == elements {
        return Ok(());
    }
    let detail = format!("the pieces end at element {next} of {elements}");
    Err(Uncovered { tensor: tensor.name.clone(), detail })
}

/// A tensor that a checkpoint does not hold exactly once.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {tensor}: {detail}")]
pub struct Uncovered {
    /// The tensor.
    pub tensor: String,
    /// What is wrong.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(file: &str, begin: u64, end: u64) -> SavedFile {
        let piece = Piece { file: file.into(), key: "w".into(), begin, end };
        SavedFile {
            file: FileEntry { name: file.into(), bytes: 0, chunks: Vec::new() },
            tensors: vec![Tensor {
                name: "w".into(),
                kind: TensorKind::Parameter,
                shape: vec![2, 3],
                pieces: vec![piece],
            }],
        }
    }

    #[test]
    fn pieces_of_all_ranks_must_cover_each_element_once() {
        let (tensors, files) = merge([saved("b", 4, 6), saved("a", 0, 4)]).expect("they cover");
        assert_eq!((tensors.len(), files.len(), tensors[0].pieces[0].file.as_str()), (1, 2, "a"));
        assert!(merge([saved("a", 0, 4)]).is_err(), "two elements are missing");
        assert!(merge([saved("a", 0, 4), saved("b", 3, 6)]).is_err(), "one element lies twice");
        assert!(merge([saved("a", 0, 4), saved("b", 5, 6)]).is_err(), "one element is missing in the middle");
    }

    #[test]
    fn folder_names_are_read_back() {
        let name = folder_name(StepId(120), AttemptId(7));
        assert_eq!(name, "step-000000120.a7");
        assert_eq!(parse_folder_name(&name), Some((StepId(120), AttemptId(7))));
        assert_eq!(parse_folder_name(&format!("{name}.partial")), Some((StepId(120), AttemptId(7))));
        assert_eq!(parse_folder_name("step-x.a1"), None);
    }
}

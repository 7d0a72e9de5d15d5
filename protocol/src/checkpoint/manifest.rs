//! The manifest of a checkpoint, and how it is read and validated. The disk is not trusted: the hash in `COMMIT` verifies
//! the manifest, and its hashes verify every chunk of every file.

use super::{CHUNK_BYTES, FORMAT, FileEntry, Tensor};
use crate::{Assignment, AttemptId, Layout, StepId, TrialId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The manifest of a checkpoint, which lists its tensors and files. It is written after them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the checkpoint format, see [`FORMAT`].
    pub format: u32,
    /// Id of the trial that wrote the checkpoint.
    pub trial: TrialId,
    /// Attempt that wrote the checkpoint.
    pub attempt: AttemptId,
    /// Number of steps completed in the checkpoint.
    pub step: StepId,
    /// Layout of the ranks that wrote the checkpoint. Any other layout can read it.
    pub layout: Layout,
    /// Version of dtrain that wrote the checkpoint.
    pub program: String,
    /// Position in the sample stream: the next sample to read.
    pub cursor: u64,
    /// Seed of the sample order and of the initial weights; `None` in format version 1.
    #[serde(default)]
    pub seed: Option<u64>,
    /// All tensors of the checkpoint.
    pub tensors: Vec<Tensor>,
    /// All files of the checkpoint.
    pub files: Vec<FileEntry>,
}

impl Manifest {
    /// Returns the manifest of a checkpoint after `step`; `one` is the assignment of any rank of the attempt,
    /// and `program` is the version of dtrain.
    pub fn new(
        one: &Assignment,
        step: StepId,
        program: &str,
        tensors: Vec<Tensor>,
        files: Vec<FileEntry>,
    ) -> Self {
        Self {
            format: FORMAT,
            trial: one.trial.clone(),
            attempt: one.attempt,
            step,
            layout: one.arrangement.layout,
            program: program.into(),
            cursor: step.0 * one.training.batch,
            seed: Some(one.training.seed),
            tensors,
            files,
        }
    }

    /// Parses a manifest from the contents of `manifest.json` (`text`), verified by those of `COMMIT`
    /// (`commit`).
    ///
    /// `Err` is the reason in words: a wrong hash, an unsupported format, an invalid file name, or a tensor
    /// that is not covered exactly once.
    pub fn parse_committed(text: &[u8], commit: &[u8]) -> Result<Self, String> {
        let found = blake3::hash(text).to_hex();
        if commit != found.as_bytes() {
            let promised = String::from_utf8_lossy(commit).escape_debug().to_string();
            return Err(format!("COMMIT has blake3 {promised} for manifest.json, found {found}"));
        }
        let manifest = parse(text)?;
        let mut files = BTreeSet::new();
        for file in &manifest.files {
            check_file(file)?;
            if !files.insert(file.name.as_str()) {
                return Err(format!("the manifest names {} twice", file.name));
            }
        }
        let mut tensors = BTreeSet::new();
        for tensor in &manifest.tensors {
            check_tensor(tensor, &files)?;
            if !tensors.insert((&tensor.name, tensor.kind)) {
                return Err(format!("the manifest names tensor {} twice", tensor.full_name()));
            }
        }
        Ok(manifest)
    }
}

/// Parses a manifest, its format version before everything else, since newer formats may differ.
fn parse(text: &[u8]) -> Result<Manifest, String> {
    #[derive(Deserialize)]
    struct VersionField {
        format: u32,
    }
    let version: VersionField =
        serde_json::from_slice(text).map_err(|error| format!("manifest.json has no format: {error}"))?;
    if !(1..=FORMAT).contains(&version.format) {
        let format = version.format;
        return Err(format!(
            "manifest.json has format {format}, this program reads 1 to {FORMAT}; use the version that wrote it"
        ));
    }
    serde_json::from_slice(text).map_err(|error| format!("manifest.json: {error}"))
}

/// Checks that the file's name stays inside the checkpoint folder, and that every chunk has a hash.
fn check_file(file: &FileEntry) -> Result<(), String> {
    let FileEntry { name, bytes, chunks } = file;
    if !is_file_name(name) {
        return Err(format!("`{}` is not the name of a file in the folder", name.escape_debug()));
    }
    if chunks.len() as u64 != bytes.div_ceil(CHUNK_BYTES) {
        return Err(format!("{} hashes do not match the {bytes} bytes of {name}", chunks.len()));
    }
    Ok(())
}

/// Returns `true` if `name` is valid for a checkpoint file: it does not lead out of the folder, and is not
/// hidden.
pub fn is_file_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.len() <= 255 && name.chars().all(allowed)
}

/// Checks that a tensor's pieces are in listed files, and cover every element exactly once.
fn check_tensor(tensor: &Tensor, files: &BTreeSet<&str>) -> Result<(), String> {
    if let Some(piece) = tensor.pieces.iter().find(|piece| !files.contains(piece.file.as_str())) {
        let file = piece.file.escape_debug();
        return Err(format!("tensor {} lies in `{file}`, which is not listed", tensor.full_name()));
    }
    tensor.slices().map(drop).map_err(|uncovered| uncovered.to_string())
}

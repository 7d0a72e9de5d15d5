//! Whether a table of contents is what was committed, and makes sense. Nothing on the disk is believed: `COMMIT` vouches for
//! the table, and the table for every chunk of every file.

use super::{CHUNK_BYTES, FORMAT, FileEntry, Manifest, Tensor};
use serde::Deserialize;
use std::collections::BTreeSet;

impl Manifest {
    /// The table of contents in `text`, the content of `manifest.json`, if `commit`, that of `COMMIT`, vouches for it.
    ///
    /// `Err` says in words what is wrong: it is not what was committed, is of a format that this program does not read, names a
    /// file that cannot be one, or has a tensor that is not there exactly once.
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

/// Reads the format before anything else: what a newer one means is not known.
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

/// The name is one of a file inside the folder, and there is a hash for every chunk.
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

/// Whether a file of a checkpoint may be called so: nothing that leads out of its folder, or hides.
pub fn is_file_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.len() <= 255 && name.chars().all(allowed)
}

/// The pieces lie in files that are listed, and cover every element once.
fn check_tensor(tensor: &Tensor, files: &BTreeSet<&str>) -> Result<(), String> {
    if let Some(piece) = tensor.pieces.iter().find(|piece| !files.contains(piece.file.as_str())) {
        let file = piece.file.escape_debug();
        return Err(format!("tensor {} lies in `{file}`, which is not listed", tensor.full_name()));
    }
    tensor.slices().map(drop).map_err(|uncovered| uncovered.to_string())
}

//! Turns what all ranks saved into a committed checkpoint, and removes old ones.

use crate::checkpoints::{self, COMMIT, MANIFEST};
use crate::durable;
use dtrain_protocol::checkpoint::{folder_name, merge, parse_folder_name};
use dtrain_protocol::{Assignment, AttemptId, Manifest, SavedFile, StepId};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Commits the checkpoint of `step`: manifest, then COMMIT, then the folder's final name, each on disk before
/// the next. Returns the committed folder; `Err` says in words why there is none.
pub(super) fn commit(
    one: &Assignment,
    step: StepId,
    partial: &Path,
    files: Vec<SavedFile>,
) -> Result<PathBuf, String> {
    let (tensors, files) = merge(files).map_err(|uncovered| uncovered.to_string())?;
    for file in &files {
        let path = partial.join(&file.name);
        let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        if found != file.bytes {
            return Err(format!("{} has {found} bytes, {} were announced", path.display(), file.bytes));
        }
    }
    let manifest = Manifest::new(one, step, env!("CARGO_PKG_VERSION"), tensors, files);
    let folder = partial.with_file_name(folder_name(step, one.attempt));
    write(&manifest, partial, &folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn write(manifest: &Manifest, partial: &Path, folder: &Path) -> io::Result<()> {
    let text = serde_json::to_vec(manifest)?;
    durable::write(&partial.join(MANIFEST), &text)?;
    durable::write(&partial.join(COMMIT), blake3::hash(&text).to_hex().as_bytes())?;
    durable::sync_folder(partial)?;
    fs::rename(partial, folder)?;
    durable::sync_folder(folder.parent().unwrap_or(Path::new("/")))
}

/// Removes committed checkpoints but the `keep` newest, of which there are at least 2.
///
/// A later attempt's checkpoint is newer even when it holds fewer steps: the attempt went back because what came
/// after could not be read.
pub(super) fn retain(checkpoints: &Path, keep: u32) -> io::Result<()> {
    let committed = checkpoints::committed(checkpoints)?;
    let superfluous = committed.len().saturating_sub(keep.max(2) as usize);
    for point in &committed[..superfluous] {
        fs::remove_dir_all(&point.folder)?;
    }
    Ok(())
}

/// Removes what attempts before `attempt` left half-written.
pub(super) fn remove_partial(checkpoints: &Path, attempt: AttemptId) -> io::Result<()> {
    for entry in fs::read_dir(checkpoints)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let older = parse_folder_name(&name).is_some_and(|(_, of)| of < attempt);
        if older && name.ends_with(".partial") {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

//! Turns what all ranks saved into a committed checkpoint, and removes old ones.
//!
//! In two parts, so that several hosts can do each before any does the next: a checkpoint is prepared when everything of it is
//! durable, and committed when its folder has its final name.

use super::{COMMIT, MANIFEST, committed};
use crate::durable;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{merge, parse_folder_name};
use dtrain_protocol::{Assignment, AttemptId, Manifest, SavedFile, StepId};
use std::fs;
use std::io;
use std::path::Path;

/// `Err` in words unless every file lies in the folder in its length.
pub fn check(partial: &Path, files: &[SavedFile]) -> Result<(), String> {
    for SavedFile { file, .. } in files {
        let path = partial.join(&file.name);
        let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        if found != file.bytes {
            return Err(format!("{} has {found} bytes, {} were announced", path.display(), file.bytes));
        }
    }
    Ok(())
}

/// The table of contents of what all ranks saved; `Err` in words when they did not save all.
pub fn contents(one: &Assignment, step: StepId, files: Vec<SavedFile>) -> Result<String, String> {
    let (tensors, files) = merge(files).map_err(|uncovered| uncovered.to_string())?;
    let manifest = Manifest::new(one, step, env!("CARGO_PKG_VERSION"), tensors, files);
    Ok(serde_json::to_string(&manifest).expect("a manifest has string keys only"))
}

/// Puts the table of contents and COMMIT beside the files of a checkpoint, all of it durable.
pub fn prepare(partial: &Path, contents: &str) -> Result<(), String> {
    let write = || -> io::Result<()> {
        fs::create_dir_all(partial)?;
        durable::write(&partial.join(MANIFEST), contents.as_bytes())?;
        durable::write(&partial.join(COMMIT), blake3::hash(contents.as_bytes()).to_hex().as_bytes())?;
        durable::sync_folder(partial)
    };
    write().map_err(|error| format!("{}: {error}", partial.display()))
}

/// Gives a prepared checkpoint its final name.
pub fn finish(trial: &TrialFolder, step: StepId, attempt: AttemptId) -> Result<(), String> {
    let folder = trial.checkpoint(step, attempt);
    fs::rename(trial.partial_checkpoint(step, attempt), &folder)
        .and_then(|()| durable::sync_folder(&trial.checkpoints()))
        .map_err(|error| format!("{}: {error}", folder.display()))
}

/// Removes what was saved of a checkpoint that there will not be, so that it takes no room.
pub fn discard(trial: &TrialFolder, step: StepId, attempt: AttemptId) -> io::Result<()> {
    match fs::remove_dir_all(trial.partial_checkpoint(step, attempt)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes committed checkpoints but the `keep` newest, of which there are at least 2.
///
/// A later attempt's checkpoint is newer even when it holds fewer steps: the attempt went back because what came
/// after could not be read.
pub fn retain(checkpoints: &Path, keep: u32) -> io::Result<()> {
    let committed = committed(checkpoints)?;
    let superfluous = committed.len().saturating_sub(keep.max(2) as usize);
    for point in &committed[..superfluous] {
        fs::remove_dir_all(&point.folder)?;
    }
    Ok(())
}

/// Removes what attempts before `attempt` left half-written.
pub fn remove_partial(checkpoints: &Path, attempt: AttemptId) -> io::Result<()> {
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

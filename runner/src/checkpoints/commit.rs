//! Commits a checkpoint from the files of all ranks.
//!
//! A commit has two phases, so that several hosts finish the first before any begins the second: prepare
//! makes all files durable, finish gives the folder its final name.

use super::{COMMIT, MANIFEST};
use crate::durable;
use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{merge, parse_folder_name};
use dtrain_protocol::{Assignment, AttemptId, Manifest, SavedFile, StepId};
use std::fs;
use std::io;
use std::path::Path;

/// Checks that all `files` are in the folder `partial` with their full length; `Err` names the first that is
/// not.
pub fn check(partial: &Path, files: &[SavedFile]) -> Result<(), String> {
    for SavedFile { file, .. } in files {
        let path = partial.join(&file.name);
        let found = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?.len();
        if found != file.bytes {
            return Err(format!("{} has {found} bytes, expected {}", path.display(), file.bytes));
        }
    }
    Ok(())
}

/// Returns the manifest, as JSON, of a checkpoint made of the files that all ranks saved; `Err` if any
/// element of a tensor is not saved exactly once.
pub fn manifest_contents(one: &Assignment, step: StepId, files: Vec<SavedFile>) -> Result<String, String> {
    let (tensors, files) = merge(files).map_err(|uncovered| uncovered.to_string())?;
    let manifest = Manifest::new(one, step, env!("CARGO_PKG_VERSION"), tensors, files);
    Ok(serde_json::to_string(&manifest).expect("a manifest has string keys only"))
}

/// Writes the manifest and COMMIT beside the files of a checkpoint, and makes everything durable.
pub fn prepare(partial: &Path, contents: &str) -> Result<(), String> {
    let write = || -> io::Result<()> {
        files::make_folder(partial)?;
        durable::write(&partial.join(MANIFEST), contents.as_bytes())?;
        durable::write(&partial.join(COMMIT), blake3::hash(contents.as_bytes()).to_hex().as_bytes())?;
        durable::sync_folder(partial)
    };
    write().map_err(|error| format!("{}: {error}", partial.display()))
}

/// Commits a prepared checkpoint by renaming its folder to the final name.
pub fn finish(trial: &TrialFolder, step: StepId, attempt: AttemptId) -> Result<(), String> {
    let folder = trial.checkpoint(step, attempt);
    fs::rename(trial.partial_checkpoint(step, attempt), &folder)
        .and_then(|()| durable::sync_folder(&trial.checkpoints()))
        .map_err(|error| format!("{}: {error}", folder.display()))
}

/// Removes the files of an uncommitted checkpoint, which will not be committed.
pub fn discard(trial: &TrialFolder, step: StepId, attempt: AttemptId) -> io::Result<()> {
    match fs::remove_dir_all(trial.partial_checkpoint(step, attempt)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes the partial checkpoints that attempts before `attempt` left.
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

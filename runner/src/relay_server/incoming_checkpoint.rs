//! Receives a checkpoint that the controller copies to this host.

use crate::checkpoints::{COMMIT, commit};
use crate::files;
use crate::home::TrialFolder;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use dtrain_protocol::checkpoint::{is_file_name, parse_folder_name};
use dtrain_protocol::{AttemptId, FileEntry, Manifest, StepId};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A checkpoint that is being copied to this host.
pub(super) struct IncomingCheckpoint<'a> {
    trial: &'a TrialFolder,
    step: StepId,
    attempt: AttemptId,
}

impl<'a> IncomingCheckpoint<'a> {
    /// Creates the checkpoint with the folder `name`; `Err` if that is not the name of a checkpoint folder.
    pub(super) fn of(trial: &'a TrialFolder, name: &str) -> Result<Self, String> {
        match parse_folder_name(name) {
            Some((step, attempt)) if trial.checkpoint(step, attempt).ends_with(name) => {
                Ok(Self { trial, step, attempt })
            }
            _ => Err(format!("{name:?} is not the name of a checkpoint")),
        }
    }

    fn partial(&self) -> PathBuf {
        self.trial.partial_checkpoint(self.step, self.attempt)
    }

    /// Writes base64 bytes into the checkpoint file `name` at byte `from`.
    pub(super) fn write(&self, name: &str, from: u64, bytes: &str) -> Result<(), String> {
        if !is_file_name(name) {
            return Err(format!("{name:?} is not the name of a file of a checkpoint"));
        }
        let bytes = BASE64_STANDARD.decode(bytes).map_err(|error| format!("{name}: {error}"))?;
        let (folder, path) = (self.partial(), self.partial().join(name));
        let write = || -> io::Result<()> {
            files::make_folder(&folder)?;
            let options = OpenOptions::new().write(true).create(true).truncate(false).clone();
            files::open_as(&options, &path)?.write_all_at(&bytes, from)
        };
        write().map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Verifies every chunk, and commits the checkpoint with the given text as its manifest.
    pub(super) fn commit(&self, manifest_text: &str) -> Result<(), String> {
        let final_folder = self.trial.checkpoint(self.step, self.attempt);
        if final_folder.join(COMMIT).exists() {
            return Ok(());
        }
        let digest = blake3::hash(manifest_text.as_bytes()).to_hex();
        let manifest = Manifest::parse_committed(manifest_text.as_bytes(), digest.as_bytes())?;
        manifest.files.iter().try_for_each(|entry| self.verify(entry))?;
        commit::prepare(&self.partial(), manifest_text)?;
        commit::finish(self.trial, self.step, self.attempt)
    }

    /// Verifies the chunks of a checkpoint file, and flushes the file to disk.
    fn verify(&self, entry: &FileEntry) -> Result<(), String> {
        let path = self.partial().join(&entry.name);
        let words = |error: io::Error| format!("{}: {error}", path.display());
        let file = files::open(&path).map_err(words)?;
        let found = fs::metadata(&path).map_err(words)?.len();
        if found != entry.bytes {
            return Err(format!("{} has {found} bytes, expected {}", path.display(), entry.bytes));
        }
        for index in 0..entry.chunks.len() as u64 {
            let range = entry.chunk(index);
            let mut chunk = vec![0; usize::try_from(range.end - range.start).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut chunk, range.start).map_err(words)?;
            entry.check(index, &blake3::hash(&chunk).to_hex())?;
        }
        file.sync_all().map_err(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoints;

    #[test]
    fn nothing_is_written_outside_the_folder_of_a_checkpoint() {
        let root = tempfile::tempdir().expect("a folder");
        let trial = TrialFolder::at(root.path().join("trial"));
        trial.create().expect("room on disk");
        for name in ["..", "../step-000000001.a0", "step-000000001.a0.partial", "step-000000001.a0/..", "x"] {
            assert!(IncomingCheckpoint::of(&trial, name).is_err(), "{name}");
        }
        let copy = IncomingCheckpoint::of(&trial, "step-000000001.a0").expect("a name");
        for file in ["../x", "/etc/x", "a/b", ""] {
            assert!(copy.write(file, 0, "").is_err(), "{file}");
        }
        assert!(copy.write("rank-00000.safetensors", 0, "not base64!").is_err());
        assert!(copy.commit("{}").is_err(), "no manifest");
        assert!(checkpoints::committed(&trial.checkpoints()).expect("a folder").is_empty());
    }
}

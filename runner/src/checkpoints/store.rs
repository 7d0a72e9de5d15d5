//! Stores of checkpoint files: this machine, or a remote host.

use crate::files;
use crate::home::TrialFolder;
use dtrain_protocol::checkpoint::{CHUNK_BYTES, ENGINE_FOLDER, is_file_name, parse_folder_name};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Most bytes that one read of a file returns.
const MOST: u64 = CHUNK_BYTES;

/// Place that holds files of a trial's checkpoints, such as this machine or a remote host.
pub trait CheckpointStore {
    /// Returns the name of the store, as shown to users.
    fn name(&self) -> &str;

    /// Lists the checkpoint folders in the store, committed or not.
    fn folders(&mut self) -> Result<Vec<FolderListing>, String>;

    /// Reads at most one chunk of a file, starting at byte `from`; returns nothing at the end of the file.
    fn read(&mut self, folder: &str, file: &str, from: u64) -> Result<Vec<u8>, String>;

    /// Returns the blake3 hashes, in hex, of `count` chunks of a stored file, starting with chunk `first`;
    /// fewer at the end of the file. A chunk that cannot be read is an `Err` with the reason.
    fn hashes(
        &mut self,
        folder: &str,
        file: &str,
        first: u64,
        count: u64,
    ) -> Result<Vec<Result<String, String>>, String>;

    /// Returns the CRC-32 of a stored file.
    fn crc32(&mut self, folder: &str, file: &str) -> Result<u32, String>;
}

/// The writer of checkpoints, which decides their format and their folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointWriter {
    /// dtrain's own worker.
    Worker,
    /// A training engine.
    Engine,
}

impl CheckpointWriter {
    /// Returns `true` if a folder of this name can be that of a checkpoint.
    fn is_folder(self, name: &str) -> bool {
        match self {
            Self::Worker => parse_folder_name(name).is_some(),
            Self::Engine => engine_step(name).is_some(),
        }
    }

    fn is_file(self, name: &str) -> bool {
        match self {
            Self::Worker => is_file_name(name),
            Self::Engine => is_engine_file(name),
        }
    }
}

/// Listing of one checkpoint folder in a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderListing {
    /// Name of the folder: that of the checkpoint, with `.partial` appended before the commit.
    pub name: String,
    /// Time of the last change to the folder, in milliseconds since the Unix epoch.
    pub modified_ms: u64,
    /// Names of the files in the folder, with their lengths in bytes.
    pub files: BTreeMap<String, u64>,
}

/// Returns the step of an engine's checkpoint folder, `step-N`; `None` for another name.
pub fn engine_step(name: &str) -> Option<u64> {
    let number = name.strip_prefix("step-")?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok())?
}

/// Returns `true` if `name` can be that of a file of an engine's checkpoint, such as `__0_0.distcp` or
/// `.metadata`.
pub(super) fn is_engine_file(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !matches!(name, "" | "." | "..") && name.len() <= 255 && name.chars().all(is_allowed)
}

/// Store of one trial's checkpoints on this machine.
pub struct LocalStore {
    trial: TrialFolder,
    writer: CheckpointWriter,
}

impl LocalStore {
    /// Returns the store of the checkpoints that dtrain's own worker wrote for the trial in this folder.
    pub fn new(trial: TrialFolder) -> Self {
        Self { trial, writer: CheckpointWriter::Worker }
    }

    /// Returns the store of the checkpoints of another writer.
    #[must_use]
    pub fn of(self, writer: CheckpointWriter) -> Self {
        Self { writer, ..self }
    }

    fn path(&self) -> PathBuf {
        match self.writer {
            CheckpointWriter::Worker => self.trial.checkpoints(),
            CheckpointWriter::Engine => self.trial.checkpoints().join(ENGINE_FOLDER),
        }
    }

    /// Opens a file of a checkpoint; `Err` for invalid names, and for links, which may lead anywhere.
    fn open(&self, folder: &str, file: &str) -> Result<File, String> {
        if !self.writer.is_folder(folder) || !self.writer.is_file(file) {
            return Err(format!("{folder}/{file} is not a checkpoint file"));
        }
        let path = self.path().join(folder).join(file);
        files::open(&path).map_err(|error| format!("{}: {error}", path.display()))
    }
}

impl CheckpointStore for LocalStore {
    fn name(&self) -> &'static str {
        "this machine"
    }

    fn folders(&mut self) -> Result<Vec<FolderListing>, String> {
        let path = self.path();
        match folders(&path, self.writer) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            found => found.map_err(|error| format!("{}: {error}", path.display())),
        }
    }

    fn read(&mut self, folder: &str, file: &str, from: u64) -> Result<Vec<u8>, String> {
        let mut opened = self.open(folder, file)?;
        let mut bytes = Vec::new();
        let read = opened.seek(SeekFrom::Start(from)).and_then(|_| opened.take(MOST).read_to_end(&mut bytes));
        read.map(|_| bytes).map_err(|error| format!("{file} at byte {from}: {error}"))
    }

    fn hashes(
        &mut self,
        folder: &str,
        file: &str,
        first: u64,
        count: u64,
    ) -> Result<Vec<Result<String, String>>, String> {
        let opened = self.open(folder, file)?;
        let bytes = opened.metadata().map_err(|error| format!("{file}: {error}"))?.len();
        let mut chunk = Vec::new();
        let mut hashes = Vec::new();
        for index in first..first.saturating_add(count) {
            let begin = index.saturating_mul(CHUNK_BYTES);
            if begin >= bytes {
                break;
            }
            chunk.clear();
            let mut from = &opened;
            let read = from.seek(SeekFrom::Start(begin));
            let read = read.and_then(|_| from.take(CHUNK_BYTES).read_to_end(&mut chunk));
            let hash = read.map(|_| blake3::hash(&chunk).to_hex().to_string());
            hashes.push(hash.map_err(|error| format!("reading failed: {error}")));
        }
        Ok(hashes)
    }

    fn crc32(&mut self, folder: &str, file: &str) -> Result<u32, String> {
        let mut opened = self.open(folder, file)?;
        let (mut checksum, mut piece) = (crc32fast::Hasher::new(), vec![0; 1 << 20]);
        loop {
            match opened.read(&mut piece).map_err(|error| format!("{file}: {error}"))? {
                0 => return Ok(checksum.finalize()),
                length => checksum.update(&piece[..length]),
            }
        }
    }
}

/// Lists the checkpoint folders in `path`; folders that vanish meanwhile are skipped.
fn folders(path: &std::path::Path, writer: CheckpointWriter) -> io::Result<Vec<FolderListing>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !writer.is_folder(&name) {
            continue;
        }
        let (Ok(about), Ok(entries)) = (entry.metadata(), fs::read_dir(entry.path())) else { continue };
        let since = about.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        let modified_ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let file = |entry: fs::DirEntry| {
            let about = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((entry.file_name().into_string().ok()?, about.len()))
        };
        let files = entries.flatten().filter_map(file).collect();
        found.push(FolderListing { name, modified_ms, files });
    }
    found.sort_by_key(|folder| parse_folder_name(&folder.name).map(|(step, attempt)| (attempt, step)));
    Ok(found)
}

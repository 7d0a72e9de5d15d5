//! The cache of trained tokenizers and tokenized text.
//!
//! A cached file is named by a hash of its source files and of the method that made it. It is written under
//! a temporary name and renamed, so that a reader sees all or nothing; a lock lets one rank of a host do
//! the work while the others wait.

use super::DataError;
use super::file_lock::hold;
use super::files::{self, DataFile};
use crate::comm::WorkCounter;
use dtrain_protocol::input_manifest::fingerprint;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Prefix of the names of all files in the cache.
pub(super) const PREFIX: &str = "bpe-";

/// Lists the cached files in `cache`, without lock files, which waiting ranks have open, and without
/// temporary files of running processes.
pub(super) fn list_cached(cache: &Path) -> Vec<PathBuf> {
    let is_ours = |path: &PathBuf| {
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let writer = ending.strip_prefix("new-").and_then(|id| id.parse::<u32>().ok());
        let is_written = writer.is_some_and(|id| Path::new("/proc").join(id.to_string()).exists());
        key_in(path).is_some() && (matches!(ending, "json" | "tokens") || (writer.is_some() && !is_written))
    };
    let entries = fs::read_dir(cache).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(is_ours).collect()
}

/// Returns the cache key in the name of a cached file; the file's lock is named by the same key.
fn key_in(path: &Path) -> Option<&str> {
    let key = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.get(..32)?;
    key.bytes().all(|byte| byte.is_ascii_hexdigit()).then_some(key)
}

/// Removes a file from the cache; returns `Ok(false)` if a process is writing or opening it.
pub(super) fn discard(path: &Path) -> Result<bool, DataError> {
    let (Some(key), Some(cache)) = (key_in(path), path.parent()) else { return Ok(false) };
    let lock = cache.join(format!("{PREFIX}{key}.lock"));
    let file = crate::files::lock_file(&lock).map_err(cache_error("making", &lock))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => fs::remove_file(path).map(|()| true).map_err(cache_error("removing", path)),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(cache_error("locking", &lock)(error.into())),
    }
}

/// Returns the cache key of the output that `method` produces from `files`.
///
/// Only blocks of a long file are hashed, so its modification time counts too.
pub(super) fn key(method: &str, files: &[Arc<DataFile>]) -> Result<String, DataError> {
    let mut hasher = blake3::Hasher::new();
    hasher.update(method.as_bytes());
    hasher.update(fingerprint(&files::recorded(files)?).as_bytes());
    for file in files.iter().filter(|file| file.bytes > files::WHOLE_BYTES) {
        hasher.update(&file.modified.to_le_bytes());
    }
    Ok(hasher.finalize().to_hex()[..32].to_owned())
}

/// Locks a cache key, so that one process does the work for it; closing the returned file releases the
/// lock.
///
/// A waiting rank advances `progress` like the one that works, so that neither is taken for stuck.
pub(super) fn lock(cache: &Path, key: &str, progress: &WorkCounter) -> Result<File, DataError> {
    let path = cache.join(format!("{PREFIX}{key}.lock"));
    hold(&path, progress).map_err(cache_error("locking", &path))
}

/// Writes a file durably under a temporary name of this process, then renames it to `path`.
pub(super) fn write_whole(
    path: &Path,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let temporary = path.with_extension(format!("new-{}", std::process::id()));
    let mut to = BufWriter::with_capacity(
        1 << 20,
        crate::files::create(&temporary).map_err(cache_error("making", &temporary))?,
    );
    fill(&mut to)?;
    let file = to.into_inner().map_err(|error| cache_error("writing", &temporary)(error.into_error()))?;
    file.sync_all().map_err(cache_error("syncing", &temporary))?;
    fs::rename(&temporary, path).map_err(cache_error("renaming", &temporary))
}

pub(super) fn cache_error(action: &str, path: &Path) -> impl Fn(std::io::Error) -> DataError + use<> {
    let what = format!("{action} {}", path.display());
    move |error| DataError::Tokenizer(format!("{what}: {error}"))
}

pub(super) fn failed(action: &'static str) -> impl Fn(tokenizers::Error) -> DataError {
    move |error| DataError::Tokenizer(format!("{action}: {error}"))
}

//! The recipe's folder as it is now: its files, their hashes, and the bytes that are sent to hosts.

use super::list::unreadable;
use super::manifest::{Manifest, ManifestEntry};
use super::{WorkdirError, WorkdirFile, WorkdirFiles};
use dtrain_recipes::{Bytes, Workdir};
use std::fs::File;
use std::io::{self, Cursor, Read};
use std::path::{Path, PathBuf};

/// The files of a recipe's folder at one moment, with their digest.
#[derive(Clone, Debug)]
pub struct WorkdirSnapshot {
    folder: PathBuf,
    manifest: Manifest,
    text: String,
    digest: String,
}

impl WorkdirSnapshot {
    /// Reads the files of `folder` that `rules` allow to send, but for those in `state`, dtrain's state folder.
    pub fn take(folder: &Path, rules: &Workdir, state: &Path) -> Result<Self, WorkdirError> {
        Self::of(&WorkdirFiles::find(folder, rules, state)?)
    }

    fn of(found: &WorkdirFiles) -> Result<Self, WorkdirError> {
        let entry = |file: &WorkdirFile| {
            let path = found.folder.join(&file.path);
            let hash = match file.link {
                Some(_) => None,
                None => Some(hash(&path).map_err(unreadable(&path))?),
            };
            Ok(ManifestEntry::of(file, hash))
        };
        let manifest =
            Manifest { files: found.files.iter().map(entry).collect::<Result<_, WorkdirError>>()? };
        let text = manifest.to_text();
        let digest = blake3::hash(text.as_bytes()).to_hex().to_string();
        Ok(Self { folder: found.folder.clone(), manifest, text, digest })
    }

    /// Returns the BLAKE3 digest of the names, modes and contents of the files.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.manifest.files.len() as u64
    }

    /// Returns the total size of the files.
    pub fn bytes(&self) -> Bytes {
        Bytes(self.manifest.files.iter().map(|entry| entry.bytes).fold(0, u64::saturating_add))
    }

    /// Returns the bytes that are sent to a host: the length of the manifest, the manifest, and the files.
    ///
    /// Reading fails if a file has become shorter. A host verifies the hashes.
    pub(crate) fn packed(&self) -> impl Read + '_ {
        let length = (self.text.len() as u64).to_le_bytes().to_vec();
        let head = Box::new(Cursor::new(length).chain(self.text.as_bytes()));
        PackReader { folder: &self.folder, left: &self.manifest.files, current: head, path: "", missing: 0 }
    }
}

/// Returns the BLAKE3 hash of a file.
pub(super) fn hash(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    io::copy(&mut File::open(path)?, &mut hasher)?;
    Ok(hasher.finalize().to_hex().to_string())
}

/// Reader of the bytes that are sent to a host.
struct PackReader<'a> {
    folder: &'a Path,
    left: &'a [ManifestEntry],
    /// The manifest, or the current file.
    current: Box<dyn Read + 'a>,
    path: &'a str,
    /// Number of bytes that the current file must still have.
    missing: u64,
}

impl Read for PackReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let length = self.current.read(buffer)?;
            if length > 0 || buffer.is_empty() {
                self.missing = self.missing.saturating_sub(length as u64);
                return Ok(length);
            }
            if self.missing > 0 {
                return Err(io::Error::other(format!("{} has just become shorter", self.path)));
            }
            let Some((next, left)) = self.left.split_first() else { return Ok(0) };
            self.left = left;
            if next.link.is_none() {
                let with_path = |error: io::Error| io::Error::other(format!("{}: {error}", next.path));
                let file = File::open(self.folder.join(&next.path)).map_err(with_path)?;
                self.current = Box::new(file.take(next.bytes));
                (self.path, self.missing) = (&next.path, next.bytes);
            }
        }
    }
}

//! The mirror of the leader's spool on another host, so that the result of an attempt survives the leader's
//! disk.
//!
//! It has the same bytes at the same offsets. It is written as records arrive and flushed at the end of the
//! attempt: if this host alone fails, the leader still has the spool.

use crate::files;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A mirror of the leader's spool that is being written.
pub(super) struct SpoolMirror {
    path: PathBuf,
    file: Option<File>,
    length: u64,
    /// The error after which nothing more is written.
    broken: Option<String>,
}

impl SpoolMirror {
    /// Creates a mirror at `path`; its file is created with the first byte.
    pub(super) fn at(path: PathBuf) -> Self {
        Self { path, file: None, length: 0, broken: None }
    }

    /// Appends base64 bytes at offset `from`. After a failure nothing more is written; `Err` is returned
    /// once.
    pub(super) fn append(&mut self, from: u64, records: &str) -> Result<(), String> {
        if self.broken.is_some() {
            return Ok(());
        }
        let bytes = BASE64_STANDARD.decode(records).map_err(io::Error::other);
        let written = bytes.and_then(|bytes| self.write(from, &bytes));
        written.map_err(|error| {
            let words = format!("{}: {error}", self.path.display());
            self.broken.insert(words).clone()
        })
    }

    fn write(&mut self, from: u64, bytes: &[u8]) -> io::Result<()> {
        if from != self.length {
            return Err(io::Error::other(format!("byte {from} follows byte {}", self.length)));
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(files::create(&self.path)?),
        };
        file.write_all(bytes)?;
        self.length += bytes.len() as u64;
        Ok(())
    }
}

/// Flushes the mirror at `path` to disk, with its name.
pub(super) fn seal(path: &Path) -> Result<(), String> {
    let sealed = files::open(path).and_then(|file| file.sync_all());
    let named = || crate::durable::sync_folder(path.parent().unwrap_or(Path::new("/")));
    sealed.and_then(|()| named()).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_copy_is_a_beginning_of_the_spool_whatever_is_lost_on_the_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("attempt-1.mirror");
        assert!(seal(&path).is_err(), "there is none");
        let mut mirror = SpoolMirror::at(path.clone());
        let text = |bytes: &[u8]| BASE64_STANDARD.encode(bytes);
        mirror.append(0, &text(b"began")).expect("room on disk");
        mirror.append(5, &text(b"step")).expect("room on disk");
        let error = mirror.append(10, &text(b"after a gap")).expect_err("a byte is missing");
        assert!(error.contains("byte 10 follows byte 9"), "{error}");
        mirror.append(9, &text(b"too late")).expect("said once");
        seal(&path).expect("it is there");
        assert_eq!(fs::read(&path).expect("just written"), b"beganstep");
    }
}

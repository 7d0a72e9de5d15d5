//! Durable writes (fsync): files and names that survive a power cut once the call has returned.

use crate::files;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes or replaces a file and waits until its content is on disk (fsync). Its name is not durable before
/// [`sync_folder`].
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = files::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Writes or replaces a file atomically and durably: a reader, even after a power cut, finds either all of
/// the old content or all of the new.
pub(crate) fn atomic_write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    write(&beside, bytes)?;
    fs::rename(&beside, path)?;
    sync_folder(path.parent().unwrap_or(Path::new("/")))
}

/// Waits until the names of the files in a folder are on disk.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

//! File locks: one process on a host does a piece of work while the others wait.

use crate::comm::WorkCounter;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// Time between two attempts to take a lock that another process holds.
const TURN: Duration = Duration::from_millis(20);

/// Waits for the lock on the file at `path`, which is created if absent.
pub(crate) fn hold(path: &Path, progress: &WorkCounter) -> std::io::Result<File> {
    let file = crate::files::lock_file(path)?;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(TURN),
            Err(error) => return Err(error.into()),
        }
        progress.advance();
    }
}

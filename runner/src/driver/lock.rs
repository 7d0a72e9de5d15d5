//! The lock of a trial: at most one controller drives it.

use super::DriveError;
use crate::files;
use crate::home::TrialFolder;
use crate::process::Process;

use dtrain_protocol::TrialId;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which the lock may outlive its controller: a child that was just forked holds the files until it
/// starts its program.
const AFTER_ITS_END: Duration = Duration::from_secs(1);

/// Lock of a trial, released when the process ends, no matter how.
pub(crate) struct TrialLock {
    file: File,
}

impl TrialLock {
    /// Lets other processes see whether the controller waits before the next attempt.
    pub(super) fn set_waiting(&mut self, is_waiting: bool) {
        // On a full disk the lock is held all the same; other processes just do not see who holds it.
        drop(self.write(is_waiting));
    }

    fn write(&mut self, is_waiting: bool) -> io::Result<()> {
        self.file.rewind()?;
        self.file.set_len(0)?;
        let waiting = if is_waiting { WAITING } else { "" };
        write!(self.file, "{}{waiting}", std::process::id())
    }
}

/// Text after the process id of a controller that waits before the next attempt.
const WAITING: &str = " waiting";

/// Controller of a trial, as its lock tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LockState {
    /// Process id of the controller; `None` if its disk is full.
    process: Option<u32>,
    /// True if the controller waits before the next attempt.
    pub(super) is_waiting: bool,
}

/// Locks a trial for this process, as its controller.
pub(crate) fn acquire(folder: &TrialFolder, trial: &TrialId) -> Result<TrialLock, DriveError> {
    let path = folder.lock();
    let wrong = |source| DriveError::Folder { doing: "lock", path: path.clone(), source };
    let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
    let opened = files::check_trial(folder.path()).and_then(|()| files::open_as(&options, &path));
    let file = opened.map_err(wrong)?;
    let until = Instant::now() + AFTER_ITS_END;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let process = recorded_holder(folder).unwrap_or(0);
                if Process::of(process).is_some() || Instant::now() >= until {
                    return Err(DriveError::Busy { trial: trial.clone(), process });
                }
                thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(wrong(error.into())),
        }
    }
    let mut lock = TrialLock { file };
    match lock.write(false) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => written.map_err(wrong)?,
    }
    Ok(lock)
}

/// Returns the controller of a trial, if it has one.
pub(super) fn state(folder: &TrialFolder) -> Option<LockState> {
    let file = files::open(&folder.lock()).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(recorded_state(folder)),
        Ok(()) | Err(_) => None,
    }
}

/// Returns the process id of a trial's controller, if it has one.
pub(super) fn holder(folder: &TrialFolder) -> Option<u32> {
    state(folder)?.process
}

fn recorded_holder(folder: &TrialFolder) -> Option<u32> {
    recorded_state(folder).process
}

fn recorded_state(folder: &TrialFolder) -> LockState {
    let text = files::read_to_string(&folder.lock()).unwrap_or_default();
    let process = text.split_whitespace().next().and_then(|id| id.parse().ok());
    LockState { process, is_waiting: text.ends_with(WAITING) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_controller_is_told_who_the_first_is() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (folder, trial) = (TrialFolder::at(root.path()), TrialId("01J".into()));
        assert_eq!(holder(&folder), None);
        let mut lock = acquire(&folder, &trial).expect("no controller drives it");
        assert_eq!(holder(&folder), Some(std::process::id()));
        for is_waiting in [true, false] {
            lock.set_waiting(is_waiting);
            let expected = LockState { process: Some(std::process::id()), is_waiting };
            assert_eq!(state(&folder), Some(expected));
        }
        let refused = acquire(&folder, &trial).err().expect("a controller drives it").to_string();
        assert_eq!(refused, format!("trial 01J already has a controller, process {}", std::process::id()));
        drop(lock);
        assert!(acquire(&folder, &trial).is_ok());
    }

    #[test]
    fn a_file_behind_a_planted_link_is_left_alone() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (folder, trial) = (TrialFolder::at(root.path().join("trial")), TrialId("01J".into()));
        folder.create().expect("room on disk");
        let precious = root.path().join("precious");
        std::fs::write(&precious, "precious").expect("room on disk");
        std::os::unix::fs::symlink(&precious, folder.lock()).expect("room on disk");
        assert!(acquire(&folder, &trial).is_err());
        assert_eq!(holder(&folder), None);
        assert_eq!(std::fs::read_to_string(&precious).expect("it is there"), "precious");
    }
}

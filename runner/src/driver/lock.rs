//! The lock of a trial: at most one controller drives it.

use super::DriveError;
use crate::files;
use crate::home::TrialFolder;
use crate::process::Process;

use dtrain_protocol::TrialId;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// Time for which the lock may outlive its controller: a child that was just forked holds the files until it
/// starts its program.
const AFTER_ITS_END: Duration = Duration::from_secs(1);

/// Lock of a trial, released when the process ends, no matter how.
pub(crate) struct TrialLock {
    _file: File,
}

/// Locks a trial for this process, as its controller.
pub(crate) fn acquire(folder: &TrialFolder, trial: &TrialId) -> Result<TrialLock, DriveError> {
    let path = folder.lock();
    let wrong = |source| DriveError::Folder { doing: "lock", path: path.clone(), source };
    let options = OpenOptions::new().create(true).truncate(false).write(true).clone();
    let opened = files::check_trial(folder.path()).and_then(|()| files::open_as(&options, &path));
    let mut file = opened.map_err(wrong)?;
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
    match file.set_len(0).and_then(|()| write!(file, "{}", std::process::id())) {
        // On a full disk the lock is held all the same; other processes just do not see the id of its owner.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => written.map_err(wrong)?,
    }
    Ok(TrialLock { _file: file })
}

/// Returns the process id of a trial's controller, if it has one.
pub(super) fn holder(folder: &TrialFolder) -> Option<u32> {
    let file = files::open(&folder.lock()).ok()?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => recorded_holder(folder),
        Ok(()) | Err(_) => None,
    }
}

fn recorded_holder(folder: &TrialFolder) -> Option<u32> {
    files::read_to_string(&folder.lock()).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_controller_is_told_who_the_first_is() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (folder, trial) = (TrialFolder::at(root.path()), TrialId("01J".into()));
        assert_eq!(holder(&folder), None);
        let lock = acquire(&folder, &trial).expect("no controller drives it");
        assert_eq!(holder(&folder), Some(std::process::id()));
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

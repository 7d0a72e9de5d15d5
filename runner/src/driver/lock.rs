//! At most one controller drives a trial.

use super::DriveError;
use crate::agent::Process;
use crate::files;
use crate::home::TrialFolder;

use dtrain_protocol::TrialId;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::thread;
use std::time::{Duration, Instant};

/// How long a controller that is gone may seem to hold a trial: what it was about to start has its files until it is itself.
const AFTER_ITS_END: Duration = Duration::from_secs(1);

/// Held by the controller; ends with its process, however that ends.
pub(crate) struct TrialLock {
    _file: File,
}

/// Becomes the controller of a trial.
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
        // On a full disk the lock holds all the same; others are not told whose it is.
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
        written => written.map_err(wrong)?,
    }
    Ok(TrialLock { _file: file })
}

/// The controller of a trial, when it has one.
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
        let lock = acquire(&folder, &trial).expect("nobody drives it");
        assert_eq!(holder(&folder), Some(std::process::id()));
        let refused = acquire(&folder, &trial).err().expect("somebody drives it").to_string();
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

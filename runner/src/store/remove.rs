//! Removes a trial for good: from the history, from this machine and from its hosts.

use super::freed_bytes;
use crate::driver::{DriveError, TrialLock, processes, take_lock};
use crate::durable;
use crate::fact::LedgerError;
use crate::home::{EMPTIED, Home, TrialFolder};
use crate::launch::{LocalLauncher, slurm};
use crate::ledger::{History, TrialActivity};
use dtrain_protocol::TrialId;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Disk space that a removal freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreedSpace {
    /// Number of bytes freed on this machine; the history file keeps its size and reuses the space.
    pub bytes: u64,
}

/// Error of removing a trial.
#[derive(Debug, thiserror::Error)]
pub enum RemoveError {
    /// The trial is running.
    #[error("it is running{}", of_processes(.processes))]
    Running {
        /// Process ids of the trial's agent and controller on this machine.
        processes: Vec<u32>,
    },
    /// The trial could not be locked to keep controllers away.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// The history could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A host refused the removal.
    #[error("{0}")]
    Host(String),
    /// A file could not be written or removed.
    #[error("cannot remove {}", path.display())]
    Folder {
        /// Path of the file or folder.
        path: PathBuf,
        /// Cause of the failure.
        #[source]
        source: io::Error,
    },
}

/// Formats `: process 12`, `: processes 12 and 13`, or nothing.
fn of_processes(processes: &[u32]) -> String {
    let numbers: Vec<String> = processes.iter().map(ToString::to_string).collect();
    match numbers.len() {
        0 => String::new(),
        1 => format!(": process {}", numbers[0]),
        _ => format!(": processes {}", numbers.join(" and ")),
    }
}

/// Returns the folders of a trial in the state folder `home`: its own, and those of the nodes of a Slurm job.
pub fn folders(home: &Home, trial: &TrialId) -> Vec<PathBuf> {
    let nodes = slurm::nodes(home).into_iter().map(|(_, node)| node);
    let all = std::iter::once(home.clone()).chain(nodes);
    all.map(|home| home.trial(trial).path().to_owned()).filter(|folder| folder.exists()).collect()
}

/// Removes a trial that does not run. `elsewhere` removes the trial's data on other hosts; if that fails, the
/// trial stays.
///
/// A crash leaves no trial that would resume from a missing checkpoint, and no data that cannot be found
/// again:
///
/// 1. A mark in its folder says that the trial is to be removed. It changes nothing yet.
/// 2. The hosts remove their data. Only the trial names them, so it must still be known when the next command
///    asks those that did not get this far.
/// 3. The history deletes it, in one transaction. From here on it is gone for every command.
/// 4. Its folders are removed last. A marked folder that the history does not know is garbage. If they went
///    before step 3, a crash would leave a trial that `resume` trains again from its first step.
///
/// If the disk is too full for the history to forget it, its files go first, with a second mark that keeps
/// controllers away.
pub fn remove(
    home: &Home,
    history: &mut History,
    trial: &TrialId,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
    elsewhere: impl FnOnce() -> Result<(), String>,
) -> Result<FreedSpace, RemoveError> {
    let folder = home.trial(trial);
    let _lock: Option<TrialLock> =
        if folder.path().exists() { Some(take_lock(&folder, trial)?) } else { None };
    if activity(trial) != TrialActivity::None && history.is_open(trial)? {
        return Err(RemoveError::Running { processes: processes(home, trial) });
    }
    let all = folders(home, trial);
    let bytes = freed_bytes(&all);
    for folder in &all {
        mark(folder, MARK)?;
    }
    elsewhere().map_err(RemoveError::Host)?;
    match history.delete(trial, activity) {
        Err(error) if error.is_disk_full() => {
            all.iter().try_for_each(|folder| empty(folder))?;
            history.delete_in_parts(trial, activity)?;
        }
        deleted => deleted?,
    }
    for folder in &all {
        remove_tree(folder)?;
    }
    Ok(FreedSpace { bytes })
}

/// Name of the file that marks the folder of a trial as one to be removed.
pub(super) const MARK: &str = "removed";

/// Removes the files of trials that are still in the history, so that a full disk has room to delete them
/// there.
///
/// `Err` if a trial runs, or a file cannot be removed. Trials without files can no longer be resumed, only
/// removed.
pub fn empty_all(
    home: &Home,
    trials: &[TrialId],
    activity: &dyn Fn(&TrialId) -> TrialActivity,
) -> Result<(), RemoveError> {
    for trial in trials {
        let folder = home.trial(trial);
        if !folder.path().exists() {
            continue;
        }
        // Check before this process holds the lock itself.
        if activity(trial) != TrialActivity::None {
            return Err(RemoveError::Running { processes: processes(home, trial) });
        }
        let _lock = take_lock(&folder, trial)?;
        folders(home, trial).iter().try_for_each(|folder| empty(folder))?;
    }
    Ok(())
}

/// Removes the large files in the folder of a trial, but not its lock.
fn empty(folder: &Path) -> Result<(), RemoveError> {
    mark(folder, EMPTIED)?;
    let trial = TrialFolder::at(folder);
    let spools = folder.join("spool");
    [trial.checkpoints(), spools, trial.logs()].iter().try_for_each(|folder| remove_tree(folder))?;
    // The plan is the largest file of a small trial.
    match fs::remove_file(trial.plan()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| RemoveError::Folder { path: trial.plan(), source }),
    }
}

/// Creates an empty marker file named `name` in `folder`; even a full disk has room for it.
fn mark(folder: &Path, name: &str) -> Result<(), RemoveError> {
    let path = folder.join(name);
    durable::write(&path, b"")
        .and_then(|()| durable::sync_folder(folder))
        .map_err(|source| RemoveError::Folder { path, source })
}

/// Removes a folder with its contents; symbolic links are removed, not followed.
pub(super) fn remove_tree(folder: &Path) -> Result<(), RemoveError> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.map_err(|source| RemoveError::Folder { path: folder.to_owned(), source }),
    }
}

/// Removes the data that this host has of a trial controlled by another machine; returns the number of bytes
/// freed.
///
/// `Err` if an agent of the trial lives here, or a file cannot be removed.
pub fn remove_folder(home: &Home, trial: &TrialId) -> Result<u64, String> {
    // The id becomes a path below which everything is removed.
    let is_plain = !trial.0.is_empty() && trial.0.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_plain {
        return Err(format!("{:?} is not the id of a trial", trial.0));
    }
    let folder = home.trial(trial);
    if !folder.path().exists() {
        return Ok(0);
    }
    let _lock = take_lock(&folder, trial).map_err(|error| error.to_string())?;
    if LocalLauncher::new(&folder).is_running() {
        return Err(format!(
            "an agent of the trial still lives there{}",
            of_processes(&processes(home, trial))
        ));
    }
    let bytes = freed_bytes([folder.path()]);
    remove_tree(folder.path()).map_err(|error| match error {
        RemoveError::Folder { path, source } => format!("{}: {source}", path.display()),
        other => other.to_string(),
    })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_folder_keeps_its_lock_and_says_so() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = TrialFolder::at(root.path().join("trials/01A"));
        folder.create().expect("made");
        fs::write(folder.lock(), "1").expect("a file");
        fs::write(folder.checkpoints().join("part"), "bytes").expect("a file");
        fs::write(folder.plan(), "{}").expect("a file");
        assert!(!folder.is_emptied());
        empty(folder.path()).expect("emptied");
        assert!(folder.is_emptied() && folder.lock().exists());
        assert!(!folder.checkpoints().exists() && !folder.plan().exists());
        empty(folder.path()).expect("it may be repeated");
    }

    #[test]
    fn the_files_of_several_trials_go_before_the_history_forgets_any() {
        let root = tempfile::tempdir().expect("a folder");
        let home = Home::at(root.path());
        let trials = ["01A", "01B"].map(|id| TrialId(id.into()));
        for trial in &trials {
            home.trial(trial).create().expect("a folder");
        }
        let one_runs =
            |trial: &TrialId| if *trial == trials[1] { TrialActivity::Running } else { TrialActivity::None };
        assert!(empty_all(&home, &trials, &one_runs).is_err(), "one runs");
        assert!(home.trial(&trials[1]).checkpoints().exists());
        empty_all(&home, &trials, &|_| TrialActivity::None).expect("emptied");
        for trial in &trials {
            assert!(home.trial(trial).is_emptied() && !home.trial(trial).checkpoints().exists());
        }
    }

    #[test]
    fn a_host_removes_the_folder_of_a_trial_and_nothing_beside_it() {
        let root = tempfile::tempdir().expect("a folder");
        let home = Home::at(root.path());
        let (trial, other) = (TrialId("01A".into()), TrialId("01B".into()));
        for trial in [&trial, &other] {
            home.trial(trial).create().expect("a folder");
            fs::write(home.trial(trial).checkpoints().join("file"), [0; 10]).expect("a file");
        }
        assert!(remove_folder(&home, &TrialId("../trials".into())).is_err());
        assert!(remove_folder(&home, &TrialId(String::new())).is_err());
        assert_eq!(remove_folder(&home, &trial), Ok(10 + std::process::id().to_string().len() as u64));
        assert_eq!(remove_folder(&home, &trial), Ok(0), "it is gone");
        assert!(!home.trial(&trial).path().exists() && home.trial(&other).path().exists());
    }
}

//! Garbage collection in a state folder: finds and removes files that no trial or command needs any more.

use super::remove::{MARK, remove_tree};
use super::{RemoveError, freed_bytes};
use crate::checkpoints::{COMMIT, is_partial};
use crate::driver::{DriveError, take_lock};
use crate::fact::{Ledger, LedgerError};
use crate::home::{Home, TrialFolder};
use crate::launch::{LocalLauncher, slurm};
use crate::ledger::{Filter, History, Pagination, Sort, TrialActivity, TrialRow, TrialStatus};
use dtrain_protocol::TrialId;
use serde::Serialize;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Kind of garbage in a state folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Uncommitted checkpoint of a trial that does not run.
    PartialCheckpoint,
    /// Spool of a trial that is over for good; all of its events are in the history.
    Report,
    /// Folder of a removed trial, left by an interrupted command.
    RemovedTrial,
    /// Folder of a trial that is not in the history. It may be the only copy of its data.
    UnknownTrial,
    /// Copy of another version of dtrain that no process runs.
    Program,
    /// Tokenized data that no trial refers to.
    Tokens,
}

/// Garbage: one file or folder that is no longer needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Garbage {
    /// Kind of the garbage.
    pub kind: Kind,
    /// Path of the file or folder.
    pub path: PathBuf,
    /// Number of bytes that removing the garbage frees.
    pub bytes: u64,
    /// Trial that the garbage belongs to, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<TrialId>,
}

impl Garbage {
    /// Returns the garbage at `path` with its size.
    pub fn new(kind: Kind, path: PathBuf, trial: Option<&TrialId>) -> Self {
        Self { kind, bytes: freed_bytes([&path]), path, trial: trial.cloned() }
    }
}

/// Finds the garbage of trials in the state folder `home`. The spools of the newest `keep` trials are not
/// garbage.
pub fn garbage_of_trials(
    home: &Home,
    history: &History,
    activity: &dyn Fn(&TrialId) -> TrialActivity,
    keep: usize,
) -> Result<Vec<Garbage>, LedgerError> {
    // List folders before the history is read: a trial is recorded before it has a folder.
    let places: Vec<(TrialId, PathBuf)> = trial_folders(home);
    let rows = history.trials(&Filter::default(), &Sort::Newest, Pagination::default(), activity)?;
    let known: BTreeSet<&TrialId> = rows.iter().map(|row| &row.id).collect();
    let mut found = Vec::new();
    for (trial, path) in places.into_iter().filter(|(trial, _)| !known.contains(trial)) {
        let folder = TrialFolder::at(&path);
        if !LocalLauncher::new(&folder).is_running() {
            let is_marked = path.join(MARK).exists();
            let kind = if is_marked { Kind::RemovedTrial } else { Kind::UnknownTrial };
            found.push(Garbage::new(kind, path, Some(&trial)));
        }
    }
    for (place, row) in rows.iter().enumerate() {
        let folder = home.trial(&row.id);
        found.extend(partial_checkpoints(history, &folder, row)?);
        if place >= keep {
            found.extend(reports(history, &folder, row)?);
        }
    }
    Ok(found)
}

/// Lists the folders of all trials below `home`, including those of the nodes of Slurm jobs.
fn trial_folders(home: &Home) -> Vec<(TrialId, PathBuf)> {
    let nodes = slurm::nodes(home).into_iter().map(|(_, node)| node);
    let roots = std::iter::once(home.clone()).chain(nodes).map(|home| home.path().join("trials"));
    let entries = roots.filter_map(|root| fs::read_dir(root).ok()).flatten().flatten();
    let is_folder = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries
        .filter(is_folder)
        .filter_map(|entry| Some((TrialId(entry.file_name().into_string().ok()?), entry.path())))
        .collect()
}

/// Finds checkpoints that the next attempt of a trial would remove. One that was about to be committed stays:
/// if other hosts did commit it, this may be the only copy of its part.
fn partial_checkpoints(
    history: &History,
    folder: &TrialFolder,
    row: &TrialRow,
) -> Result<Vec<Garbage>, LedgerError> {
    // Checkpoints of a trial on hosts may be in the middle of a pull to this machine.
    if (row.status.is_live() || row.status == TrialStatus::Created) || folder.remote_hosts_file().exists() {
        return Ok(Vec::new());
    }
    let entries = fs::read_dir(folder.checkpoints()).into_iter().flatten().flatten();
    let paths: Vec<PathBuf> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_partial))
        .map(|entry| entry.path())
        .filter(|path| !path.join(COMMIT).exists())
        .collect();
    // A trial without any checkpoint may be adopting its parent's just now.
    if paths.is_empty() || history.checkpoints(&row.id)?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(paths.into_iter().map(|path| Garbage::new(Kind::PartialCheckpoint, path, Some(&row.id))).collect())
}

/// Returns the spools of a trial that cannot be resumed, if the history has all of their events. Spools of
/// other trials contain their training time.
fn reports(history: &History, folder: &TrialFolder, row: &TrialRow) -> Result<Vec<Garbage>, LedgerError> {
    if !matches!(row.status, TrialStatus::Completed | TrialStatus::Pruned) {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (attempt, path) in folder.spools() {
        let length = path.metadata().map(|about| about.len());
        if length.is_ok_and(|length| history.offset(&row.id, attempt).is_ok_and(|kept| kept == length)) {
            found.push(Garbage::new(Kind::Report, path, Some(&row.id)));
        }
    }
    Ok(found)
}

/// Finds copies of other versions of dtrain: those in `home` for Slurm jobs, and those that remote
/// controllers sent to this machine, in the folder `sent`. `own` is the digest of this program.
///
/// `Err` says why copies are kept that may not be needed.
pub fn unused_programs(home: &Home, sent: &Path, own: &str) -> (Vec<Garbage>, Option<String>) {
    let running: BTreeSet<PathBuf> = running_programs();
    let others = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_digest = |name: &str| name.len() == own.len() && name.bytes().all(|b| b.is_ascii_hexdigit());
        let is_other = |entry: &fs::DirEntry| {
            entry.file_name().to_str().is_some_and(|name| is_digest(name) && name != own)
        };
        let paths = entries.filter(is_other).map(|entry| entry.path());
        paths.filter(|path| !running.iter().any(|program| program.starts_with(path))).collect()
    };
    let (mut paths, mut kept) = (others(sent), None);
    let for_jobs = others(&home.path().join("bin"));
    if !for_jobs.is_empty() {
        match slurm::has_jobs() {
            Ok(false) => paths.extend(for_jobs),
            Ok(true) => kept = Some("a Slurm job may start with one of the copies of dtrain".to_owned()),
            Err(error) => {
                kept = Some(format!(
                    "whether a Slurm job starts with one of the copies of dtrain is unknown: {error}"
                ));
            }
        }
    }
    (paths.into_iter().map(|path| Garbage::new(Kind::Program, path, None)).collect(), kept)
}

/// Returns the paths of the programs of all processes on this machine.
fn running_programs() -> BTreeSet<PathBuf> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| fs::read_link(process.path().join("exe")).ok()).collect()
}

/// Removes one piece of garbage; `Ok(false)` if its trial runs again, and nothing was removed.
pub fn remove_garbage(leftover: &Garbage) -> Result<bool, RemoveError> {
    let _lock = match (&leftover.trial, folder_of_trial(leftover)) {
        (Some(trial), Some(folder)) => match take_lock(&folder, trial) {
            Ok(lock) if !LocalLauncher::new(&folder).is_running() => Some(lock),
            Ok(_) | Err(DriveError::Busy { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        },
        _ => None,
    };
    if leftover.path.is_dir() {
        remove_tree(&leftover.path)?;
        return Ok(true);
    }
    match fs::remove_file(&leftover.path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        removed => removed
            .map(|()| true)
            .map_err(|source| RemoveError::Folder { path: leftover.path.clone(), source }),
    }
}

/// Returns the folder of the trial that contains the garbage, or is it.
fn folder_of_trial(leftover: &Garbage) -> Option<TrialFolder> {
    let depth = match leftover.kind {
        Kind::PartialCheckpoint | Kind::Report => 2,
        Kind::RemovedTrial | Kind::UnknownTrial => 0,
        Kind::Program | Kind::Tokens => return None,
    };
    leftover.path.ancestors().nth(depth).map(TrialFolder::at)
}

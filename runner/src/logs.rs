//! The log files of a trial: one for each rank of each attempt, one for its agents, and one for its controllers.

use crate::home::Home;
use dtrain_protocol::{AttemptId, Rank, TrialId};
use std::path::PathBuf;
use std::{fs, io};

/// A log file of one rank in one attempt, of the agents, or of the controllers in the background.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The rank and its attempt; `None` for the log of all agents or controllers.
    pub of: Option<(AttemptId, Rank)>,
    /// Path of the log file.
    pub path: PathBuf,
}

/// Lists all logs of a trial, sorted by attempt and rank; those of the agents and controllers are last.
pub fn logs(home: &Home, trial: &TrialId) -> io::Result<Vec<Log>> {
    let folder = home.trial(trial);
    let mut logs: Vec<Log> = Vec::new();
    for entry in fs::read_dir(folder.logs())? {
        let entry = entry?;
        if let Some(of) = entry.file_name().to_str().and_then(parse_log_name) {
            logs.push(Log { of: Some(of), path: entry.path() });
        }
    }
    logs.sort_by_key(|log| log.of);
    for path in [folder.agent_log(), folder.controller_log()] {
        if path.exists() {
            logs.push(Log { of: None, path });
        }
    }
    Ok(logs)
}

/// Parses the attempt and the rank from a name like `attempt-<attempt>.rank-<rank>.log`.
fn parse_log_name(name: &str) -> Option<(AttemptId, Rank)> {
    let (attempt, rank) = name.strip_prefix("attempt-")?.strip_suffix(".log")?.split_once(".rank-")?;
    Some((AttemptId(attempt.parse().ok()?), Rank(rank.parse().ok()?)))
}

//! Where things lie on disk: the state folder and the folder of one trial. Hardly more than names.

use crate::files;
use dtrain_protocol::checkpoint::{FETCHED, folder_name};
use dtrain_protocol::{AttemptId, Rank, StepId, TrialId};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The state folder: the history and one folder for each trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

/// The folder of one trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialFolder(PathBuf);

impl Home {
    /// The state folder at `root`; it need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Refuses a state folder that is not the user's own, that others can write, or that has links in it; see
    /// [`files::check_state`].
    pub fn check(&self) -> io::Result<()> {
        files::check_state(&self.0)
    }

    /// The database of the history.
    pub fn history(&self) -> PathBuf {
        self.0.join("history.db")
    }

    /// The state folder of a host that shares this one.
    pub fn host(&self, name: &str) -> Self {
        Self(self.hosts().join(name))
    }

    /// The state folder of this host below this one, which it may share with others: hosts often see the same home folder. Its name
    /// is the name of the host with the beginning of its machine id, which a host keeps when it starts again.
    pub fn of_this_host(&self) -> Self {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        self.host(&host_folder(&name, &id))
    }

    /// The folder of the state folders of hosts that share this one.
    pub fn hosts(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// The folder of `trial`.
    pub fn trial(&self, trial: &TrialId) -> TrialFolder {
        TrialFolder(self.0.join("trials").join(&trial.0))
    }
}

impl TrialFolder {
    /// The folder at `path`; it need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The plan the trial carries out, as JSON.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    /// The folder of committed and partial checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// The committed checkpoint that `attempt` wrote after `step`.
    pub fn checkpoint(&self, step: StepId, attempt: AttemptId) -> PathBuf {
        self.checkpoints().join(folder_name(step, attempt))
    }

    /// The same before it is committed.
    pub fn partial_checkpoint(&self, step: StepId, attempt: AttemptId) -> PathBuf {
        self.checkpoints().join(format!("{}.partial", folder_name(step, attempt)))
    }

    /// What was fetched of the checkpoint whose folder is called `name` for the ranks of this host, when that is not all.
    pub fn fetched_checkpoint(&self, name: &str) -> PathBuf {
        self.checkpoints().join(format!("{name}{FETCHED}"))
    }

    /// What the ranks of `attempt` said, in order.
    pub fn spool(&self, attempt: AttemptId) -> PathBuf {
        self.0.join("spool").join(format!("attempt-{attempt}.spool"))
    }

    /// What this host has of the spool of `attempt`, where another host led it.
    pub fn mirror(&self, attempt: AttemptId) -> PathBuf {
        self.0.join("spool").join(format!("attempt-{attempt}.mirror"))
    }

    /// The spools of all attempts that lie there, in the order of the attempts.
    pub fn spools(&self) -> Vec<(AttemptId, PathBuf)> {
        let entries = fs::read_dir(self.0.join("spool")).into_iter().flatten().flatten();
        let spool = |entry: fs::DirEntry| {
            let name = entry.file_name();
            let number = name.to_str()?.strip_prefix("attempt-")?.strip_suffix(".spool")?;
            Some((AttemptId(number.parse().ok()?), entry.path()))
        };
        let mut spools: Vec<_> = entries.filter_map(spool).collect();
        spools.sort();
        spools
    }

    /// The folder of all logs.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// What `rank` wrote to its standard error during `attempt`.
    pub fn rank_log(&self, attempt: AttemptId, rank: Rank) -> PathBuf {
        self.logs().join(format!("attempt-{attempt}.rank-{rank}.log"))
    }

    /// What the agents of this trial wrote to their standard error.
    pub fn agent_log(&self) -> PathBuf {
        self.logs().join("agent.log")
    }

    /// Who the newest agent is and where it listens; see [`crate::agent::AgentCard`].
    pub fn agent_card(&self) -> PathBuf {
        self.0.join("agent.json")
    }

    /// Where the agent listens, unless the path is too long for a socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// Names the hosts where the trial's agents are, when they are not on this machine, a line each.
    pub fn remote_hosts_file(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// Names the hosts that a user declared lost for this trial, a line each; see [`crate::launch::FencedHosts`].
    pub fn fenced(&self) -> PathBuf {
        self.0.join("fenced")
    }

    /// The Slurm job that trained the trial last.
    pub fn job(&self) -> PathBuf {
        self.0.join("job")
    }

    /// Locked by the one controller of the trial; holds its process id.
    pub fn lock(&self) -> PathBuf {
        self.0.join("controller.lock")
    }

    /// Makes the folder and those inside it, readable by nobody else. `Err` where one is a link or belongs to somebody else.
    pub fn create(&self) -> io::Result<()> {
        files::check_trial(&self.0)?;
        for folder in [self.0.clone(), self.0.join("spool"), self.logs(), self.checkpoints()] {
            files::make_folder(&folder)?;
        }
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700))
    }
}

/// The name of the folder of a host, from its name and machine id as the system gives them.
fn host_folder(name: &str, id: &str) -> String {
    let plain = |text: &str| -> String {
        text.trim()
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '-' })
            .collect()
    };
    let (name, mut id) = (plain(name), plain(id));
    id.truncate(8);
    match (name.is_empty(), id.is_empty()) {
        (true, true) => "host".to_owned(),
        (false, true) => name,
        (true, false) => id,
        (false, false) => format!("{name}-{id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_share_a_home_have_folders_of_their_own() {
        assert_eq!(host_folder("gpu-01\n", "8f3c2a91d0e24b7f\n"), "gpu-01-8f3c2a91");
        assert_ne!(host_folder("localhost", "8f3c2a91"), host_folder("localhost", "0a3c2a91"));
        assert_eq!(host_folder("../gpu.example\n", ""), "---gpu-example", "one folder, nowhere else");
        assert_eq!(host_folder("", ""), "host");
        let home = Home::at("/home/me/.local/state/dtrain");
        assert_eq!(home.of_this_host().path().parent(), Some(home.hosts().as_path()));
        assert_eq!(home.of_this_host(), home.of_this_host(), "it stays the same");
    }
}

//! Paths in the state folder and in the folder of one trial.

use crate::files;
use dtrain_protocol::checkpoint::{FETCHED, folder_name};
use dtrain_protocol::{AttemptId, Rank, StepId, TrialId};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// State folder: holds the history and one folder per trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home(PathBuf);

/// Folder of one trial in a state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialFolder(PathBuf);

/// Name of the file that marks the folder of a trial whose files are gone although the history still knows
/// it.
pub(crate) const EMPTIED: &str = "emptied";

/// Name of the folder of the state folders of hosts that share one.
const HOSTS: &str = "hosts";

impl Home {
    /// Returns the state folder at `root`; it need not exist.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self(root.into())
    }

    /// Returns the path of the state folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Checks that the state folder belongs to the user, that others cannot write to it and that it contains
    /// no links; see [`files::check_state`].
    pub fn check(&self) -> io::Result<()> {
        files::check_state(&self.0)
    }

    /// Returns the path of the history database.
    pub fn history(&self) -> PathBuf {
        self.0.join("history.db")
    }

    /// Returns the path of the list of hosts that the user drained, one per line; see [`crate::launch::HostList`].
    pub fn drained(&self) -> PathBuf {
        self.0.join("drained")
    }

    /// Returns the state folder of the host `name`, below this one, which several hosts share.
    pub fn host(&self, name: &str) -> Self {
        Self(self.hosts().join(name))
    }

    /// Returns the state folder of this host, below this one, which several hosts may share: they often see
    /// the same home folder. It is named after the host and the beginning of its machine id, which survives a
    /// reboot.
    pub fn of_this_host(&self) -> Self {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        self.host(&host_folder(&name, &id))
    }

    /// Returns the parent of the state folders of the hosts that share this one.
    pub fn hosts(&self) -> PathBuf {
        self.0.join(HOSTS)
    }

    /// Returns the folder of the Python environments of training engines. Hosts that share a state folder have
    /// one in common.
    pub fn engines(&self) -> PathBuf {
        let parent = self.0.parent().filter(|parent| parent.ends_with(HOSTS));
        parent.and_then(Path::parent).unwrap_or(&self.0).join("engines")
    }

    /// Returns the parent of the recipe folders that this host received, each named after its digest.
    pub fn workdirs(&self) -> PathBuf {
        self.0.join("workdirs")
    }

    /// Returns the folder of `trial` in this state folder.
    pub fn trial(&self, trial: &TrialId) -> TrialFolder {
        TrialFolder(self.0.join("trials").join(&trial.0))
    }
}

impl TrialFolder {
    /// Returns the trial folder at `path`; it need not exist.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the path of the trial's folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the state folder that has this trial.
    pub fn home(&self) -> Home {
        Home(self.0.parent().and_then(Path::parent).unwrap_or(&self.0).to_owned())
    }

    /// Returns the path of the trial's plan, as JSON.
    pub fn plan(&self) -> PathBuf {
        self.0.join("plan.json")
    }

    /// Returns the folder of the trial's checkpoints, committed and partial ones.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// Returns the folder of the committed checkpoint that `attempt` wrote after `step`.
    pub fn checkpoint(&self, step: StepId, attempt: AttemptId) -> PathBuf {
        self.checkpoints().join(folder_name(step, attempt))
    }

    /// Returns the folder of the checkpoint that `attempt` writes after `step`, before it is committed.
    pub fn partial_checkpoint(&self, step: StepId, attempt: AttemptId) -> PathBuf {
        self.checkpoints().join(format!("{}.partial", folder_name(step, attempt)))
    }

    /// Returns the folder for the files of the checkpoint `name` that the ranks of this host fetched from
    /// other hosts.
    pub fn fetched_checkpoint(&self, name: &str) -> PathBuf {
        self.checkpoints().join(format!("{name}{FETCHED}"))
    }

    /// Returns the path of the spool of `attempt`, which holds the events of its ranks in order.
    pub fn spool(&self, attempt: AttemptId) -> PathBuf {
        self.0.join("spool").join(format!("attempt-{attempt}.spool"))
    }

    /// Returns the path of this host's mirror of the spool of `attempt`, if another host leads it.
    pub fn mirror(&self, attempt: AttemptId) -> PathBuf {
        self.0.join("spool").join(format!("attempt-{attempt}.mirror"))
    }

    /// Lists the spools that exist, in the order of their attempts.
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

    /// Returns the folder of all logs of the trial.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// Returns the path of the log with the standard error of `rank` in `attempt`.
    pub fn rank_log(&self, attempt: AttemptId, rank: Rank) -> PathBuf {
        self.logs().join(format!("attempt-{attempt}.rank-{rank}.log"))
    }

    /// Returns the path of the log with the standard error of the trial's agents.
    pub fn agent_log(&self) -> PathBuf {
        self.logs().join("agent.log")
    }

    /// Returns the path of the log of the controllers that supervise the trial in the background.
    pub fn controller_log(&self) -> PathBuf {
        self.logs().join("controller.log")
    }

    /// Returns the path of the newest agent's card with its process and address; see
    /// [`crate::control_protocol::AgentCard`].
    pub fn agent_card(&self) -> PathBuf {
        self.0.join("agent.json")
    }

    /// Returns the path of the agent's control socket, used unless the path is too long.
    pub fn socket(&self) -> PathBuf {
        self.0.join("agent.sock")
    }

    /// Returns the path of the list of remote hosts with agents of the trial, one per line.
    pub fn remote_hosts_file(&self) -> PathBuf {
        self.0.join("hosts")
    }

    /// Returns the path of the file with the digest of the recipe's folder that attempts use from now on, if it
    /// is sent to the hosts.
    pub fn workdir(&self) -> PathBuf {
        self.0.join("workdir")
    }

    /// Returns `true` if the files of the trial were removed before the history could forget it.
    pub(crate) fn is_emptied(&self) -> bool {
        self.0.join(EMPTIED).exists()
    }

    /// Returns the path of the list of hosts that a user declared lost for this trial, one per line; see
    /// [`crate::launch::HostList`].
    pub fn fenced(&self) -> PathBuf {
        self.0.join("fenced")
    }

    /// Returns the path of the list of hosts that may run an attempt of the trial, one per line; see
    /// [`crate::launch::HostList`].
    pub fn unsettled_hosts(&self) -> PathBuf {
        self.0.join("unsettled_hosts")
    }

    /// Returns the path of the file that names the trial's last Slurm job.
    pub fn job(&self) -> PathBuf {
        self.0.join("job")
    }

    /// Returns the path of the lock that the trial's controller holds; the file contains its process id.
    pub fn lock(&self) -> PathBuf {
        self.0.join("controller.lock")
    }

    /// Returns the path of the newest claim of a controller on the trial, for trials on several hosts; see
    /// [`crate::launch::ControllerClaim`].
    pub fn claim(&self) -> PathBuf {
        self.0.join("controller.json")
    }

    /// Returns the path of the lock that is held while [`TrialFolder::claim`] is replaced.
    pub(crate) fn claim_lock(&self) -> PathBuf {
        self.0.join("controller.json.lock")
    }

    /// Creates the trial's folder and its subfolders, accessible to the user only. `Err` if one is a link or
    /// belongs to another user.
    pub fn create(&self) -> io::Result<()> {
        files::check_trial(&self.0)?;
        for folder in [self.0.clone(), self.0.join("spool"), self.logs(), self.checkpoints()] {
            files::make_folder(&folder)?;
        }
        fs::set_permissions(&self.0, fs::Permissions::from_mode(0o700))
    }
}

/// Returns the folder name of a host from its host name and machine id.
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

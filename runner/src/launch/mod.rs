//! Launchers: the ways to start, reach and kill the agents of a trial.
//!
//! | task | one machine | several hosts |
//! |---|---|---|
//! | start, reach and kill agents | `local` | `cluster` over `relay`, reached by `ssh` or by `slurm` |
//! | authentication | user id of the socket | certificates of the attempt (`certificates.rs`) |
//! | a checkpoint | files, manifest, final name | each host prepares its part and a copy; then each commits |
//! | resume | the files are there | each host fetches the files it lacks; every chunk is verified |
//! | probe | ranks side by side | ranks on all hosts, so that collectives cross the network |
//!
//! Code above a launcher does not depend on hosts.

mod cancellation;
mod claim_poll;
mod cluster;
mod fencing;
mod fencing_rules;
mod host_list;
mod host_query;
mod local;
mod rank_placement;
pub mod relay;
pub mod slurm;
pub mod ssh;
mod timeouts;

pub use cancellation::CancellationToken;
pub use cluster::ClusterLauncher;
#[cfg(test)]
pub(crate) use fencing::ASK_EVERY;
#[cfg(test)]
pub(crate) use fencing_rules::{AttemptHosts, hosts_to_ask, spared};
pub use fencing_rules::{FinalFencing, KnownAttempts, lost_hosts};
pub use host_list::HostList;
pub use local::LocalLauncher;

pub use crate::controller_claim::ControllerClaim;

use crate::control_protocol::{AgentCard, AgentOrder, LaunchError};
use dtrain_protocol::{AttemptId, StepId};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// Starts, reaches and kills the agents of one trial.
pub trait Launcher: CheckpointPlacement + Send {
    /// Returns a token that cancels this launcher's waits from another thread.
    fn cancel(&self) -> CancellationToken;

    /// Returns the pool of hosts on which this launcher starts agents; `None` if that is this machine alone.
    fn pool(&mut self) -> Option<&mut dyn HostPool>;

    /// Starts an attempt and returns once its ranks are started. On `Err` no process of it is alive or will
    /// be, except on [`LaunchError::Unknown`].
    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, LaunchError>;

    /// Connects to the agent of `attempt`, to read its spool from byte `from`.
    fn reach(&mut self, attempt: AttemptId, from: u64) -> AgentContact;

    /// Returns `true` if the agent still works; called after a long silence. An agent that does not work is
    /// killed.
    fn is_responsive(&mut self, attempt: AttemptId) -> bool;

    /// Returns the spool of an attempt from byte `from`, after its agent is gone. The end of the stream is
    /// the end of the spool: reading fails if the rest is unavailable.
    fn spool_remainder(
        &mut self,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Box<dyn Read + Send>, SpoolUnreadable>;

    /// Kills an attempt; returns `true` if none of its processes is alive.
    fn kill(&mut self, attempt: AttemptId) -> bool;
}

/// Finds and verifies the checkpoints of a trial where they are kept: on this machine, or on its hosts.
pub trait CheckpointPlacement {
    /// Returns the committed checkpoints, oldest first, that match `is_wanted` and of which the hosts that
    /// answered last have every file.
    fn complete_checkpoints(&mut self, is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync)) -> DiskSearch;

    /// Returns `true` if a checkpoint's folder is known to be missing; `false` if that is unknown.
    fn is_missing(&self, folder: &Path) -> bool;

    /// Verifies that the checkpoint in `folder` is unchanged since its commit; `Err` describes the damage.
    fn verify(&mut self, folder: &Path) -> Result<(), String>;
}

/// The hosts on which the agents of a trial run, any of which may be lost and come back.
pub trait HostPool {
    /// Returns the hosts that answer now, in the order in which an attempt takes them.
    fn available_hosts(&mut self) -> AvailableHosts;

    /// Returns the names of the hosts of the newest attempt, in the order of their ranks.
    fn attempt_hosts(&self) -> Vec<String>;

    /// Returns the hosts outside the newest attempt that answered [`HostPool::fence_returned`] last.
    fn idle_hosts(&self) -> Vec<IdleHost>;

    /// Puts `hosts` last, in this order, for the next attempts; they may still lend their checkpoint files.
    fn deprioritize(&mut self, hosts: &[String]);

    /// Marks `host` as possibly lost: waits for it are short until it answers again.
    fn suspect(&mut self, host: &str);

    /// Counts the leader's host of `attempt` as lost; returns `false` if there is none. From then on
    /// [`Launcher::reach`] kills the followers and reports the attempt as gone.
    fn give_up(&mut self, attempt: AttemptId) -> bool;

    /// Reads another host's mirror of the spool from byte `from`, when the leader's spool is out of reach.
    fn mirrored_spool(&mut self, attempt: AttemptId, from: u64) -> Option<Box<dyn Read + Send>>;

    /// Kills attempts before `before` on hosts that came back; returns those killed since the last call.
    /// Does not block.
    fn fence_returned(&mut self, before: AttemptId) -> Vec<FencedAgent>;

    /// Asks the hosts that may still run an attempt, at the end of a trial, to kill it. Waits a few seconds for hosts
    /// that do not answer.
    fn fence_at_end(&mut self, end: &FinalFencing) -> FencingReport;

    /// Claims the trial for this process on the hosts that answer. The others get the claim with a later request.
    fn claim(&mut self);

    /// Asks the hosts of the newest attempt, every few seconds, for the newest claim on the trial. Does not block.
    fn poll_claims(&mut self);

    /// Asks the hosts of the newest attempt for the newest claim on the trial, except those that may be lost, and waits
    /// for the answers.
    fn ask_for_claims(&mut self);

    /// Returns the claim of the controller that took over since [`HostPool::claim`], if a host reported one. Does not
    /// block.
    fn newer_claim(&self) -> Option<ControllerClaim>;
}

/// The hosts available for an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailableHosts {
    /// Number of hosts that answered.
    pub hosts: u32,
    /// Names of the hosts that answered, in the order in which an attempt takes them; empty on one machine.
    pub names: Vec<String>,
    /// Hosts that did not answer, each as text with the reason.
    pub away: Vec<String>,
}

/// Result of a search for checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskSearch {
    /// The checkpoints of which every file was found, oldest first.
    pub complete: Vec<(AttemptId, StepId)>,
    /// Names of the hosts that did not list theirs. They count as hosts that do not answer.
    pub silent: Vec<String>,
}

impl AvailableHosts {
    /// Counts `silent` hosts as hosts that do not answer, since what is on their disks is unknown.
    pub(crate) fn set_aside(&mut self, silent: &[String]) {
        let count = u32::try_from(silent.len()).unwrap_or(self.hosts);
        self.hosts = self.hosts.saturating_sub(count);
        self.names.retain(|name| !silent.contains(name));
        self.away.extend(silent.iter().map(|name| format!("{name}: it does not list its checkpoints")));
    }

    /// Returns the hosts of a launcher that answer now. A single machine always answers.
    pub fn of(launcher: &mut dyn Launcher) -> Self {
        let one_machine = || Self { hosts: 1, ..Self::default() };
        launcher.pool().map_or_else(one_machine, HostPool::available_hosts)
    }
}

/// A host outside the attempt that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleHost {
    /// Name of the host.
    pub name: String,
    /// Time since which each question to the host was answered.
    pub answers_for: Duration,
    /// True if the host did not answer before, since it is outside the attempt.
    pub was_away: bool,
}

/// What the hosts that were lost run at the end of a trial.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FencingReport {
    /// Agents that were found and killed.
    pub fenced: Vec<FencedAgent>,
    /// Names of the hosts that did not answer.
    pub unanswered: Vec<String>,
}

/// A host that came back, with an agent of an older attempt that was killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedAgent {
    /// Name of the host that came back.
    pub host: String,
    /// The attempt that was still running on the host.
    pub attempt: AttemptId,
}

/// The result of an attempt to reach an agent.
pub enum AgentContact {
    /// The agent answered.
    Connected(ConnectedAgent),
    /// The agent is alive but does not answer yet, or no longer.
    Silent,
    /// The agent's host cannot be reached; the agent may be alive.
    Away {
        /// The reason why the host cannot be reached.
        reason: String,
        /// True if followers report that the attempt is running.
        is_at_work: bool,
    },
    /// Neither the agent nor any rank is alive or will be: a late launch is refused.
    Gone,
    /// The agent is gone according to its followers, or its host was given up; the host cannot be reached.
    GoneWithItsHost {
        /// Name of the leader's host.
        host: String,
        /// The reason why the host cannot be reached or was given up.
        reason: String,
    },
}

/// The reason why an attempt's spool cannot be read. The spool may exist all the same.
#[derive(Debug)]
pub enum SpoolUnreadable {
    /// The host with the spool cannot be reached now, for the reason given.
    Away(String),
    /// The spool is on this machine and cannot be read.
    Failed(io::Error),
}

/// A connection to a running agent.
pub struct ConnectedAgent {
    /// Process id of the agent.
    pub agent: u32,
    /// Process ids of the ranks on this machine.
    pub ranks: Vec<u32>,
    /// The stream of the spool's bytes.
    pub spool: Box<dyn Read + Send>,
    /// Sink for requests to the agent, as frames of [`crate::control_protocol::AgentRequest`].
    pub requests: Box<dyn Write + Send>,
}

//! How agents are started and reached.
//!
//! | what | one machine | several hosts |
//! |---|---|---|
//! | start, reach and kill agents | `local` | `cluster` over `relay`, reached by `ssh` or by `slurm` |
//! | who is who | user id of the socket | certificates of the attempt (`agent/certificates.rs`) |
//! | a checkpoint | files, contents, final name | each host prepares its part and a copy of its neighbour's; then each commits, the leader last |
//! | resume | the files are there | each host fetches the files it lacks from a host that has them; every chunk is verified |
//! | speeds | ranks side by side | the same, spread over the hosts, so that collectives cross the network |
//!
//! Nothing above a launcher knows about hosts.

mod cancellation;
mod cluster;
mod fenced_hosts;
mod fencing;
mod host_query;
mod local;
mod rank_placement;
pub mod relay;
pub mod slurm;
pub mod ssh;

pub use cancellation::CancellationToken;
pub use cluster::ClusterLauncher;
pub use fenced_hosts::FencedHosts;
pub use local::LocalLauncher;

use crate::agent::{AgentCard, AgentOrder};
use dtrain_protocol::{AttemptId, StepId};
use std::fmt;
use std::io::{self, Read, Write};
use std::path::Path;

/// Starts the agents of one trial, reaches them, and ends them.
pub trait Launcher: Send {
    /// Ends what this launcher waits for, from another thread.
    fn cancel(&self) -> CancellationToken {
        CancellationToken::default()
    }

    /// Starts the agent of an attempt, and returns once its ranks are started. On `Err` nothing of it lives, nor will, unless that is
    /// [`LaunchError::Unknown`].
    fn launch(&mut self, order: &AgentOrder) -> Result<AgentCard, LaunchError>;

    /// The hosts that answer now; those of an attempt are taken from them in this order. One machine always answers.
    fn available_hosts(&mut self) -> AvailableHosts {
        AvailableHosts { hosts: 1, ..AvailableHosts::default() }
    }

    /// Takes `hosts` last for the attempts to come, the first of them before the others; they may still lend what they have.
    fn deprioritize(&mut self, _hosts: &[String]) {}

    /// The checkpoints that were committed and of which the hosts that answered last have every file, oldest first, of those that
    /// `is_wanted`.
    fn complete_checkpoints(
        &mut self,
        _is_wanted: &(dyn Fn(AttemptId, StepId) -> bool + Sync),
    ) -> Vec<(AttemptId, StepId)> {
        Vec::new()
    }

    /// Counts the host that leads `attempt` as lost; tells whether there is such a host. [`Launcher::reach`] says from then on that
    /// the attempt is gone with it, once what runs of it on other hosts was killed.
    fn give_up(&mut self, _attempt: AttemptId) -> bool {
        false
    }

    /// What other hosts of an attempt have of its record, from `from` on; to be asked for when the host that led has no more of it.
    fn mirrored_spool(&mut self, _attempt: AttemptId, _from: u64) -> Option<Box<dyn Read + Send>> {
        None
    }

    /// Ends what hosts that come back still run of attempts before `attempt`; gives what was found and ended since the last call.
    /// Waits for nobody.
    fn fence_returned(&mut self, _attempt: AttemptId) -> Vec<FencedAgent> {
        Vec::new()
    }

    /// Takes in that `host` is said to be lost: until it answers again, it is not waited for as others are.
    fn suspect(&mut self, _host: &str) {}

    /// Whether the folder of a checkpoint is known to be gone; `false` where that cannot be told.
    fn is_missing(&self, _folder: &Path) -> bool {
        false
    }

    /// Whether the checkpoint in `folder` is what was committed; `Err` says what is wrong with it.
    fn verify(&mut self, folder: &Path) -> Result<(), String>;

    /// Reaches the agent of `attempt` to hear its spool from `from` on.
    fn reach(&mut self, attempt: AttemptId, from: u64) -> AgentContact;

    /// Whether the agent of an attempt still does its work; asked when nothing was heard of it for a while. One that is found not to
    /// is killed. Of this machine's the kernel tells.
    fn is_responsive(&mut self, _attempt: AttemptId) -> bool {
        true
    }

    /// What the attempt left behind, from `from` on; to be asked for when its agent is gone. Its end is the end of what was left:
    /// where the rest cannot be had now, reading fails.
    fn spool_remainder(
        &mut self,
        attempt: AttemptId,
        from: u64,
    ) -> Result<Box<dyn Read + Send>, SpoolUnreadable>;

    /// Kills whatever lives of the attempt; tells whether nothing does any more.
    fn kill(&mut self, attempt: AttemptId) -> bool;
}

/// Hosts for an attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AvailableHosts {
    /// How many answer.
    pub hosts: u32,
    /// What people call them, in the order in which they are taken; empty on one machine, which has no name.
    pub names: Vec<String>,
    /// Those that do not, each with why not.
    pub away: Vec<String>,
}

/// A host that came back, with an agent of an earlier attempt that was ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedAgent {
    /// The host.
    pub host: String,
    /// The attempt that still ran there.
    pub attempt: AttemptId,
}

/// Why an attempt was not launched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaunchError {
    /// The checkpoint it was to go on from cannot be had as it was committed.
    Checkpoint(String),
    /// Anything else.
    Other(String),
    /// The same, where one of several hosts is to blame.
    OnHost {
        /// What people call it.
        host: String,
        /// Why not.
        reason: String,
    },
    /// It was asked for, and the answer was lost: it may live. [`Launcher::reach`] finds out.
    Unknown(String),
}

impl LaunchError {
    /// A reason that is of the checkpoint, or of something else.
    pub(crate) fn because(reason: String, is_of_checkpoint: bool) -> Self {
        if is_of_checkpoint { Self::Checkpoint(reason) } else { Self::Other(reason) }
    }

    /// One that `host` is to blame for; the reason may begin with its name.
    pub(crate) fn because_of(host: &str, reason: &str) -> Self {
        let reason = reason.strip_prefix(host).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(reason);
        Self::OnHost { host: host.to_owned(), reason: reason.to_owned() }
    }

    /// The same, seen on `host`; one that names another host goes on to blame that.
    pub(crate) fn on(self, host: &str) -> Self {
        match self {
            Self::Checkpoint(reason) => Self::Checkpoint(format!("{host}: {reason}")),
            Self::Other(reason) => Self::OnHost { host: host.into(), reason },
            Self::OnHost { .. } => self,
            Self::Unknown(reason) => Self::Unknown(format!("{host}: {reason}")),
        }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkpoint(reason) | Self::Other(reason) | Self::Unknown(reason) => f.write_str(reason),
            Self::OnHost { host, reason } => write!(f, "{host}: {reason}"),
        }
    }
}

impl From<&str> for LaunchError {
    fn from(reason: &str) -> Self {
        Self::Other(reason.into())
    }
}

impl From<String> for LaunchError {
    fn from(reason: String) -> Self {
        Self::Other(reason)
    }
}

/// What became of an agent.
pub enum AgentContact {
    /// It answers.
    Connected(ConnectedAgent),
    /// It lives, and does not answer yet or any more.
    Silent,
    /// Its host cannot be asked; it may live.
    Away {
        /// Why not.
        reason: String,
        /// Whether other hosts of the attempt say that it is at work.
        is_at_work: bool,
    },
    /// Neither it nor any of its ranks lives, nor ever will: a launch that is still on its way is refused.
    Gone,
    /// The same by the word of the other hosts of the attempt, or because the host that led was given up; it cannot be asked.
    GoneWithItsHost {
        /// The host that led.
        host: String,
        /// Why it cannot be asked, or why it was given up.
        reason: String,
    },
}

/// Why what an attempt left behind cannot be read. It may have left something all the same.
#[derive(Debug)]
pub enum SpoolUnreadable {
    /// Its host cannot be asked now, for the reason given.
    Away(String),
    /// The file on this machine cannot be read.
    Failed(io::Error),
}

/// A connection to an agent.
pub struct ConnectedAgent {
    /// Process id of the agent.
    pub agent: u32,
    /// Process ids of the ranks on this machine.
    pub ranks: Vec<u32>,
    /// The bytes of the spool.
    pub spool: Box<dyn Read + Send>,
    /// Takes frames of [`crate::agent::AgentRequest`].
    pub requests: Box<dyn Write + Send>,
}

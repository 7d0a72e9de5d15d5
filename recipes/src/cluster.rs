//! The cluster: hosts, launcher and devices that train.

use crate::keyword_enum::keyword_enum;
use crate::subnet::Subnet;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// The hosts that train, and how they are reached. A recipe without a cluster trains on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Launcher that starts the processes.
    pub launcher: LauncherKind,
    /// SSH implementation; for the SSH launcher only.
    #[serde(default, skip_serializing_if = "SshBackend::is_usual")]
    pub transport: SshBackend,
    /// Total number of ranks, a multiple of the hosts; `None` lets the planner choose.
    pub ranks: Option<u32>,
    /// Devices that train, on every host.
    pub devices: Devices,
    /// Hosts; empty for the local launcher.
    pub hosts: Vec<Host>,
    /// Slurm job to submit; for the Slurm launcher only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Slurm>,
    /// Mean time between failures of one host, above 0; `None` lets the planner assume one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtbf: Option<Seconds>,
    /// Time limit for the probe, which measures how fast the hosts train a model, above 0; `None` for 12 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Seconds>,
    /// Cost of one hour of one GPU, or of one core if CPUs train, above 0; `None` if costs are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Network over which hosts communicate with each other; `None` for the one over which each was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Subnet>,
    /// Trials of a study that run side by side, at least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// Time that hosts may be unreachable before the leader is given up as lost, above 0; `None` for 10
    /// minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_timeout: Option<Seconds>,
}

impl Cluster {
    /// Returns the time that hosts may be unreachable before the leader is given up as lost.
    pub fn unreachable_timeout(&self) -> Seconds {
        self.unreachable_timeout.unwrap_or(Seconds(600.0))
    }

    /// Returns the number of hosts that train: the listed hosts, the nodes of a Slurm job, or 1 for this
    /// machine.
    pub fn host_count(&self) -> u32 {
        let nodes = self.slurm.as_ref().map_or(1, |slurm| slurm.nodes);
        u32::try_from(self.hosts.len()).unwrap_or(u32::MAX).max(nodes)
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
fn is_one(slots: &u32) -> bool {
    *slots == 1
}

keyword_enum! {
    /// A way to start the processes of a training.
    pub enum LauncherKind {
        /// Processes on this machine.
        Local = "local",
        /// Agents on hosts reached over SSH.
        Ssh = "ssh",
        /// A Slurm job.
        Slurm = "slurm",
    }
}

keyword_enum! {
    /// An SSH implementation.
    #[derive(Default)]
    pub enum SshBackend {
        /// dtrain's own SSH client: one connection to each host.
        #[default]
        Ssh2 = "ssh2",
        /// The program `ssh` with the user's configuration.
        OpenSsh = "openssh",
    }
}

impl SshBackend {
    fn is_usual(&self) -> bool {
        *self == Self::Ssh2
    }
}

keyword_enum! {
    /// Kinds of devices that train.
    pub enum Devices {
        /// GPUs where there are any and the binary has a backend for them, otherwise the CPU.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// GPUs of any maker, by CUDA where there is a choice; an error where there are none.
        Gpu = "gpu",
        /// CUDA devices; an error where there are none.
        Cuda = "cuda",
    }
}

/// Resources and options of a Slurm job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slurm {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Partition; `None` is Slurm's default.
    pub partition: Option<String>,
    /// Account that is charged; `None` is Slurm's default.
    pub account: Option<String>,
    /// Longest time of the job; `None` is the partition's.
    pub time: Option<Seconds>,
    /// More options of sbatch, each a text that begins with `-`.
    pub options: Vec<String>,
    /// Names of further environment variables that the job inherits from the submitting shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
}

/// One host reached over the network. A range in the address (`gpu-[01-04]`) is already expanded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Name or address.
    pub address: String,
    /// SSH port.
    pub port: u16,
    /// User name; `None` takes the one from the SSH configuration.
    pub user: Option<String>,
    /// Jump host (bastion) to connect through.
    pub via: Option<String>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            launcher: LauncherKind::Local,
            transport: SshBackend::Ssh2,
            ranks: None,
            devices: Devices::Auto,
            hosts: Vec::new(),
            mtbf: None,
            probe: None,
            price: None,
            slots: 1,
            unreachable_timeout: None,
            network: None,
            slurm: None,
        }
    }
}

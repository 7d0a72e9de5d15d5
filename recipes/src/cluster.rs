//! Where training happens.

use crate::keyword_enum::keyword_enum;
use crate::subnet::Subnet;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// Where training happens. Absent from a recipe: this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// How processes are placed.
    pub launcher: LauncherKind,
    /// How hosts are reached; for the SSH launcher only.
    #[serde(default, skip_serializing_if = "SshBackend::is_usual")]
    pub transport: SshBackend,
    /// Total number of ranks, a multiple of the hosts; `None` lets the planner choose.
    pub ranks: Option<u32>,
    /// Which devices train, on every host.
    pub devices: Devices,
    /// Hosts; empty for the local launcher.
    pub hosts: Vec<Host>,
    /// The job to ask for; for the Slurm launcher only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Slurm>,
    /// Mean time between failures of one host, above 0; `None` lets the planner assume one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtbf: Option<Seconds>,
    /// Time limit for measuring how fast the hosts train a model, above 0; `None` for 12 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Seconds>,
    /// Money for an hour of one GPU, or of one core where CPUs train, above 0; `None` where nobody counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Over which the hosts communicate with each other; `None` for the network over which each was reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Subnet>,
    /// Trials of a study that run side by side, at least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// How long hosts may be out of reach before the one that leads is given up for lost, above 0; `None` for 10 minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_timeout: Option<Seconds>,
}

impl Cluster {
    /// How long hosts may be out of reach before the one that leads is given up for lost.
    pub fn unreachable_timeout(&self) -> Seconds {
        self.unreachable_timeout.unwrap_or(Seconds(600.0))
    }

    /// Hosts that train: those that are named, the nodes of a Slurm job, or this machine alone.
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
    /// How processes are placed.
    pub enum LauncherKind {
        /// On this machine.
        Local = "local",
        /// Over SSH.
        Ssh = "ssh",
        /// As a Slurm job.
        Slurm = "slurm",
    }
}

keyword_enum! {
    /// How hosts are reached over SSH.
    #[derive(Default)]
    pub enum SshBackend {
        /// By dtrain itself: one connection to each host.
        #[default]
        Ssh2 = "ssh2",
        /// By the program `ssh`, with all that the user's configuration of it says.
        OpenSsh = "openssh",
    }
}

impl SshBackend {
    fn is_usual(&self) -> bool {
        *self == Self::Ssh2
    }
}

keyword_enum! {
    /// Which devices train.
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

/// What to ask Slurm for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slurm {
    /// Nodes, at least 1.
    pub nodes: u32,
    /// Partition; `None` is Slurm's default.
    pub partition: Option<String>,
    /// Account; `None` is Slurm's default.
    pub account: Option<String>,
    /// Longest time of the job; `None` is the partition's.
    pub time: Option<Seconds>,
    /// More options of sbatch, each a text that begins with `-`.
    pub options: Vec<String>,
    /// Variables of the submitting shell that the job gets, by name, besides those that every job gets.
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
    /// User name; `None` takes the one of the SSH configuration.
    pub user: Option<String>,
    /// Bastion to go through.
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

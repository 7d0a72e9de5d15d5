//! The `[cluster]` section: the hosts, launcher and devices of a training.

use crate::gpu_facts::GpuFacts;
use crate::keyword_enum::keyword_enum;
use crate::notice::NoticePoll;
use crate::subnet::Subnet;
use crate::units::Seconds;
use crate::workdir::Workdir;
use serde::{Deserialize, Serialize};

/// The hosts that train, and how they are reached. A recipe without a cluster trains on this machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cluster {
    /// Launcher that starts the training processes.
    pub launcher: LauncherKind,
    /// SSH implementation; used only by the SSH launcher.
    #[serde(default, skip_serializing_if = "SshBackend::is_usual")]
    pub transport: SshBackend,
    /// Total number of ranks, a multiple of the number of hosts; `None` lets the planner choose.
    pub ranks: Option<u32>,
    /// Kind of device that trains, the same on every host.
    pub devices: Devices,
    /// Hosts that train; empty for the local launcher.
    pub hosts: Vec<Host>,
    /// Slurm job to submit; `None` for other launchers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slurm: Option<Slurm>,
    /// Mean time between failures of one host, above 0; `None` lets the planner assume a value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtbf: Option<Seconds>,
    /// Python interpreter that runs a training engine on every host; `None` for `python3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python: Option<String>,
    /// Time limit for the probe, which measures how fast the hosts train a model, above 0; `None` for 12 s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Seconds>,
    /// Price of one hour of one GPU, or of one core if CPUs train, above 0; `None` if costs are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<f64>,
    /// Network over which hosts communicate with each other; `None` for the network over which each host was
    /// reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Subnet>,
    /// Number of trials of a study that run side by side, at least 1.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub slots: u32,
    /// Time that hosts may be unreachable before the leader is given up as lost, above 0; `None` for 10
    /// minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreachable_timeout: Option<Seconds>,
    /// Number of hosts, at least 1, that must answer for a run to start or continue; `None` for all that are no spares
    /// at the start, and for one afterwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<u32>,
    /// Number of hosts that stand by and take the places of hosts that are lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub spares: u32,
    /// When a run takes more hosts, such as one that is back.
    #[serde(default, skip_serializing_if = "GrowthPolicy::is_usual")]
    pub grow: GrowthPolicy,
    /// How hosts learn that they will be taken away; `None` if they are not asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<NoticePoll>,
    /// The files of the recipe's folder that are sent to every host; `None` if hosts have the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<Workdir>,
    /// Facts about the GPUs for plans from data sheets.
    #[serde(default, skip_serializing_if = "GpuFacts::is_empty")]
    pub gpu: GpuFacts,
}

impl Cluster {
    /// Returns the time that hosts may be unreachable before the leader is given up as lost.
    pub fn unreachable_timeout(&self) -> Seconds {
        self.unreachable_timeout.unwrap_or(Seconds(600.0))
    }

    /// Returns the files of the recipe's folder to send to the hosts; `None` if none is sent, as to a training
    /// on this machine.
    pub fn sent_workdir(&self) -> Option<&Workdir> {
        self.workdir.as_ref().filter(|_| self.launcher == LauncherKind::Ssh)
    }

    /// Returns the number of hosts that must answer for a run to start.
    pub fn needed_to_start(&self) -> u32 {
        self.least.unwrap_or_else(|| self.host_count())
    }

    /// Returns the number of hosts that train: the listed hosts or the nodes of a Slurm job without the spares, or 1 for
    /// this machine.
    pub fn host_count(&self) -> u32 {
        let nodes = self.slurm.as_ref().map_or(1, |slurm| slurm.nodes);
        let all = u32::try_from(self.hosts.len()).unwrap_or(u32::MAX).max(nodes);
        all.saturating_sub(self.spares).max(1)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it")]
fn is_zero(spares: &u32) -> bool {
    *spares == 0
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
        /// Ranks are processes on this machine.
        Local = "local",
        /// Agents start the ranks on hosts reached over SSH.
        Ssh = "ssh",
        /// A Slurm job starts the ranks.
        Slurm = "slurm",
    }
}

keyword_enum! {
    /// An implementation of SSH, by which agents on other hosts are reached.
    #[derive(Default)]
    pub enum SshBackend {
        /// dtrain's own SSH client: one connection to each host.
        #[default]
        Ssh2 = "ssh2",
        /// The program `ssh` with the user's configuration.
        OpenSsh = "openssh",
    }
}

keyword_enum! {
    /// When a run takes more hosts than its attempt has, such as one that is back.
    #[derive(Default)]
    pub enum GrowthPolicy {
        /// After a checkpoint, if the rest of the run gains more time than the restart costs.
        #[default]
        Checkpoint = "checkpoint",
        /// Only when an attempt ends for another reason.
        Never = "never",
    }
}

impl GrowthPolicy {
    fn is_usual(&self) -> bool {
        *self == Self::Checkpoint
    }
}

impl SshBackend {
    fn is_usual(&self) -> bool {
        *self == Self::Ssh2
    }
}

keyword_enum! {
    /// The kind of device that trains on every host.
    pub enum Devices {
        /// GPUs, if the hosts have any and the binary has a backend for them; otherwise the CPU.
        Auto = "auto",
        /// The CPU, even on hosts with GPUs.
        Cpu = "cpu",
        /// GPUs of any vendor, through CUDA if possible; an error on a host without GPUs.
        Gpu = "gpu",
        /// CUDA devices; an error on a host without any.
        Cuda = "cuda",
    }
}

/// Resources and options of a Slurm job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Slurm {
    /// Number of nodes to request, at least 1.
    pub nodes: u32,
    /// Slurm partition; `None` is Slurm's default.
    pub partition: Option<String>,
    /// Slurm account that is charged; `None` is Slurm's default.
    pub account: Option<String>,
    /// Time limit of the job; `None` is that of the partition.
    pub time: Option<Seconds>,
    /// Additional options of sbatch, each beginning with `-`.
    pub options: Vec<String>,
    /// Names of additional environment variables that the job inherits from the submitting shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<String>,
}

/// One host reached over the network. A range in the address (`gpu-[01-04]`) is already expanded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Host name or IP address.
    pub address: String,
    /// SSH port of the host.
    pub port: u16,
    /// SSH user name; `None` uses the one from the SSH configuration.
    pub user: Option<String>,
    /// Jump host (bastion) to connect through; `None` connects directly.
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
            python: None,
            probe: None,
            price: None,
            slots: 1,
            unreachable_timeout: None,
            least: None,
            spares: 0,
            grow: GrowthPolicy::Checkpoint,
            notice: None,
            network: None,
            slurm: None,
            workdir: None,
            gpu: GpuFacts::default(),
        }
    }
}

//! Rates: measured speeds of a host, with the time and the conditions of the measurement.

use crate::{DeviceKind, Layout, Rank};
use dtrain_recipes::{Precision, Subnet};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// The measured speeds of one host for one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Properties of the host at the time of the measurement.
    pub host: HostFacts,
    /// Time of the measurement in milliseconds since the Unix epoch.
    pub measured_at_ms: u64,
    /// Digest of the model that was measured; another model needs a new probe.
    pub model_digest: String,
    /// Speeds for each number of ranks that ran at the same time, ascending by that number.
    pub by_ranks: Vec<RankRates>,
}

/// The properties of a host that the planner needs, or of several identical hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Host name; of several hosts, that of the first.
    pub name: String,
    /// Number of identical hosts; all other fields are per host.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub hosts: NonZeroU32,
    /// Description of the processor.
    pub processor: String,
    /// Number of cores that dtrain may use.
    pub cores: u32,
    /// Memory in bytes that dtrain may use.
    pub memory_bytes: u64,
    /// GPUs that this binary can use, all through one backend.
    pub gpus: Vec<Gpu>,
    /// Network between several hosts; `None` for one host, and in rates of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<HostNetwork>,
}

/// The hosts that communicate, and their network. Rates hold for this network only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// Names of the hosts, sorted.
    pub hosts: Vec<String>,
    /// Network that the recipe names; `None` for the network over which each host was reached.
    pub network: Option<Subnet>,
}

fn one() -> NonZeroU32 {
    NonZeroU32::MIN
}

fn cuda() -> DeviceKind {
    DeviceKind::Cuda
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_cuda(device: &DeviceKind) -> bool {
    *device == DeviceKind::Cuda
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(hosts: &NonZeroU32) -> bool {
    *hosts == NonZeroU32::MIN
}

impl HostFacts {
    /// Returns an example for tests: one host with two cores and 8 GiB of memory, without GPUs.
    pub fn example() -> Self {
        Self {
            name: "here".into(),
            hosts: NonZeroU32::MIN,
            processor: "a processor".into(),
            cores: 2,
            memory_bytes: 8 << 30,
            gpus: Vec::new(),
            links: None,
        }
    }

    /// Returns the backend of the host's GPUs; `None` without GPUs.
    pub fn gpu_device(&self) -> Option<DeviceKind> {
        self.gpus.first().map(|gpu| gpu.device)
    }

    /// Returns the total number of cores of all hosts.
    pub fn all_cores(&self) -> u32 {
        self.cores.saturating_mul(self.hosts.get())
    }

    /// Returns the index of the host that runs `rank`, if `ranks` ranks are spread evenly over the hosts in
    /// order.
    pub fn host_of(&self, rank: Rank, ranks: u32) -> u32 {
        rank.0 / (ranks / self.hosts).max(1)
    }
}

/// A GPU that the binary can use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Backend that computes on the GPU.
    #[serde(default = "cuda", skip_serializing_if = "is_cuda")]
    pub device: DeviceKind,
    /// Product name of the GPU.
    pub name: String,
    /// Total memory of the GPU in bytes.
    pub memory_bytes: u64,
}

/// The speeds of one rank, measured while `ranks` ranks ran at the same time, each with its share of the
/// cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRates {
    /// Number of ranks that ran at the same time.
    pub ranks: u32,
    /// Kind of device of each rank.
    pub device: DeviceKind,
    /// Number of threads that compute on each rank.
    pub threads: u32,
    /// Seconds of the model's parts at each measured micro-batch size, ascending.
    pub profile: Vec<ProfilePoint>,
    /// Seconds of gradient clipping and the optimizer (AdamW) per parameter.
    pub optimizer_seconds_per_parameter: f64,
    /// Seconds of an all-reduce over all ranks by message length in bytes, ascending; empty for one rank.
    pub all_reduce: Vec<(u64, f64)>,
    /// Relative spread (median absolute deviation over median) of repeated steps.
    pub spread: f64,
    /// Resident bytes of a rank before the model is built.
    pub baseline_bytes: u64,
    /// Time of whole training steps, including costs that the model's parts omit; `None` if it was not
    /// measured.
    #[serde(default)]
    pub whole_step: Option<WholeStep>,
    /// Precision of matrix products during the measurement; f32 in rates of older versions.
    #[serde(default = "f32_products", skip_serializing_if = "is_f32")]
    pub precision: Precision,
    /// Additional seconds of the first pass on a GPU, which compiles and tunes its kernels; `None` on a CPU,
    /// and in rates of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step_seconds: Option<f64>,
}

impl RankRates {
    /// Returns example rates for tests: one rank with one thread, which measured no part of a model.
    pub fn example() -> Self {
        Self {
            ranks: 1,
            device: DeviceKind::Cpu,
            threads: 1,
            profile: Vec::new(),
            optimizer_seconds_per_parameter: 1e-9,
            all_reduce: Vec::new(),
            spread: 0.02,
            baseline_bytes: 1 << 20,
            whole_step: None,
            precision: Precision::F32,
            first_step_seconds: None,
        }
    }
}

fn f32_products() -> Precision {
    Precision::F32
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

/// The time of a data-parallel step of all ranks with all its costs: reading ahead, the gradient reduction
/// during the last backward pass, waiting for the slowest rank, the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholeStep {
    /// Samples per forward pass on one rank.
    pub micro_batch: u32,
    /// Number of micro-batches per step on one rank.
    pub micro_batches: u32,
    /// Median seconds of a step.
    pub seconds: f64,
}

/// The seconds of the model's parts at one micro-batch size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilePoint {
    /// Micro-batch size in samples.
    pub micro_batch: u32,
    /// Seconds of the forward pass of one block, averaged over the blocks.
    pub block_forward: f64,
    /// Seconds of the backward pass of one block, averaged over the blocks.
    pub block_backward: f64,
    /// Seconds of the forward pass outside the blocks: embedding, head, loss.
    pub outer_forward: f64,
    /// Seconds of the backward pass outside the blocks.
    pub outer_backward: f64,
    /// Seconds of other work per micro-batch: reading samples, accumulating gradients.
    pub overhead: f64,
}

/// A request to `dtrain worker probe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// Model to measure.
    pub model: dtrain_recipes::Model,
    /// Host and device of this rank.
    pub placement: crate::Placement,
    /// Layout of the ranks that run at the same time, this one included.
    pub layout: Layout,
    /// Number of this rank among those that are measured together.
    pub rank: crate::Rank,
    /// Connection to the other ranks.
    pub link: crate::RankTransport,
    /// Micro-batch sizes to measure, ascending.
    pub micro_batches: Vec<u32>,
    /// Precision of matrix products.
    #[serde(default = "f32_products")]
    pub precision: Precision,
    /// Time limit of the whole measurement, in seconds.
    pub budget_seconds: f64,
}

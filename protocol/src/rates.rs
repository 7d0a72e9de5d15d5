//! Measured speeds of a host, with when and how they were measured.

use crate::{DeviceKind, Layout, Rank};
use dtrain_recipes::{Precision, Subnet};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Measured speeds of one host for one model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// The host as it was when measured.
    pub host: HostFacts,
    /// Milliseconds since the Unix epoch.
    pub measured_at_ms: u64,
    /// Digest of the model the profiles were measured on; another model needs a new probe.
    pub model_digest: String,
    /// One entry for each number of ranks that ran at the same time; ascending.
    pub by_ranks: Vec<RankRates>,
}

/// What the planner must know of a host, or of several that are alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostFacts {
    /// Host name; of the first where there are several.
    pub name: String,
    /// Hosts that are alike; what follows is of each.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub hosts: NonZeroU32,
    /// Processor in words.
    pub processor: String,
    /// Cores this process may use.
    pub cores: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// GPUs that this binary can use; all through one backend.
    pub gpus: Vec<Gpu>,
    /// What several hosts communicate over; `None` for one host, and in facts of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub links: Option<HostNetwork>,
}

/// Which hosts communicate with each other, and over what: speeds of other links say nothing of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetwork {
    /// Names of the hosts, sorted.
    pub hosts: Vec<String>,
    /// The network that the recipe names; `None` for the one over which each host was reached.
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
    /// The backend that computes on its GPUs; `None` where it has none.
    pub fn gpu_device(&self) -> Option<DeviceKind> {
        self.gpus.first().map(|gpu| gpu.device)
    }

    /// Cores of all hosts.
    pub fn all_cores(&self) -> u32 {
        self.cores.saturating_mul(self.hosts.get())
    }

    /// The host of `rank`, of `ranks` that are spread evenly in their order.
    pub fn host_of(&self, rank: Rank, ranks: u32) -> u32 {
        rank.0 / (ranks / self.hosts).max(1)
    }
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The backend that computes on it.
    #[serde(default = "cuda", skip_serializing_if = "is_cuda")]
    pub device: DeviceKind,
    /// Product name.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
}

/// Speeds of one rank while `ranks` of them worked side by side, each with its share of the cores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankRates {
    /// Ranks at work.
    pub ranks: u32,
    /// Device of each.
    pub device: DeviceKind,
    /// Compute threads of each.
    pub threads: u32,
    /// Seconds of the model's own parts by micro-batch; ascending in `micro_batch`.
    pub profile: Vec<ProfilePoint>,
    /// Seconds of clipping and the optimizer for one parameter (AdamW).
    pub optimizer_seconds_per_parameter: f64,
    /// Seconds of an all-reduce over all ranks by length in bytes, ascending; empty for one rank.
    pub all_reduce: Vec<(u64, f64)>,
    /// Relative spread (median absolute deviation over median) of repeated steps.
    pub spread: f64,
    /// Resident bytes of a rank before the model is built.
    pub baseline_bytes: u64,
    /// Whole steps as training does them; what the parts above leave out shows here.
    #[serde(default)]
    pub whole_step: Option<WholeStep>,
    /// Precision of the products while this was measured; f32 in rates of an older program.
    #[serde(default = "f32_products", skip_serializing_if = "is_f32")]
    pub precision: Precision,
    /// How much longer the first pass took on a device, which compiles and tunes its kernels in it; `None` on a CPU, and in
    /// rates of an older program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step_seconds: Option<f64>,
}

fn f32_products() -> Precision {
    Precision::F32
}

fn is_f32(precision: &Precision) -> bool {
    *precision == Precision::F32
}

/// Data-parallel steps of all ranks together, with everything that belongs to them: reading ahead, the reduction
/// inside the last backward, waiting for the slowest rank, the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WholeStep {
    /// Samples of one forward pass on one rank.
    pub micro_batch: u32,
    /// Forward passes of a step on one rank.
    pub micro_batches: u32,
    /// Median seconds of a step.
    pub seconds: f64,
}

/// Seconds of the model's parts at one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfilePoint {
    /// Samples.
    pub micro_batch: u32,
    /// Forward of one block, averaged over the blocks.
    pub block_forward: f64,
    /// Backward of one block, averaged over the blocks.
    pub block_backward: f64,
    /// Forward of what surrounds the blocks: embedding, head, loss.
    pub outer_forward: f64,
    /// Backward of what surrounds the blocks.
    pub outer_backward: f64,
    /// Everything else of a step that grows with micro-batches: reading samples, accumulating gradients.
    pub overhead: f64,
}

/// What is asked of `dtrain worker probe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProbeRequest {
    /// What is to be trained.
    pub model: dtrain_recipes::Model,
    /// Device.
    pub placement: crate::Placement,
    /// Ranks at work at the same time, this one included.
    pub layout: Layout,
    /// This rank.
    pub rank: crate::Rank,
    /// How to reach the others.
    pub link: crate::RankTransport,
    /// Micro-batches to measure, ascending.
    pub micro_batches: Vec<u32>,
    /// Precision of the products.
    #[serde(default = "f32_products")]
    pub precision: Precision,
    /// Seconds the whole measurement may take.
    pub budget_seconds: f64,
}

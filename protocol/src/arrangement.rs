//! How the work of a step is arranged among ranks: everything that is decided but the batch and the learning rate.

use crate::{DeviceKind, Layout};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::{Deserialize, Serialize};

/// How the work of a step is arranged among ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrangement {
    /// How work is cut among the ranks.
    pub layout: Layout,
    /// What the replicas shard.
    pub zero: ZeroStage,
    /// Among how many neighbouring replicas; groups of that many replicate it. Divides their number, and 1 shards
    /// nothing.
    #[serde(default = "one")]
    pub shard: u32,
    /// Whether tensor-parallel ranks also hold parts of the sequence where matrices are not cut.
    #[serde(default)]
    pub sequence: bool,
    /// Which activations are computed again.
    pub recompute: Recompute,
    /// Of how many blocks one is computed again, the first of each run; 1 for every block.
    #[serde(default = "one")]
    pub recompute_every: u32,
    /// Order of the passes in a pipeline.
    #[serde(default = "one_forward_one_backward")]
    pub schedule: PipelineSchedule,
    /// Runs of blocks of one pipeline stage.
    #[serde(default = "one")]
    pub chunks: u32,
    /// Arithmetic of matrix products.
    pub precision: Precision,
    /// Where every rank runs.
    pub device: DeviceKind,
}

impl Arrangement {
    /// One rank on a CPU in f32 that keeps everything.
    pub const SINGLE: Self = Self {
        layout: Layout::SINGLE,
        zero: ZeroStage::Zero0,
        shard: 1,
        sequence: false,
        recompute: Recompute::None,
        recompute_every: 1,
        schedule: PipelineSchedule::OneForwardOneBackward,
        chunks: 1,
        precision: Precision::F32,
        device: DeviceKind::Cpu,
    };

    /// Ranks that hold the same weights, experts aside.
    pub fn replicas(&self) -> u32 {
        self.layout.data.get() * self.layout.context.get() * self.layout.expert.get()
    }
}

fn one() -> u32 {
    1
}

fn one_forward_one_backward() -> PipelineSchedule {
    PipelineSchedule::OneForwardOneBackward
}

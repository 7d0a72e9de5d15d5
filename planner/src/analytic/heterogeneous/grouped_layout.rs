//! A layout of a heterogeneous cluster.

use crate::analytic::{Degrees, StepConfig};
use dtrain_protocol::{Arrangement, DeviceKind};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::Serialize;

/// A run of consecutive pipeline stages on one group of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStages {
    /// Index of the group of hosts in the cluster.
    pub group: usize,
    /// Number of stages in the run, at least one.
    pub stages: u32,
}

/// A layout whose pipeline stages are spread over groups of equal hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupedLayout {
    /// Tensor-parallel degree: ranks that share a matrix.
    pub tensor: u32,
    /// Context-parallel degree: ranks that share a sequence.
    pub context: u32,
    /// Expert-parallel degree: ranks that share a layer's experts.
    pub expert: u32,
    /// Data-parallel degree, the same in every stage.
    pub data: u32,
    /// Samples per micro-batch.
    pub micro: u32,
    /// True if tensor-parallel ranks split activations along the sequence.
    pub is_sequence_parallel: bool,
    /// Recompute mode, and the interval of layers at which it applies.
    pub recompute: (Recompute, u32),
    /// ZeRO stage: which of their states the replicas shard.
    pub zero: ZeroStage,
    /// Order of the passes in the pipeline.
    pub schedule: PipelineSchedule,
    /// Chunks (runs of layers) per stage; more than 1 for interleaved schedules.
    pub chunks: u32,
    /// Runs of stages in pipeline order; each group of hosts has at most one.
    pub runs: Vec<GroupStages>,
}

impl GroupedLayout {
    /// Returns the number of devices per stage.
    pub fn width(&self) -> u32 {
        self.tensor * self.context * self.data
    }

    /// Returns the number of pipeline stages.
    pub fn depth(&self) -> u32 {
        self.runs.iter().map(|run| run.stages).sum()
    }

    /// Returns the number of devices that the layout uses.
    pub fn devices(&self) -> u32 {
        self.width() * self.depth()
    }

    /// Returns the index of the group that each stage is on, in pipeline order.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().flat_map(|run| (0..run.stages).map(|_| run.group))
    }

    /// Returns the configuration that all stages share, for `batch` samples per step; state is sharded among
    /// all replicas.
    ///
    /// # Panics
    /// If the experts cannot be spread over the ranks of a stage.
    pub fn config(&self, batch: u32) -> StepConfig {
        let (recompute, recompute_every) = self.recompute;
        let arrangement = Arrangement {
            zero: self.zero,
            sequence: self.is_sequence_parallel,
            recompute,
            recompute_every,
            schedule: self.schedule,
            chunks: self.chunks,
            precision: Precision::Bf16,
            device: DeviceKind::Cuda,
            ..Arrangement::SINGLE
        };
        let degrees = Degrees {
            tensor: self.tensor,
            context: self.context,
            expert: self.expert,
            pipeline: self.depth(),
            data: self.data,
        };
        let any = StepConfig { arrangement, micro_batch: self.micro, batch };
        let config = any.with_degrees(degrees, false).or_else(|| any.with_degrees(degrees, true));
        let mut config = config.expect("experts are spread over the ranks of a stage");
        if self.zero != ZeroStage::Zero0 {
            config.arrangement.shard = config.arrangement.replicas();
        }
        config
    }
}

/// Returns the layout of a single rank, whose fields callers replace.
pub(super) fn single_rank_layout() -> GroupedLayout {
    GroupedLayout {
        tensor: 1,
        context: 1,
        expert: 1,
        data: 1,
        micro: 1,
        is_sequence_parallel: false,
        recompute: (Recompute::None, 1),
        zero: ZeroStage::Zero0,
        schedule: PipelineSchedule::OneForwardOneBackward,
        chunks: 1,
        runs: Vec::new(),
    }
}

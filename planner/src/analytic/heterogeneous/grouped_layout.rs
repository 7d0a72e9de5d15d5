//! A layout of a mixed cluster.

use crate::analytic::{Degrees, StepConfig};
use dtrain_protocol::{Arrangement, DeviceKind};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::Serialize;

/// Consecutive stages on one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct GroupStages {
    /// The group, by its place in the cluster.
    pub group: usize,
    /// Stages, at least one.
    pub stages: u32,
}

/// How a step is cut among groups of equal hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GroupedLayout {
    /// Ranks that share a matrix.
    pub tensor: u32,
    /// Ranks that share a sequence.
    pub context: u32,
    /// Ranks that share a layer's experts.
    pub expert: u32,
    /// Replicas, as many of every stage.
    pub data: u32,
    /// Samples of one forward pass.
    pub micro: u32,
    /// Whether ranks that share matrices hold a part of the sequence each between them.
    pub is_sequence_parallel: bool,
    /// What a backward computes again, and of how many layers one.
    pub recompute: (Recompute, u32),
    /// What the replicas shard among them.
    pub zero: ZeroStage,
    /// Order of the passes in the pipeline.
    pub schedule: PipelineSchedule,
    /// Runs of layers of each stage: 1, or more where they are interleaved.
    pub chunks: u32,
    /// Groups with their stages, from the first stage to the last; each group at most once.
    pub runs: Vec<GroupStages>,
}

impl GroupedLayout {
    /// Devices of one stage.
    pub fn width(&self) -> u32 {
        self.tensor * self.context * self.data
    }

    /// Stages in all.
    pub fn depth(&self) -> u32 {
        self.runs.iter().map(|run| run.stages).sum()
    }

    /// Devices that work.
    pub fn devices(&self) -> u32 {
        self.width() * self.depth()
    }

    /// The group of every stage, from the first to the last.
    pub fn groups(&self) -> impl Iterator<Item = usize> {
        self.runs.iter().flat_map(|run| (0..run.stages).map(|_| run.group))
    }

    /// What all stages have in common, for steps of `batch` samples. Replicas shard among all of them.
    ///
    /// # Panics
    /// Where experts cannot be spread over the ranks of a stage.
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

//! The number of layers on each stage of a pipeline.

use super::{StepConfig, Transformer};
use crate::pipeline_schedule::chunks_of;

/// Number of layers on the stages that decide time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePartition {
    /// Number of layers on the first stage.
    pub first: u32,
    /// Number of layers on the last stage.
    pub last: u32,
    /// Number of layers on the second stage; 0 if the pipeline has at most two stages.
    pub second: u32,
    /// Number of layers on the fullest stage between the first and the last; 0 if there is none.
    pub most: u32,
    /// Index of the first stage that has `most` layers.
    pub most_at: u32,
}

impl StagePartition {
    /// Divides the layers of `model` among the stages of `config`.
    pub fn of(model: &Transformer, config: &StepConfig) -> Self {
        let stages = config.arrangement.layout.pipeline.get();
        let blocks = super::search::to_count(model.layers);
        let layers = |stage: u32| -> u32 {
            chunks_of(stage, &config.arrangement, blocks).map(|run| run.end - run.start).sum()
        };
        let between = 1..stages.saturating_sub(1);
        let most = between.clone().map(layers).max().unwrap_or(0);
        Self {
            first: layers(0),
            last: layers(stages - 1),
            second: between.clone().next().map_or(0, layers),
            most,
            most_at: between.clone().find(|stage| layers(*stage) == most).unwrap_or(0),
        }
    }

    /// Returns the number of layers on the fullest stage.
    pub fn fullest(&self) -> u32 {
        self.most.max(self.first).max(self.last)
    }
}

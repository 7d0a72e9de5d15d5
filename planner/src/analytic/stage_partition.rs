//! The number of layers on each stage of a pipeline.

use super::{StepConfig, Transformer};
use crate::pipeline_schedule::chunks_of;

/// Layers of the stages that decide time and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePartition {
    /// Layers of the first stage.
    pub first: u32,
    /// Layers of the last stage.
    pub last: u32,
    /// Layers of the second stage; 0 if it is the last or missing.
    pub second: u32,
    /// Layers of the fullest stage between the first and the last; 0 if there is none.
    pub most: u32,
    /// Index of the first stage with `most` layers.
    pub most_at: u32,
}

impl StagePartition {
    /// Divides the layers of a model according to a layout.
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

    /// Returns the layers of the fullest stage.
    pub fn fullest(&self) -> u32 {
        self.most.max(self.first).max(self.last)
    }
}

//! How many layers the stages of a pipeline hold.

use super::{StepConfig, Transformer};
use crate::step::schedule::chunks_of;

/// Layers of the stages that decide time and memory. All that is not an end holds at most `most`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StagePartition {
    /// Of the first stage.
    pub first: u32,
    /// Of the last stage.
    pub last: u32,
    /// Of the second stage, where that is not the last; otherwise 0.
    pub second: u32,
    /// Of the fullest stage between the first and the last; 0 where there is none.
    pub most: u32,
    /// The first stage that has so many.
    pub most_at: u32,
}

impl StagePartition {
    /// The layers of a model divided as a layout says.
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

    /// Layers of the fullest stage.
    pub fn fullest(&self) -> u32 {
        self.most.max(self.first).max(self.last)
    }
}

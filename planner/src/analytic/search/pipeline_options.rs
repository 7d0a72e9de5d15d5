//! Pipeline schedules of a step, and the division of the layers among stages.

use super::space::{SearchProblem, divisors_of, to_count};
use crate::analytic::{MicroBatchTimes, StagePartition, StepConfig, Transformer};
use dtrain_protocol::{Arrangement, EmbeddingHeadCost};
use dtrain_recipes::PipelineSchedule;
use std::collections::BTreeMap;

impl SearchProblem {
    /// Returns the pipeline schedules to try for `config`, with their chunks per stage and the number of
    /// layers that embedding and head count as. If the layers alone do not divide, they are interleaved
    /// together with embedding and head. GPipe is included only if pinned: it takes as long as 1F1B and more
    /// memory.
    pub fn schedules(&self, config: &StepConfig) -> Vec<PipelineOption> {
        let plain = PipelineOption {
            schedule: PipelineSchedule::OneForwardOneBackward,
            chunks: 1,
            ends: EmbeddingHeadCost::FREE,
        };
        let stages = config.arrangement.layout.pipeline.get();
        if stages == 1 {
            return vec![plain];
        }
        let mut all = Vec::new();
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZeroBubble] {
            all.push(PipelineOption { schedule, ..plain });
        }
        if self.pins.schedule == Some(PipelineSchedule::Gpipe) {
            all.push(PipelineOption { schedule: PipelineSchedule::Gpipe, ..plain });
        }
        let layers = to_count(self.model.layers);
        if to_count(config.micro_batches()).is_multiple_of(stages) {
            for ends in INTERLEAVED_ENDS {
                let counted = layers + ends.embedding + ends.head;
                if !counted.is_multiple_of(stages) {
                    continue;
                }
                let chunks = divisors_of(counted / stages).skip(1);
                all.extend(chunks.map(|chunks| PipelineOption {
                    schedule: PipelineSchedule::Interleaved,
                    chunks,
                    ends,
                }));
            }
        }
        all.retain(|passes| {
            self.pins.schedule.is_none_or(|pin| pin == passes.schedule)
                && self.pins.chunks.is_none_or(|pin| pin == passes.chunks)
        });
        all
    }

    /// Returns the layout `config` with its fastest stage partition, if its schedule leaves the partition
    /// open.
    pub(in crate::analytic) fn divided(
        &self,
        config: &StepConfig,
        unit: &MicroBatchTimes,
        known: &mut StagePartitionCache,
    ) -> (StepConfig, StagePartition) {
        let of = |ends: EmbeddingHeadCost, known: &mut StagePartitionCache| {
            let config = StepConfig { arrangement: Arrangement { ends, ..config.arrangement }, ..*config };
            (config, known.of(&self.model, &config))
        };
        let is_open = config.arrangement.layout.pipeline.get() > 1 && config.arrangement.chunks == 1;
        if !is_open {
            return of(config.arrangement.ends, known);
        }
        let mean = unit.layers(&self.model, 0.0) / self.model.layers;
        let slowest = |division: &StagePartition| {
            let of = |layers: u32, extra: f64| f64::from(layers) * mean + extra;
            of(division.first, unit.embedding).max(of(division.last, unit.head)).max(of(division.most, 0.0))
        };
        let mut best = of(EmbeddingHeadCost::FREE, known);
        let mut seconds = slowest(&best.1);
        for ends in PLAIN_ENDS {
            let other = of(ends, known);
            let other_seconds = slowest(&other.1);
            let has_layers = other.1.first > 0 && other.1.last > 0;
            if has_layers && other_seconds < seconds && self.allows(&other.0) {
                (best, seconds) = (other, other_seconds);
            }
        }
        best
    }
}

/// Numbers of layers that embedding and head may count as, for stages of one chunk.
pub(super) const PLAIN_ENDS: [EmbeddingHeadCost; 4] = [
    EmbeddingHeadCost { embedding: 0, head: 1 },
    EmbeddingHeadCost { embedding: 1, head: 1 },
    EmbeddingHeadCost { embedding: 0, head: 2 },
    EmbeddingHeadCost { embedding: 1, head: 2 },
];

/// Numbers of layers that embedding and head may count as, for interleaved schedules.
const INTERLEAVED_ENDS: [EmbeddingHeadCost; 4] = [
    EmbeddingHeadCost::FREE,
    EmbeddingHeadCost { embedding: 1, head: 1 },
    EmbeddingHeadCost { embedding: 0, head: 1 },
    EmbeddingHeadCost { embedding: 1, head: 0 },
];

/// A pipeline schedule with its chunks per stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineOption {
    /// Order of the passes in the pipeline.
    pub schedule: PipelineSchedule,
    /// Chunks (runs of layers) per stage.
    pub chunks: u32,
    /// Number of layers that embedding and head count as.
    pub ends: EmbeddingHeadCost,
}

impl PipelineOption {
    /// Returns the layout `config` under this schedule.
    pub fn of(self, config: &StepConfig) -> StepConfig {
        let Self { schedule, chunks, ends } = self;
        StepConfig { arrangement: Arrangement { schedule, chunks, ends, ..config.arrangement }, ..*config }
    }
}

/// Cache of stage partitions, by stages, chunks, and the layers that embedding and head count as.
#[derive(Debug, Default)]
pub(in crate::analytic) struct StagePartitionCache(BTreeMap<(u32, u32, EmbeddingHeadCost), StagePartition>);

impl StagePartitionCache {
    pub(in crate::analytic) fn of(&mut self, model: &Transformer, config: &StepConfig) -> StagePartition {
        let Arrangement { layout, chunks, ends, .. } = config.arrangement;
        let key = (layout.pipeline.get(), chunks, ends);
        *self.0.entry(key).or_insert_with(|| StagePartition::of(model, config))
    }
}

//! The timeline of a predicted step: the activities of each stage, from the simulated pipeline.

use super::{BatchCost, Bottleneck, PipelineTiming, StageTimes};
use crate::pipeline_schedule::PipelineShape;
use crate::step::timeline::{Activity, ChunkTimes, Timeline, stage_tracks};
use dtrain_protocol::Arrangement;

impl StageTimes {
    /// Returns the seconds of one pass through one of the stage's `chunks` chunks.
    pub(super) fn work(&self, chunks: u32) -> ChunkTimes {
        let v = f64::from(chunks);
        ChunkTimes {
            forward: self.forward / v,
            backward: self.backward / v,
            weights: self.weights / v,
            sent_forward: self.sent_forward / v,
            sent_backward: self.sent_backward / v,
        }
    }
}

impl PipelineTiming<'_> {
    /// Returns the timeline of one step in every stage. All tracks end at the step time of
    /// [`PipelineTiming::breakdown`] with a simulated pipeline; `None` when the schedule deadlocks.
    pub(crate) fn timeline(&self, split: &BatchCost) -> Option<Timeline> {
        let (timing, arrangement) = (&self.timing, self.timing.arrangement);
        let Bottleneck { busiest: (_, busiest), filling, .. } = self.deciding(split);
        let stages: Vec<StageTimes> = self.stages.iter().map(|steady| timing.stage(steady, split)).collect();
        let works: Vec<ChunkTimes> = stages.iter().map(|stage| stage.work(arrangement.chunks)).collect();
        let mut lanes = stage_tracks(&works, arrangement.schedule, self.shape(split), filling.message)?;
        let n = f64::from(split.micro_batches);
        let step = self.breakdown(split, true).total() / timing.speeds.whole;
        let waiting = timing.straggler_wait(n * (busiest.forward + busiest.backward), n);
        for (lane, stage) in lanes.iter_mut().zip(&stages) {
            lane.add(Activity::Overhead, n * split.cost.overhead);
            lane.add(Activity::Idle, waiting);
            lane.add(Activity::Communication, stage.end);
            lane.add(Activity::Optimizer, stage.optimizer);
            lane.until(step);
            lane.scale(timing.speeds.whole);
        }
        Some(Timeline { step_seconds: step * timing.speeds.whole, lanes })
    }

    pub(super) fn shape(&self, split: &BatchCost) -> PipelineShape {
        let Arrangement { layout, chunks, .. } = *self.timing.arrangement;
        PipelineShape { stages: layout.pipeline.get(), chunks, micros: split.micro_batches }
    }
}

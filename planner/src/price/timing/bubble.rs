//! The pipeline bubble: seconds that the busiest stage of a pipeline is idle in a step.

use super::{BatchCost, PipelineTiming, StageTimes, TimingInputs};
use crate::pipeline_schedule::passes;
use crate::pipeline_schedule::simulate::{PassCost, SimulatedPipeline, simulate_pipeline};
use dtrain_protocol::Arrangement;
use dtrain_recipes::PipelineSchedule;

/// Inputs of the closed form for the pipeline bubble: the sum of [`TimingInputs::fill_seconds`] over all
/// stages, and the seconds of the longest message.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PipelineFill {
    pub(super) all: f64,
    pub(super) message: f64,
}

impl PipelineTiming<'_> {
    /// Returns the idle seconds of the busiest stage: pipeline fill and drain (Narayanan et al. 2021), and
    /// messages. The pipeline is simulated action by action if `walked`, otherwise priced in closed form.
    pub(super) fn bubble(
        &self,
        split: &BatchCost,
        busiest: &StageTimes,
        filling: PipelineFill,
        walked: bool,
    ) -> f64 {
        let Arrangement { layout, chunks, .. } = *self.timing.arrangement;
        let PipelineFill { all, message: transfer } = filling;
        let (p, v) = (f64::from(layout.pipeline.get()), f64::from(chunks));
        let passes = f64::from(split.micro_batches) * v;
        let closed =
            (all - self.timing.fill_seconds(busiest, split)) / v + 2.0 * (passes + p - 2.0) * transfer;
        if !walked {
            return closed;
        }
        self.walked(split, transfer).map_or(closed, |walked| walked.bubble())
    }

    /// Simulates the passes of a step action by action, with `transfer` seconds for each message; see
    /// [`simulate_pipeline`].
    fn walked(&self, split: &BatchCost, transfer: f64) -> Option<SimulatedPipeline> {
        let Arrangement { chunks, schedule, .. } = *self.timing.arrangement;
        let stages = self.stages.iter().map(|steady| self.timing.stage(steady, split));
        let costs: Vec<PassCost> = stages.map(|stage| stage.work(chunks).cost()).collect();
        let shape = self.shape(split);
        simulate_pipeline(&passes(schedule, shape), shape, &costs, transfer, |_, _, _| {})
    }
}

impl TimingInputs<'_> {
    /// Returns the seconds by which a stage delays the first micro-batch on its way forward and back.
    pub(super) fn fill_seconds(&self, stage: &StageTimes, split: &BatchCost) -> f64 {
        match self.arrangement.schedule {
            // Gradients of weights are not on this path, and those of later micro-batches fill the bubble.
            PipelineSchedule::ZeroBubble => {
                let ahead = f64::from(self.arrangement.layout.pipeline.get() - 1);
                let later = f64::from(split.micro_batches - 1);
                let hidden = if ahead > 0.0 { (later / ahead).min(1.0) } else { 0.0 };
                (stage.micro() - (1.0 + hidden) * stage.weights).max(0.0)
            }
            PipelineSchedule::Gpipe
            | PipelineSchedule::OneForwardOneBackward
            | PipelineSchedule::Interleaved => stage.micro(),
        }
    }
}

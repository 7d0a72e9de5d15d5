//! Memory and timeline of one step on every pipeline stage.

use crate::analytic::memory::in_flight;
use crate::analytic::search::{SearchProblem, to_count};
use crate::analytic::step::stage_message_seconds;
use crate::analytic::{
    MicroBatchTimes, PeakMemory, StageLoad, StagePartition, StepConfig, StepInputs, StepTimes,
};
use crate::pipeline_schedule::{PipelineShape, chunks_of};
use crate::step::timeline::{Activity, ChunkTimes, Timeline, stage_tracks};

/// Share of the forward in the time of head and embedding, and share of weight gradients in the backward of a
/// layer.
const FORWARD: f64 = 1.0 / 3.0;
const WEIGHTS: f64 = 0.5;

/// Returns the bytes of a rank of every stage by category, in pipeline order.
pub(super) fn memory(problem: &SearchProblem, config: &StepConfig) -> Vec<Vec<(&'static str, f64)>> {
    let case = problem.at(config);
    if config.pipeline() <= 1.0 {
        return vec![PeakMemory::of(&case).categories().to_vec()];
    }
    let stages = layers(&case);
    let last = stages.len() - 1;
    let peak = |(place, layers): (usize, &f64)| {
        let alive = in_flight(config, position(place));
        let stage = StageLoad { layers: *layers, alive, is_first: place == 0, is_last: place == last };
        PeakMemory::stage(&case, stage).categories().to_vec()
    };
    stages.iter().enumerate().map(peak).collect()
}

/// Returns the timeline of a step on every stage. Passes are simulated action by action, so the step differs
/// slightly from the closed form; the phases after the passes are as priced. `None` if the stages deadlock.
pub(super) fn timeline(problem: &SearchProblem, config: &StepConfig) -> Option<Timeline> {
    let case = problem.at(config);
    let unit = MicroBatchTimes::of(&case);
    let step = StepTimes::with(&case, &unit, StagePartition::of(case.model, config));
    let works = works(&case, &unit, &step);
    let shape = PipelineShape {
        stages: config.arrangement.layout.pipeline.get(),
        chunks: config.arrangement.chunks,
        micros: to_count(config.micro_batches()),
    };
    let transfer = if config.pipeline() > 1.0 { stage_message_seconds(&case) } else { 0.0 };
    let mut lanes = stage_tracks(&works, config.arrangement.schedule, shape, transfer)?;
    for lane in &mut lanes {
        lane.add(Activity::Communication, step.replicas);
        lane.add(Activity::Optimizer, step.optimizer);
        lane.add(Activity::Overhead, step.stragglers + step.fixed);
    }
    let step_seconds = lanes.iter().map(|lane| lane.seconds()).fold(0.0, f64::max);
    lanes.iter_mut().for_each(|lane| lane.until(step_seconds));
    Some(Timeline { step_seconds, lanes })
}

/// Returns the times of one pass through each chunk of every stage.
fn works(case: &StepInputs<'_>, unit: &MicroBatchTimes, step: &StepTimes) -> Vec<ChunkTimes> {
    let (model, stages) = (case.model, layers(case));
    let last = stages.len() - 1;
    let of_layer = unit.layers(model, step.gathering) / (model.layers + model.further());
    let (passes, sent) = (unit.layer.passes(), unit.layer.communication());
    // Dense layers change the mean layer time; its parts are scaled alike.
    let scale = (of_layer - step.gathering) / unit.layer.total();
    let gathered = [FORWARD, 1.0 - FORWARD].map(|part| part * step.gathering);
    let work = |(place, layers): (usize, &f64)| {
        let embedding = if place == 0 { unit.embedding } else { 0.0 };
        let head = if place == last { unit.head } else { 0.0 };
        // Multi-token prediction layers belong to the head.
        let further = if place == last { model.further() } else { 0.0 };
        let (ends, layers) = (embedding + head, layers + further);
        let each = layers * scale;
        let of_chunk = |seconds: f64| seconds / case.config.chunks();
        let products = of_chunk(each * (passes.backward - sent.backward));
        ChunkTimes {
            forward: of_chunk(each * (passes.forward - sent.forward) + FORWARD * ends),
            backward: products + of_chunk(each * unit.layer.recompute + (1.0 - FORWARD) * ends),
            weights: WEIGHTS * products,
            sent_forward: of_chunk(each * sent.forward + layers * gathered[0]),
            sent_backward: of_chunk(each * sent.backward + layers * gathered[1]),
        }
    };
    stages.iter().enumerate().map(work).collect()
}

/// Returns the number of layers on every stage.
fn layers(case: &StepInputs<'_>) -> Vec<f64> {
    let (arrangement, blocks) = (case.config.arrangement, to_count(case.model.layers));
    let runs = |stage| chunks_of(stage, &arrangement, blocks).map(|run| f64::from(run.end - run.start)).sum();
    (0..arrangement.layout.pipeline.get()).map(runs).collect()
}

fn position(stage: usize) -> f64 {
    u32::try_from(stage).expect("stages are few").into()
}

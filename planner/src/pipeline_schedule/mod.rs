//! Pipeline schedules: the ordered actions of each stage within one step, and their simulation.
//!
//! A schedule is an order of passes for every stage (`pass_order`, `schedule_1f1b`, `zero_bubble`);
//! `messages` places the messages between them, in one way for all schedules.

mod messages;
mod pass_order;
mod schedule_1f1b;
pub mod simulate;
mod zero_bubble;

#[cfg(test)]
mod tests;

use dtrain_protocol::{Action, Arrangement, sharding};
use dtrain_recipes::PipelineSchedule;
use std::num::NonZeroU32;
use std::ops::Range;

/// Size of a pipeline schedule: stages, chunks per stage and micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineShape {
    /// Number of pipeline stages, at least 1.
    pub stages: u32,
    /// Number of chunks per stage, at least 1; each chunk is a run of consecutive blocks.
    pub chunks: u32,
    /// Number of micro-batches in a step, at least 1.
    pub micros: u32,
}

/// Returns the passes and messages of every stage in one step, without the final reduction and update.
pub fn passes(schedule: PipelineSchedule, shape: PipelineShape) -> Vec<Vec<Action>> {
    let order = |stage| match schedule {
        PipelineSchedule::Gpipe => pass_order::all_forward_all_backward(shape),
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => {
            schedule_1f1b::one_forward_one_backward(stage, shape)
        }
        PipelineSchedule::ZeroBubble => zero_bubble::zero_bubble(stage, shape),
    };
    let orders: Vec<_> = (0..shape.stages).map(order).collect();
    messages::connect(&orders, shape)
}

/// Returns all actions of every stage in one step, including the final reduction and update.
pub fn steps(arrangement: &Arrangement, micro_batches: NonZeroU32) -> Vec<Vec<Action>> {
    let shape = PipelineShape {
        stages: arrangement.layout.pipeline.get(),
        chunks: arrangement.chunks,
        micros: micro_batches.get(),
    };
    let mut steps = passes(arrangement.schedule, shape);
    steps.iter_mut().for_each(|step| step.extend([Action::ReduceGradients, Action::UpdateWeights]));
    steps
}

/// Returns `true` if the schedule supports the number of micro-batches in `shape`: interleaved chunks need
/// full rounds of as many micro-batches as there are stages.
pub fn is_possible(schedule: PipelineSchedule, shape: PipelineShape) -> bool {
    schedule != PipelineSchedule::Interleaved || shape.micros.is_multiple_of(shape.stages)
}

/// Returns the largest number of passes whose activations stage `stage` keeps at once: forward passes whose
/// backward pass is not complete.
pub fn alive(schedule: PipelineSchedule, shape: PipelineShape, stage: u32) -> u32 {
    let PipelineShape { stages, chunks, micros } = shape;
    let ahead = stages - stage - 1;
    let most = match schedule {
        PipelineSchedule::Gpipe => micros * chunks,
        PipelineSchedule::OneForwardOneBackward => ahead + 1,
        PipelineSchedule::Interleaved => 2 * ahead + (chunks - 1) * stages + 1,
        PipelineSchedule::ZeroBubble => stages,
    };
    most.min(micros * chunks)
}

/// Returns the range of blocks in each chunk of stage `stage`. The pipeline visits all stages once for each
/// chunk. All ranges are equally long, the remainder spread evenly, with the ends of the model counted as in
/// [`Arrangement::ends`]. Memory, cost and assignments all use this split.
pub fn chunks_of(
    stage: u32,
    arrangement: &Arrangement,
    blocks: u32,
) -> impl Iterator<Item = Range<u32>> + use<> {
    let (stages, chunks, ends) = (arrangement.layout.pipeline.get(), arrangement.chunks, arrangement.ends);
    let counted = u64::from(blocks) + u64::from(ends.embedding) + u64::from(ends.head);
    (0..chunks).map(move |chunk| {
        let share = sharding::shard_range(counted, chunk * stages + stage, stages * chunks);
        // The embedding comes before block 0, and the head after the last.
        let block = |n: u64| {
            let before = n.saturating_sub(ends.embedding.into()).min(blocks.into());
            u32::try_from(before).expect("it is at most the number of blocks")
        };
        block(share.start)..block(share.end)
    })
}

//! What each pipeline stage does within one step, in order.
//!
//! A schedule is an order of passes for every stage (`orders`); the messages between them are put in by
//! `connect`, the same for all schedules.

mod messages;
mod pass_order;

#[cfg(test)]
mod tests;

use dtrain_protocol::{Action, Arrangement, sharding};
use dtrain_recipes::PipelineSchedule;
use std::num::NonZeroU32;
use std::ops::Range;

/// Stages, chunks of each and micro-batches of a step: what a schedule depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelineShape {
    /// Pipeline stages, at least 1.
    pub stages: u32,
    /// Runs of blocks of a stage, at least 1.
    pub chunks: u32,
    /// Forward passes of a step through each chunk, at least 1.
    pub micros: u32,
}

/// One step of every stage, without the reduction and the update at its end.
pub fn passes(schedule: PipelineSchedule, shape: PipelineShape) -> Vec<Vec<Action>> {
    let order = |stage| match schedule {
        PipelineSchedule::Gpipe => pass_order::all_forward_all_backward(shape),
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => {
            pass_order::one_forward_one_backward(stage, shape)
        }
        PipelineSchedule::ZeroBubble => pass_order::zero_bubble(stage, shape),
    };
    let orders: Vec<_> = (0..shape.stages).map(order).collect();
    messages::connect(&orders, shape)
}

/// One whole step of every stage.
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

/// Whether the schedule can order this many micro-batches: chunks are interleaved in rounds of as many micro-batches
/// as there are stages, and a round must be full.
pub fn is_possible(schedule: PipelineSchedule, shape: PipelineShape) -> bool {
    schedule != PipelineSchedule::Interleaved || shape.micros.is_multiple_of(shape.stages)
}

/// Passes through chunks whose activations a stage keeps at once, at most: what a forward left and its whole backward
/// has not taken.
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

/// The runs of blocks of stage `stage`: the pipeline goes through the stages once for each chunk, and all runs are equal
/// shares, the remainder spread evenly, where the ends of the model count as [`Arrangement::ends`] says. One truth for
/// memory, price and assignment.
pub fn chunks_of(
    stage: u32,
    arrangement: &Arrangement,
    blocks: u32,
) -> impl Iterator<Item = Range<u32>> + use<> {
    let (stages, chunks, ends) = (arrangement.layout.pipeline.get(), arrangement.chunks, arrangement.ends);
    let counted = u64::from(blocks) + u64::from(ends.embedding) + u64::from(ends.head);
    (0..chunks).map(move |chunk| {
        let share = sharding::shard_range(counted, chunk * stages + stage, stages * chunks);
        // The embedding stands before block 0, and the head behind the last.
        let block = |n: u64| {
            let before = n.saturating_sub(ends.embedding.into()).min(blocks.into());
            u32::try_from(before).expect("it is at most the number of blocks")
        };
        block(share.start)..block(share.end)
    })
}

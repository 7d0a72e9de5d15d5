//! What each pipeline stage does within one step, in order.
//!
//! A schedule is an order of passes for every stage ([`orders`]); the messages between them are put in by
//! [`connect`], the same for all schedules.

mod connect;
mod orders;

#[cfg(test)]
mod tests;

use dtrain_protocol::{Action, Arrangement};
use dtrain_recipes::PipelineSchedule;
use std::num::NonZeroU32;

/// Stages, chunks of each and micro-batches of a step: what a schedule depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pipeline stages, at least 1.
    pub stages: u32,
    /// Runs of blocks of a stage, at least 1.
    pub chunks: u32,
    /// Forward passes of a step through each chunk, at least 1.
    pub micros: u32,
}

/// One step of every stage, without the reduction and the update at its end.
pub fn passes(schedule: PipelineSchedule, shape: Shape) -> Vec<Vec<Action>> {
    let orders: Vec<_> = match schedule {
        PipelineSchedule::Gpipe => {
            (0..shape.stages).map(|_| orders::all_forward_all_backward(shape)).collect()
        }
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => {
            (0..shape.stages).map(|stage| orders::one_forward_one_backward(stage, shape)).collect()
        }
        PipelineSchedule::ZeroBubble => orders::zero_bubble(shape),
    };
    connect::connect(&orders, shape)
}

/// One whole step of every stage.
pub fn steps(arrangement: &Arrangement, micro_batches: NonZeroU32) -> Vec<Vec<Action>> {
    let shape = Shape {
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
pub fn is_possible(schedule: PipelineSchedule, shape: Shape) -> bool {
    schedule != PipelineSchedule::Interleaved || shape.micros.is_multiple_of(shape.stages)
}

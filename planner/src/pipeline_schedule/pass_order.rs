//! The order of passes in rounds of micro-batches, on which all schedules are based, and the GPipe order.

use super::PipelineShape;
use dtrain_protocol::{Action, Pass};

/// Returns the GPipe order of passes, equal for all stages: all forward passes, then all backward passes, so
/// that every micro-batch is alive at once.
pub(super) fn all_forward_all_backward(shape: PipelineShape) -> Vec<Action> {
    let (forwards, backwards) = rounds(shape);
    forwards.map(Action::Forward).chain(backwards.map(Action::Backward)).collect()
}

/// Returns all forward passes and all backward passes, each in rounds of `stages` micro-batches, one chunk
/// after the other in each round.
pub(super) fn rounds(shape: PipelineShape) -> (impl Iterator<Item = Pass>, impl Iterator<Item = Pass>) {
    let PipelineShape { stages, chunks, micros } = shape;
    // With one chunk the rounds make no difference.
    let rounds =
        move || (0..micros).step_by(stages as usize).map(move |first| first..micros.min(first + stages));
    let of = |round: std::ops::Range<u32>, chunk| round.map(move |micro| Pass { micro, chunk });
    let forwards =
        rounds().flat_map(move |round| (0..chunks).flat_map(move |chunk| of(round.clone(), chunk)));
    let backwards =
        rounds().flat_map(move |round| (0..chunks).rev().flat_map(move |chunk| of(round.clone(), chunk)));
    (forwards, backwards)
}

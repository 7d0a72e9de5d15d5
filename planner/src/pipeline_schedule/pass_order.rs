//! Pass orders of the pipeline schedules: GPipe, 1F1B, interleaved 1F1B and zero bubble.

use super::PipelineShape;
use dtrain_protocol::{Action, Pass};

/// Returns the GPipe order, equal for all stages: all forwards, then all backwards, so that every micro-batch
/// is alive at once.
pub(super) fn all_forward_all_backward(shape: PipelineShape) -> Vec<Action> {
    let (forwards, backwards) = rounds(shape);
    forwards.map(Action::Forward).chain(backwards.map(Action::Backward)).collect()
}

/// Returns the 1F1B order: forwards until the first gradient arrives, then one forward and one backward in
/// turn.
///
/// With one chunk at most `stages - stage` micro-batches are alive at once; with several more, since the
/// first gradient passes through all chunks.
pub(super) fn one_forward_one_backward(stage: u32, shape: PipelineShape) -> Vec<Action> {
    let PipelineShape { stages, chunks, micros } = shape;
    assert!(stage < stages, "stage {stage} is outside a pipeline of {stages}");
    let ahead = stages - stage - 1;
    let warmup = if chunks == 1 { ahead } else { 2 * ahead + (chunks - 1) * stages };
    let warmup = warmup.min(micros * chunks) as usize;
    let (mut forwards, mut backwards) = rounds(shape);
    let mut order: Vec<_> = forwards.by_ref().take(warmup).map(Action::Forward).collect();
    for forward in forwards {
        order.push(Action::Forward(forward));
        order.extend(backwards.next().map(Action::Backward));
    }
    order.extend(backwards.map(Action::Backward));
    order
}

/// Returns the forward and the backward passes: in rounds of `stages` micro-batches, one chunk after the
/// other in each round.
fn rounds(shape: PipelineShape) -> (impl Iterator<Item = Pass>, impl Iterator<Item = Pass>) {
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

/// Returns the ZB-H1 order (Qi et al. 2023): 1F1B, but gradients of weights are computed late.
///
/// Stage `s` computes them `s` micro-batches after the input gradient. So early stages, which wait for their
/// first gradient, and late ones, which start later, have work left to fill the bubble, and every stage holds
/// at most `stages` micro-batches, like the first stage of 1F1B. Needs one chunk per stage.
pub(super) fn zero_bubble(stage: u32, shape: PipelineShape) -> Vec<Action> {
    assert_eq!(shape.chunks, 1, "gradients of weights fill the bubble of stages with one chunk");
    let weights = |micro| Action::BackwardWeights(Pass { micro, chunk: 0 });
    let mut order = Vec::new();
    for action in one_forward_one_backward(stage, shape) {
        if let Action::Backward(pass) = action {
            order.push(Action::BackwardInput(pass));
            order.extend(pass.micro.checked_sub(stage).map(weights));
        } else {
            order.push(action);
        }
    }
    order.extend((shape.micros.saturating_sub(stage)..shape.micros).map(weights));
    order
}

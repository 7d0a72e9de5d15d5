//! The 1F1B schedule (one forward, one backward), also interleaved over several chunks per stage.

use super::PipelineShape;
use super::pass_order::rounds;
use dtrain_protocol::Action;

/// Returns the 1F1B order of passes for a stage: forward passes until the first gradient arrives, then one
/// forward and one backward pass in turn.
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

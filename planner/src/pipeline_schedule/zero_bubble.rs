//! The zero-bubble schedule ZB-H1: weight gradients, computed late, fill the bubble of 1F1B.

use super::PipelineShape;
use super::schedule_1f1b::one_forward_one_backward;
use dtrain_protocol::{Action, Pass};

/// Returns the ZB-H1 order of passes for a stage (Qi et al. 2023): 1F1B, but with weight gradients computed
/// late.
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

//! Megatron-LM arguments for the overlap of communication with computing on which the price of a plan counts.

use super::super::hosts::HostShape;
use super::{Argument, DecoderPlan};
use crate::engine::{Engine, MEGATRON, TrainingSpec, overlap};
use dtrain_protocol::Axis;
use dtrain_recipes::ZeroStage;

/// Returns the arguments for all overlap that the engine has in the plan's layout.
///
/// Messages between stages need none: they overlap by default where the schedule is interleaved, and cannot
/// elsewhere.
pub(super) fn arguments(source: &DecoderPlan) -> Vec<Argument> {
    let arrangement = source.arrangement;
    let training = TrainingSpec::of(source.model, source.train());
    let overlaps = MEGATRON.overlaps(&training, arrangement.precision);
    let mut arguments = Vec::new();
    if overlaps.data && arrangement.replicas() > 1 {
        arguments.push("--overlap-grad-reduce".into());
        if arrangement.zero != ZeroStage::Zero0 {
            arguments.push("--overlap-param-gather".into());
        }
    }
    let tensor = source.degree(Axis::Tensor);
    let each = HostShape::of(source.plan).each;
    if overlaps.tensor && tensor > 1 && overlap::is_tensor_in_pieces(arrangement, each) {
        arguments.push("--tp-comm-overlap".into());
    }
    if overlaps.experts && source.degree(Axis::Expert) * arrangement.expert_fold > 1 {
        arguments.push("--overlap-moe-expert-parallel-comm".into());
    }
    arguments
}

//! The operations that every implementation has; by default they are the compositions in `reference`.

use super::deferred_weight_grad::WeightLayout;
use super::experts::{self, ExpertMatrices};
use super::{
    Arithmetic, AttentionHeads, AttentionMask, DeferredLossFigures, Rotary, VocabRange, reference, unary,
};
use crate::mesh::Peers;
use burn::tensor::Tensor;
use dtrain_recipes::Precision;
use std::ops::Range;

/// The operations, documented at the functions of [`super`]. The default of each is the reference.
pub(super) trait Ops: Sync {
    fn project(
        &self,
        precision: Precision,
        x: Tensor<3>,
        weights: Vec<Tensor<2>>,
        biases: Vec<Tensor<1>>,
        residual: Option<Tensor<3>>,
    ) -> Tensor<3> {
        reference::project(precision, x, weights, biases, residual)
    }

    /// Returns the gradients of the weights of a projection from its input and the gradient of its output,
    /// flat, in the layout of the weights.
    fn weight_gradients(
        &self,
        precision: Precision,
        x: Tensor<3>,
        d: Tensor<3>,
        sides: &[WeightLayout],
    ) -> Vec<Tensor<1>> {
        reference::weight_gradients(precision, x, d, sides)
    }

    fn rotary(&self, packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
        reference::rotary(packed, heads, table)
    }

    fn attention(
        &self,
        arithmetic: Arithmetic,
        packed: Tensor<3>,
        heads: AttentionHeads,
        mask: &AttentionMask,
    ) -> Tensor<3> {
        let (precision, mask) = (arithmetic.precision, mask.clone());
        if arithmetic.forgets_scores {
            let run = move |packed| reference::attention(precision, packed, heads, &mask);
            unary::recompute_in_backward(packed, run)
        } else {
            reference::attention(precision, packed, heads, &mask)
        }
    }

    fn layer_norm(&self, x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
        reference::layer_norm(x, weight, bias, epsilon)
    }

    fn rms_norm(&self, x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
        reference::rms_norm(x, weight, epsilon)
    }

    fn gelu(&self, x: Tensor<3>) -> Tensor<3> {
        burn::tensor::activation::gelu(x)
    }

    fn gelu_tanh(&self, x: Tensor<3>) -> Tensor<3> {
        reference::gelu_tanh(x)
    }

    fn swiglu(&self, packed: Tensor<3>) -> Tensor<3> {
        reference::swiglu(packed)
    }

    fn geglu(&self, packed: Tensor<3>) -> Tensor<3> {
        reference::geglu(packed)
    }

    fn embed(&self, table: Tensor<2>, share: VocabRange, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
        reference::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        reference::add_positions(x, table, places)
    }

    fn cross_entropy(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        z_loss: f32,
    ) -> (Tensor<1>, DeferredLossFigures) {
        reference::cross_entropy(logits, targets, z_loss)
    }

    fn cross_entropy_of_part(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        share: VocabRange,
        peers: &Peers,
        z_loss: f32,
    ) -> (Tensor<1>, DeferredLossFigures) {
        reference::cross_entropy_of_part(logits, targets, share, peers, z_loss)
    }

    fn rows(&self, x: Tensor<3>) -> Tensor<2> {
        x.flatten(0, 1)
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        reference::inject(output, upstream)
    }

    /// Computes the experts: applies each expert's matrices to its group of rows.
    fn feed(
        &self,
        arithmetic: Arithmetic,
        rows: Tensor<3>,
        matrices: ExpertMatrices,
        groups: Vec<Range<usize>>,
    ) -> Tensor<3> {
        experts::feed_one_by_one(arithmetic, rows, matrices, groups)
    }
}

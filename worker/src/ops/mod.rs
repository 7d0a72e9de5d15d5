//! Operations of the models, each with its own gradient on the host and on a device, and as a plain
//! composition of tensor operations.

mod attention;
mod attention_mask;
pub(crate) mod chunks;
pub(crate) mod collective;
mod custom_autograd;
mod deferred_weight_grad;
#[cfg(feature = "device")]
pub(crate) mod device;
mod experts;
mod implementations;
pub(crate) mod kernels;
mod linear;
mod loss;
mod loss_figures;
mod norm;
mod operations;
mod pointwise;
pub(crate) mod reference;
pub(crate) mod ring_attention;
mod rotary;
mod token_routes;
mod unary;

use crate::mesh::Peers;
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_recipes::{Precision, RotaryScaling};
use std::sync::{Arc, OnceLock};

pub(crate) use attention_mask::{AttentionMask, DocumentStarts};
pub(crate) use deferred_weight_grad::{DeferredWeightGrads, LinearWeight};
pub(crate) use experts::{ExpertMatrices, combine, dispatch, feed};
pub(crate) use implementations::Implementation;
pub use loss_figures::{DeferredLossFigures, LossFigures};
pub(crate) use token_routes::TokenRoutes;

/// The settings of a stage's operations: their implementation and precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arithmetic {
    /// Implementation of the operations.
    pub(crate) by: Implementation,
    /// Precision of matrix products.
    pub(crate) precision: Precision,
    /// True if attention recomputes its scores in the backward pass; the host implementation always does.
    pub(crate) forgets_scores: bool,
}

/// The heads in the columns of a packed `[.., (query + 2·key)·width]` tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionHeads {
    /// Number of query heads.
    pub(crate) query: usize,
    /// Number of key heads, and of value heads; divides `query`.
    pub(crate) key: usize,
    /// Number of columns of one head.
    pub(crate) width: usize,
}

/// The range of vocabulary rows (or classes) that this rank holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VocabRange {
    /// Index of the first row that this rank holds.
    pub(crate) begin: usize,
    /// Number of rows over all ranks.
    pub(crate) of: usize,
}

impl VocabRange {
    /// Returns the index of `id` in this rank's part, which is `held` long; `None` if another rank holds
    /// it. Panics if no rank does.
    pub(crate) fn own(self, id: u32, held: usize) -> Option<usize> {
        let id = id as usize;
        assert!(id < self.of, "{id} is not one of {}", self.of);
        id.checked_sub(self.begin).filter(|own| *own < held)
    }
}

/// A table of the cosines and sines of some positions, for every pair of columns: `[positions, width / 2]`
/// each.
#[derive(Clone, Debug)]
pub(crate) struct Rotary {
    pub(crate) cos: Arc<[f32]>,
    pub(crate) sin: Arc<[f32]>,
    /// Both tables on the stage's device, copied there once.
    on_device: OnceLock<[Tensor<2>; 2]>,
}

impl Rotary {
    /// Creates the table of angles `position · base^(-2i / width)`, whose frequencies are scaled if `scaling` is
    /// given.
    pub(crate) fn new(
        positions: impl Iterator<Item = usize> + Clone,
        width: usize,
        base: u64,
        scaling: Option<RotaryScaling>,
    ) -> Self {
        let frequency = |pair: usize| {
            let frequency = (base as f64).powf(-2.0 * pair as f64 / width as f64);
            scaling.map_or(frequency, |scaling| scaling.scaled(frequency))
        };
        let angle = |position: usize, pair: usize| position as f64 * frequency(pair);
        let table = |f: fn(f64) -> f64| {
            let row = |position| (0..width / 2).map(move |pair| f(angle(position, pair)) as f32);
            positions.clone().flat_map(row).collect()
        };
        Self { cos: table(f64::cos), sin: table(f64::sin), on_device: OnceLock::new() }
    }

    /// Returns the cosines and the sines of all positions, `[positions, half]` each, as tensors on
    /// `device`.
    fn whole(&self, half: usize, device: &Device) -> [Tensor<2>; 2] {
        let tensors = self.on_device.get_or_init(|| {
            [&self.cos, &self.sin].map(|table| {
                let shape = [table.len() / half, half];
                Tensor::from_data(TensorData::new(table.to_vec(), shape), &device.clone().inner())
            })
        });
        tensors.clone()
    }
}

/// Returns the matrix product `lhs · rhs`, computed like linear layers on the device of the factors.
pub(crate) fn matmul<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "device")]
    if !crate::device::is_host(&lhs.device()) {
        return device::matmul::matmul(lhs, rhs);
    }
    lhs.matmul(rhs)
}

/// Computes linear layers of one input: `x · [w0 | w1 | …] + [b0 | b1 | …] + residual`.
///
/// `x: [b, t, in]`, each weight `[in, out]`; `biases` is empty or as long as `weights`.
pub(crate) fn project(
    arithmetic: Arithmetic,
    x: Tensor<3>,
    weights: Vec<impl Into<LinearWeight>>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    deferred_weight_grad::project(
        arithmetic,
        x,
        weights.into_iter().map(Into::into).collect(),
        biases,
        residual,
    )
}

/// Applies rotary embeddings to the query and key heads of a packed tensor (halves rotated, as in Llama).
pub(crate) fn rotary(
    arithmetic: Arithmetic,
    packed: Tensor<3>,
    heads: AttentionHeads,
    table: &Rotary,
) -> Tensor<3> {
    arithmetic.by.ops().rotary(packed, heads, table)
}

/// Computes causal attention to the keys that `mask` leaves. `[b, t, (query + 2·key)·width]` → `[b, t,
/// query·width]`
pub(crate) fn attention(
    arithmetic: Arithmetic,
    packed: Tensor<3>,
    heads: AttentionHeads,
    mask: &AttentionMask,
) -> Tensor<3> {
    arithmetic.by.ops().attention(arithmetic, packed, heads, mask)
}

/// Computes a layer norm: `(x - mean) / sqrt(variance + epsilon) · weight + bias` over the last dimension.
pub(crate) fn layer_norm(
    arithmetic: Arithmetic,
    x: Tensor<3>,
    weight: Tensor<1>,
    bias: Tensor<1>,
    epsilon: f32,
) -> Tensor<3> {
    arithmetic.by.ops().layer_norm(x, weight, bias, epsilon)
}

/// Computes an RMS norm: `x / sqrt(mean(x²) + epsilon) · weight` over the last dimension.
pub(crate) fn rms_norm(arithmetic: Arithmetic, x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
    arithmetic.by.ops().rms_norm(x, weight, epsilon)
}

/// Computes the exact GELU, `x · Φ(x)`.
pub(crate) fn gelu(arithmetic: Arithmetic, x: Tensor<3>) -> Tensor<3> {
    arithmetic.by.ops().gelu(x)
}

/// Factor `2·√(2/π)` of the argument in the tanh form of GELU.
pub(crate) const SLOPE: f32 = 1.595_769_2;
/// Factor of the cube in the tanh form of GELU.
pub(crate) const CUBIC: f32 = 0.044_715;

/// Computes GELU by its tanh form, `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`.
pub(crate) fn gelu_tanh(arithmetic: Arithmetic, x: Tensor<3>) -> Tensor<3> {
    arithmetic.by.ops().gelu_tanh(x)
}

/// Computes `max(0, x)`.
pub(crate) fn relu(x: Tensor<3>) -> Tensor<3> {
    burn::tensor::activation::relu(x)
}

/// Computes `silu(gate) · up` of a packed `[.., gate | up]`. `[b, t, 2·f]` → `[b, t, f]`
pub(crate) fn swiglu(arithmetic: Arithmetic, packed: Tensor<3>) -> Tensor<3> {
    arithmetic.by.ops().swiglu(packed)
}

/// Computes `gelu_tanh(gate) · up` of a packed `[.., gate | up]`. `[b, t, 2·f]` → `[b, t, f]`
pub(crate) fn geglu(arithmetic: Arithmetic, packed: Tensor<3>) -> Tensor<3> {
    arithmetic.by.ops().geglu(packed)
}

/// Returns the row of `table` for each token; zeros for tokens whose rows another rank holds. `[samples,
/// length, width]`
pub(crate) fn embed(
    arithmetic: Arithmetic,
    table: Tensor<2>,
    share: VocabRange,
    tokens: &[u32],
    [samples, length]: [usize; 2],
) -> Tensor<3> {
    arithmetic.by.ops().embed(table, share, tokens, [samples, length])
}

/// Adds the rows of `table` at their `places` to the tokens of every sample: `length` places for all samples, or
/// `samples · length`. `[samples, length, width]`
pub(crate) fn add_positions(
    arithmetic: Arithmetic,
    x: Tensor<3>,
    table: Tensor<2>,
    places: &[usize],
) -> Tensor<3> {
    arithmetic.by.ops().add_positions(x, table, places)
}

/// Returns the loss of `logits: [n, classes]` against `targets`, and its figures. The loss is the mean
/// cross-entropy plus `z_loss` times the mean of `log(Z)²`, where `Z` is the sum of the exponentials of a
/// prediction's scores; the figures have the cross-entropy alone.
pub(crate) fn cross_entropy(
    arithmetic: Arithmetic,
    logits: Tensor<2>,
    targets: &[u32],
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    arithmetic.by.ops().cross_entropy(logits, targets, z_loss)
}

/// Computes [`cross_entropy`] if each of `peers` has the scores of some classes, `[n, held]`: returns the
/// loss over all classes to all of `peers`, and to each the gradient of its own scores.
pub(crate) fn cross_entropy_of_part(
    arithmetic: Arithmetic,
    logits: Tensor<2>,
    targets: &[u32],
    share: VocabRange,
    peers: &Peers,
    z_loss: f32,
) -> (Tensor<1>, DeferredLossFigures) {
    arithmetic.by.ops().cross_entropy_of_part(logits, targets, share, peers, z_loss)
}

/// Joins the rows of all samples. `[b, t, w]` → `[b·t, w]`
pub(crate) fn rows(arithmetic: Arithmetic, x: Tensor<3>) -> Tensor<2> {
    arithmetic.by.ops().rows(x)
}

/// Returns a scalar whose gradient with respect to `output` is `upstream`: continues a backward pass that
/// began in another graph.
pub(crate) fn inject(arithmetic: Arithmetic, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
    arithmetic.by.ops().inject(output, upstream)
}

#[cfg(test)]
pub(crate) mod tests;

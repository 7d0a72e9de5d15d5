//! Tensor parallelism: matrices cut among ranks, and the communication for them.
//!
//! A part of a model is *entered* by layers whose weights are cut by columns, so that every rank computes
//! its own columns, and *left* by one whose weights are cut by rows, so that the ranks have partial sums.
//! Outside, every rank has all of an activation, or in sequence mode its part of the sequence. The sharding
//! table is in `protocol/src/sharding.rs`; nothing here knows a layer.

use crate::mesh::ModelParallelGroups;
use crate::network::{LayerContext, Weights};
use crate::ops::collective::{copy_to, gather_sequence, scatter_sequence, sum_from};
use crate::ops::{self, DeferredLossFigures, VocabRange};
use burn::tensor::Tensor;

/// Returns the input of column-parallel layers. `[b, t, w]`, or `[b, t / n, w]` in sequence mode, → `[b, t,
/// w]`
pub(crate) fn enter(partners: &ModelParallelGroups, x: Tensor<3>) -> Tensor<3> {
    if partners.sequence { gather_sequence(x, &partners.tensor) } else { copy_to(x, &partners.tensor) }
}

/// Sums the partial results of the ranks, and adds bias and residual once. The dual of [`enter`].
pub(crate) fn leave(
    partners: &ModelParallelGroups,
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    if partners.sequence {
        scatter_sequence(partial, bias, residual, &partners.tensor)
    } else {
        sum_from(partial, bias, residual, &partners.tensor)
    }
}

/// Computes column-parallel layers of one input, plus `added`.
///
/// `[b, t, w]` → `[b, t, sum of the columns held]`
pub(crate) fn column(
    layers: &LayerContext,
    weights: &Weights<'_>,
    names: &[&str],
    x: Tensor<3>,
    added: Option<Tensor<3>>,
) -> Tensor<3> {
    let matrices = names.iter().map(|name| weights.factor(&format!("{name}.weight"))).collect();
    let biases = names.iter().filter_map(|name| weights.find(&format!("{name}.bias"))).collect();
    ops::project(layers.arithmetic, enter(&layers.partners, x), matrices, biases, added)
}

/// Computes a row-parallel layer, plus the residual. `[b, t, rows held]` → `[b, t, w]`
pub(crate) fn row(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Tensor<3>,
) -> Tensor<3> {
    let (arithmetic, partners) = (layers.arithmetic, &layers.partners);
    let matrix = vec![weights.factor(&format!("{name}.weight"))];
    let bias: Option<Tensor<1>> = weights.find(&format!("{name}.bias"));
    if partners.tensor.size() == 1 {
        return ops::project(arithmetic, x, matrix, bias.into_iter().collect(), Some(residual));
    }
    let partial = ops::project(arithmetic, x, matrix, Vec::new(), None);
    leave(partners, partial, bias, Some(residual))
}

/// Computes the LoRA adapters of column-parallel layers: `scale · x·A·B` of each, side by side; `None` if
/// the layers have none. Every rank has all of `A` and columns of `B`. `[b, t, w]` → `[b, t, sum of the
/// columns held]`
pub(crate) fn column_adapters(
    layers: &LayerContext,
    weights: &Weights<'_>,
    names: &[&str],
    x: Tensor<3>,
    scale: f64,
) -> Option<Tensor<3>> {
    let down = names.iter().map(|name| weights.find_factor(&format!("{name}.lora_a")));
    let down = down.collect::<Option<Vec<_>>>()?;
    // Outside of the cut layers every rank has the whole gradient of `x`, so `A` is applied before they are
    // entered.
    let low = ops::project(layers.arithmetic, x, down, Vec::new(), None) * scale;
    let low = enter(&layers.partners, low);
    let rank = low.dims()[2] / names.len();
    let up = (0..).zip(names).map(|(place, name)| {
        let low = low.clone().narrow(2, place * rank, rank);
        let factor = weights.factor(&format!("{name}.lora_b"));
        ops::project(layers.arithmetic, low, vec![factor], Vec::new(), None)
    });
    Some(Tensor::cat(up.collect(), 2))
}

/// Returns `residual` plus the LoRA adapter of a row-parallel layer: `scale · x·A·B`. Every rank has rows
/// of `A` and all of `B`. `x` is `[b, t, rows held]`, `residual` `[b, t, w]`.
pub(crate) fn row_adapter(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Tensor<3>,
    scale: f64,
) -> Tensor<3> {
    let Some(down) = weights.find_factor(&format!("{name}.lora_a")) else { return residual };
    let partial = ops::project(layers.arithmetic, x, vec![down], Vec::new(), None) * scale;
    let low = if layers.partners.tensor.size() == 1 {
        partial
    } else {
        leave(&layers.partners, partial, None, None)
    };
    let up = weights.factor(&format!("{name}.lora_b"));
    ops::project(layers.arithmetic, low, vec![up], Vec::new(), Some(residual))
}

/// Computes the mean cross-entropy of `logits: [n, classes held]`, of which this rank has its share of the
/// classes.
pub(crate) fn cross_entropy(
    layers: &LayerContext,
    logits: Tensor<2>,
    targets: &[u32],
    share: VocabRange,
) -> (Tensor<1>, DeferredLossFigures) {
    let peers = &layers.partners.tensor;
    if peers.size() == 1 {
        return ops::cross_entropy(layers.arithmetic, logits, targets);
    }
    ops::cross_entropy_of_part(layers.arithmetic, logits, targets, share, peers)
}

/// Returns the part of `places`, one for each token of a sequence, of the tokens that this rank has outside
/// of the cut layers.
pub(crate) fn part_of<'a, T>(partners: &ModelParallelGroups, places: &'a [T]) -> &'a [T] {
    let ModelParallelGroups { tensor, sequence, .. } = partners;
    if !sequence {
        return places;
    }
    let part = places.len() / tensor.size() as usize;
    &places[tensor.rank() as usize * part..][..part]
}

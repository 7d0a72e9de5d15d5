//! Tensor parallelism: matrices cut among ranks, and the communication for them.
//!
//! A part of a model is *entered* by layers whose weights are cut by columns, so that every rank computes
//! its own columns, and *left* by one whose weights are cut by rows, so that the ranks have partial sums.
//! Outside, every rank has all of an activation, or in sequence mode its part of the sequence. The sharding
//! table is in `protocol/src/sharding.rs`; nothing here knows a layer.

use crate::mesh::ModelParallelGroups;
use crate::ops::collective::{copy_to, gather_sequence, scatter_sequence, sum_from};
use burn::tensor::Tensor;

/// Returns the input of column-parallel layers: `x`, whose gradient is summed over the ranks. `[b, t,
/// w]`, or `[b, t / n, w]` in sequence mode, → `[b, t, w]`
pub(crate) fn enter(partners: &ModelParallelGroups, x: Tensor<3>) -> Tensor<3> {
    if partners.sequence { gather_sequence(x, &partners.tensor) } else { copy_to(x, &partners.tensor) }
}

/// Sums the partial results of the ranks, and adds bias and residual once. It is the dual of [`enter`].
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

/// Returns the part of `places`, which has one entry for each token of a sequence, for the tokens that
/// this rank holds outside of the cut layers.
pub(crate) fn part_of<'a, T>(partners: &ModelParallelGroups, places: &'a [T]) -> &'a [T] {
    let ModelParallelGroups { tensor, sequence, .. } = partners;
    if !sequence {
        return places;
    }
    let part = places.len() / tensor.size() as usize;
    &places[tensor.rank() as usize * part..][..part]
}

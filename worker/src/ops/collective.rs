//! Collectives in the network: operations that communicate in the forward or the backward pass. Each is free
//! if there is no other rank.
//!
//! The backward of each is its dual. Those of a device are in `device/collective.rs`.
// Shapes in this file: b samples · t tokens of a whole sequence · n ranks · w width

use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::linear::sum_rows;
use super::{chunks, kernels};
use crate::mesh::Peers;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

/// Returns `x` unchanged; backward sums its gradient over `peers`, each of which computes with all of `x`.
pub(crate) fn copy_to(x: Tensor<3>, peers: &Peers) -> Tensor<3> {
    if peers.size() == 1 {
        return x;
    }
    #[cfg(feature = "device")]
    if !crate::device::is_host(&x.device()) {
        return super::device::collective::copy_to(x, peers);
    }
    let peers = peers.clone();
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("a copy has one input");
        (x, Box::new(move |d, _| vec![Some(sum(d, &peers))]))
    })
}

/// Returns the sum of `partial` over `peers`, plus `bias` and `residual`, which are replicated; backward
/// passes the gradient to each of `peers` unchanged.
pub(crate) fn sum_from(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
) -> Tensor<3> {
    if peers.size() == 1 && bias.is_none() && residual.is_none() {
        return partial;
    }
    #[cfg(feature = "device")]
    if !crate::device::is_host(&partial.device()) {
        return super::device::collective::sum_from(partial, bias, residual, peers);
    }
    leave(partial, bias, residual, peers, CollectiveOp { forward: sum, backward: |d, _| d })
}

/// All-gathers sequences of which each of `peers` holds a part. `[b, t / n, w]` → `[b, t, w]`; backward
/// reduce-scatters the gradient.
pub(crate) fn gather_sequence(x: Tensor<3>, peers: &Peers) -> Tensor<3> {
    if peers.size() == 1 {
        return x;
    }
    #[cfg(feature = "device")]
    if !crate::device::is_host(&x.device()) {
        return super::device::collective::gather_sequence(x, peers);
    }
    let peers = peers.clone();
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("gathering has one input").map(dense);
        (gather(x, &peers), Box::new(move |d, _| vec![Some(scatter(dense(d), &peers))]))
    })
}

/// Reduce-scatters `partial` along the sequence, and adds `bias` and this rank's part of the `residual`.
/// `[b, t, w]` → `[b, t / n, w]`; backward gathers the gradient.
pub(crate) fn scatter_sequence(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
) -> Tensor<3> {
    if peers.size() == 1 {
        return sum_from(partial, bias, residual, peers);
    }
    #[cfg(feature = "device")]
    if !crate::device::is_host(&partial.device()) {
        return super::device::collective::scatter_sequence(partial, bias, residual, peers);
    }
    leave(partial, bias, residual, peers, CollectiveOp { forward: scatter, backward: gather })
}

/// A collective operation, and the operation of its backward pass.
struct CollectiveOp {
    forward: fn(FlexTensor, &Peers) -> FlexTensor,
    backward: fn(FlexTensor, &Peers) -> FlexTensor,
}

fn leave(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
    way: CollectiveOp,
) -> Tensor<3> {
    let (has_bias, has_residual, peers) = (bias.is_some(), residual.is_some(), peers.clone());
    let mut inputs = vec![input(partial)];
    inputs.extend(bias.map(input));
    inputs.extend(residual.map(input));
    record(inputs, |values| {
        let mut values = values.into_iter().map(dense);
        let mut y = (way.forward)(values.next().expect("what is summed is the first input"), &peers);
        let [.., width] = shape::<3>(&y);
        for added in values {
            // A bias is one row, a residual has all rows.
            let (rows, added) = (chunks::rows(width) * width, slice(&added));
            let parts = y.storage_mut::<f32>().chunks_mut(rows);
            if added.len() == width {
                chunks::each(parts, |y| kernels::add_to_rows(y, added));
            } else {
                chunks::each(parts.zip(added.chunks(rows)), |(y, added)| kernels::add(y, added));
            }
        }
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let mut found = vec![None];
            if has_bias {
                found.push(Some(vector(sum_rows(slice(&d), width), [width])));
            }
            if has_residual {
                found.push(Some(d.clone()));
            }
            found[0] = Some((way.backward)(d, &peers));
            found
        };
        (y, Box::new(gradient))
    })
}

/// All-reduces `values`: returns their sum over `peers`.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products`, and of gates in `experts`.
fn sum(values: FlexTensor, peers: &Peers) -> FlexTensor {
    let mut values = dense(values);
    peers.all_reduce(values.storage_mut());
    values
}

/// All-gathers the parts of sequences that `peers` hold. `[b, t / n, w]` → `[b, t, w]`
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products` and `ring`.
fn gather(part: FlexTensor, peers: &Peers) -> FlexTensor {
    let [b, rows, width] = shape(&part);
    let (rank, ranks) = (peers.rank() as usize, peers.size() as usize);
    let own = slice(&part);
    let mut all = vec![0.0; ranks * own.len()];
    all[rank * own.len()..][..own.len()].copy_from_slice(own);
    peers.all_gather(&mut all);
    let all = if b == 1 { all } else { swapped(&all, [ranks, b, rows * width]) };
    vector(all, [b, ranks * rows, width])
}

/// Reduce-scatters whole sequences: each of `peers` gets the sum of its part. `[b, t, w]` → `[b, t / n, w]`
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products` and `ring`.
fn scatter(whole: FlexTensor, peers: &Peers) -> FlexTensor {
    let [b, t, width] = shape(&whole);
    let (rank, ranks) = (peers.rank() as usize, peers.size() as usize);
    assert_eq!(t % ranks, 0, "a sequence of {t} tokens is cut into {ranks} equal parts");
    let own = b * (t / ranks) * width;
    let mut all = swapped(slice(&whole), [b, ranks, t / ranks * width]);
    peers.reduce_scatter(&mut all);
    vector(all[rank * own..][..own].to_vec(), [b, t / ranks, width])
}

/// Swaps the first two dimensions of `values`. `[outer, inner, width]` → `[inner, outer, width]`
fn swapped(values: &[f32], [outer, inner, width]: [usize; 3]) -> Vec<f32> {
    let mut swapped = Vec::with_capacity(values.len());
    for i in 0..inner {
        for o in 0..outer {
            swapped.extend_from_slice(&values[(o * inner + i) * width..][..width]);
        }
    }
    swapped
}

#[cfg(test)]
mod tests;

//! Collectives in the network, on the tensors of a device: see [`crate::ops::collective`] for each operation.
// Shapes in this file: b samples · t tokens of a whole sequence · n ranks · w width

use super::{CubeValues, record, values};
use crate::mesh::Peers;
use crate::ops::custom_autograd::input;
use burn::backend::Cube;
use burn::tensor::Tensor;

pub(in crate::ops) fn copy_to(x: Tensor<3>, peers: &Peers) -> Tensor<3> {
    let peers = peers.clone();
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("a copy has one input");
        (x, Box::new(move |d, _| vec![Some(of_tensors(sum, d, &peers))]))
    })
}

pub(in crate::ops) fn sum_from(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
) -> Tensor<3> {
    leave(partial, bias, residual, peers, CubeCollective { forward: sum, backward: |d, _| d })
}

pub(in crate::ops) fn gather_sequence(x: Tensor<3>, peers: &Peers) -> Tensor<3> {
    let peers = peers.clone();
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("gathering has one input");
        (of_tensors(gather, x, &peers), Box::new(move |d, _| vec![Some(of_tensors(scatter, d, &peers))]))
    })
}

pub(in crate::ops) fn scatter_sequence(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
) -> Tensor<3> {
    leave(partial, bias, residual, peers, CubeCollective { forward: scatter, backward: gather })
}

/// A collective operation on a device, and the operation of its backward pass.
struct CubeCollective {
    forward: fn(Tensor<3>, &Peers) -> Tensor<3>,
    backward: fn(Tensor<3>, &Peers) -> Tensor<3>,
}

fn leave(
    partial: Tensor<3>,
    bias: Option<Tensor<1>>,
    residual: Option<Tensor<3>>,
    peers: &Peers,
    way: CubeCollective,
) -> Tensor<3> {
    let (has_bias, has_residual, peers) = (bias.is_some(), residual.is_some(), peers.clone());
    let mut inputs = vec![input(partial)];
    inputs.extend(bias.map(input));
    inputs.extend(residual.map(input));
    record(inputs, |values_in| {
        let mut inputs = values_in.into_iter();
        let mut next = || inputs.next().expect("what is summed, and what is added");
        let mut y = (way.forward)(Tensor::from_primitive::<Cube>(next()), &peers);
        if has_bias {
            let bias = Tensor::<1>::from_primitive::<Cube>(next());
            y = y + bias.unsqueeze();
        }
        if has_residual {
            y = y + Tensor::<3>::from_primitive::<Cube>(next());
        }
        let gradient = move |d: CubeValues, wanted: [bool; 8]| {
            let d = Tensor::<3>::from_primitive::<Cube>(d);
            let mut found = vec![None];
            if has_bias {
                let [b, t, w] = d.dims();
                let of_bias = || values(d.clone().reshape([b * t, w]).sum_dim(0).reshape([w]));
                found.push(wanted[1].then(of_bias));
            }
            if has_residual {
                found.push(Some(values(d.clone())));
            }
            found[0] = Some(values((way.backward)(d, &peers)));
            found
        };
        (values(y), Box::new(gradient))
    })
}

/// Applies `change`, a function of tensors, to the primitive values `x` of a device.
fn of_tensors(change: fn(Tensor<3>, &Peers) -> Tensor<3>, x: CubeValues, peers: &Peers) -> CubeValues {
    values(change(Tensor::from_primitive::<Cube>(x), peers))
}

/// All-reduces `x`: returns its sum over `peers`.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products`, and of gates in `experts`.
fn sum(x: Tensor<3>, peers: &Peers) -> Tensor<3> {
    let [b, t, w] = x.dims();
    peers.all_reduce_tensor(x.reshape([b * t * w])).reshape([b, t, w])
}

/// All-gathers the parts of sequences that `peers` hold. `[b, t / n, w]` → `[b, t, w]`
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products` and `ring`.
fn gather(part: Tensor<3>, peers: &Peers) -> Tensor<3> {
    let ([b, rows, w], ranks) = (part.dims(), peers.size() as usize);
    let all = peers.all_gather_tensor(part.reshape([b * rows * w]));
    all.reshape([ranks, b, rows * w]).swap_dims(0, 1).reshape([b, ranks * rows, w])
}

/// Reduce-scatters whole sequences: each of `peers` gets the sum of its part. `[b, t, w]` → `[b, t / n, w]`
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `products` and `ring`.
fn scatter(whole: Tensor<3>, peers: &Peers) -> Tensor<3> {
    let ([b, t, w], ranks) = (whole.dims(), peers.size() as usize);
    assert_eq!(t % ranks, 0, "a sequence of {t} tokens is cut into {ranks} equal parts");
    let by_rank = whole.reshape([b, ranks, t / ranks * w]).swap_dims(0, 1).reshape([b * t * w]);
    peers.reduce_scatter_tensor(by_rank).reshape([b, t / ranks, w])
}

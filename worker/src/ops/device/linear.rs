//! Linear layers on a device: all layers of one input are one matrix product forward, and two in the backward
//! pass.

use super::matmul::matmul;
use super::norm::columns;
use super::{CubeBackwardFn, CubeValues, flat_rows, record, shape, values};
use crate::ops::custom_autograd::input;
use burn::backend::Cube;
use burn::tensor::{FloatDType, Tensor};
use dtrain_recipes::Precision;

pub(super) fn project(
    precision: Precision,
    x: Tensor<3>,
    weights: Vec<Tensor<2>>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let half = half_of(precision);
    let widths: Vec<_> = weights.iter().map(|weight| weight.dims()[1]).collect();
    let (has_bias, has_residual) = (!biases.is_empty(), residual.is_some());
    let mut inputs = vec![input(x)];
    inputs.extend(weights.into_iter().map(input));
    inputs.extend(biases.into_iter().map(input));
    inputs.extend(residual.map(input));
    record(inputs, |values| {
        let mut values = values.into_iter();
        let x = values.next().expect("x is the first input");
        let [b, t, _] = shape(&x);
        let x = narrowed(flat_rows(x), half);
        let weight = narrowed(side_by_side(values.by_ref().take(widths.len()), 1), half);
        let mut y = widened(matmul(x.clone(), weight.clone()), half);
        if has_bias {
            let bias: Tensor<1> = side_by_side(values.by_ref().take(widths.len()), 0);
            y = y + bias.unsqueeze();
        }
        let mut y = y.reshape([b, t, widths.iter().sum()]);
        if let Some(residual) = values.next() {
            y = Tensor::from_primitive::<Cube>(residual) + y;
        }
        let gradient: CubeBackwardFn = Box::new(move |d: CubeValues, wanted: [bool; 8]| {
            let count = widths.len();
            let rows = narrowed(flat_rows(d.clone()), half);
            let mut found = vec![wanted[0].then(|| {
                let d_x = widened(matmul(rows.clone(), weight.transpose()), half);
                let width = d_x.dims()[1];
                super::values(d_x.reshape([b, t, width]))
            })];
            if wanted[1..=count].contains(&true) {
                let d_weight = widened(matmul(x.transpose(), rows), half);
                found.extend(parts(d_weight, 1, &widths).map(Some));
            } else {
                found.resize(1 + count, None);
            }
            if has_bias {
                let sums = Tensor::<1>::from_primitive::<Cube>(columns(d.clone()));
                found.extend(parts(sums, 0, &widths).map(Some));
            }
            if has_residual {
                found.push(Some(d));
            }
            found
        });
        (super::values(y), gradient)
    })
}

/// Returns the 16-bit type of the factors of a matrix product; `None` if they are f32.
pub(super) fn half_of(precision: Precision) -> Option<FloatDType> {
    match precision {
        Precision::F32 => None,
        Precision::Bf16 => Some(FloatDType::BF16),
        Precision::F16 => Some(FloatDType::F16),
        Precision::Fp8 => unreachable!("it is refused before anything starts"),
    }
}

/// Casts `tensor` to the 16-bit type `half` of a product's factors, if there is one.
pub(super) fn narrowed<const D: usize>(tensor: Tensor<D>, half: Option<FloatDType>) -> Tensor<D> {
    match half {
        Some(half) => tensor.cast(half),
        None => tensor,
    }
}

fn widened(tensor: Tensor<2>, half: Option<FloatDType>) -> Tensor<2> {
    if half.is_some() { tensor.cast(FloatDType::F32) } else { tensor }
}

/// Concatenates tensors along dimension `dimension`.
fn side_by_side<const D: usize>(tensors: impl Iterator<Item = CubeValues>, dimension: usize) -> Tensor<D> {
    let mut tensors: Vec<_> = tensors.map(Tensor::from_primitive::<Cube>).collect();
    if tensors.len() == 1 { tensors.remove(0) } else { Tensor::cat(tensors, dimension) }
}

/// Splits a tensor into parts along a dimension, each as wide as `widths` says.
fn parts<const D: usize>(
    tensor: Tensor<D>,
    dimension: usize,
    widths: &[usize],
) -> impl Iterator<Item = CubeValues> {
    let mut before = 0;
    widths.iter().map(move |width| {
        before += width;
        // A single part is the whole tensor.
        if *width == tensor.dims()[dimension] {
            return values(tensor.clone());
        }
        values(tensor.clone().narrow(dimension, before - width, *width))
    })
}

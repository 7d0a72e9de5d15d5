//! Linear layers on the host: all layers of one input, plus a residual, as matrix products into strided
//! parts.

use super::chunks;
use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::deferred_weight_grad::WeightLayout;
use super::kernels::{self, Accumulate, Matrix, MatrixMut, ThreadUse};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn project(
    x: Tensor<3>,
    weights: Vec<Tensor<2>>,
    biases: Vec<Tensor<1>>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let (count, has_bias, has_residual) = (weights.len(), !biases.is_empty(), residual.is_some());
    let mut inputs = vec![input(x)];
    inputs.extend(weights.into_iter().map(input));
    inputs.extend(biases.into_iter().map(input));
    inputs.extend(residual.map(input));
    record(inputs, |values| {
        let mut values = values.into_iter();
        let x = dense(values.next().expect("x is the first input"));
        let weights: Vec<_> = values.by_ref().take(count).collect();
        let biases: Vec<_> = values.by_ref().take(if has_bias { count } else { 0 }).map(dense).collect();
        let residual = values.next().map(dense);
        let y = forward(&x, &weights, &biases, residual);
        let gradient = move |d: FlexTensor, wanted: [bool; 8]| {
            let d = dense(d);
            let mut found = backward(&x, &weights, &d, &wanted[..=count]);
            if has_bias {
                found.extend(bias_gradients(&d, &weights).into_iter().map(Some));
            }
            if has_residual {
                found.push(Some(d));
            }
            found
        };
        (y, Box::new(gradient))
    })
}

/// Computes the outputs of all layers side by side. `[b, t, in]` → `[b, t, sum of out]`
fn forward(
    x: &FlexTensor,
    weights: &[FlexTensor],
    biases: &[FlexTensor],
    residual: Option<FlexTensor>,
) -> FlexTensor {
    let [b, t, width] = shape(x);
    let left = Matrix::dense(slice(x), [b * t, width]);
    let widths: Vec<_> = weights.iter().map(|weight| shape::<2>(weight)[1]).collect();
    let out = widths.iter().sum();
    if let ([weight], [], None) = (weights, biases, &residual) {
        return vector(kernels::matmul_to_vec(left, matrix(weight)), [b, t, out]);
    }
    let bias: Vec<f32> = biases.iter().flat_map(slice).copied().collect();
    // The products are added to the residual and the biases.
    let (mut y, into) = match residual {
        Some(residual) => (slice(&residual).to_vec(), Accumulate::Add),
        None => {
            (vec![0.0; b * t * out], if biases.is_empty() { Accumulate::Overwrite } else { Accumulate::Add })
        }
    };
    if !bias.is_empty() {
        let rows = chunks::rows(out) * out;
        chunks::each(y.chunks_mut(rows), |y| kernels::add_to_rows(y, &bias));
    }
    for (part, weight) in MatrixMut::columns(&mut y, b * t, &widths).into_iter().zip(weights) {
        kernels::matmul(part, into, 1.0, left, matrix(weight), ThreadUse::Pool);
    }
    vector(y, [b, t, out])
}

/// Returns the requested gradients of the input `x` and of the weights.
fn backward(
    x: &FlexTensor,
    weights: &[FlexTensor],
    d: &FlexTensor,
    wanted: &[bool],
) -> Vec<Option<FlexTensor>> {
    let [b, t, width] = shape(x);
    let [.., out] = shape::<3>(d);
    let left = Matrix::dense(slice(x), [b * t, width]);
    let all = Matrix::dense(slice(d), [b * t, out]);
    let (mut d_x, mut into, mut before) = (Vec::new(), Accumulate::Overwrite, 0);
    let mut found = vec![None];
    for (weight, wanted_weight) in weights.iter().zip(&wanted[1..]) {
        let columns = shape::<2>(weight)[1];
        let part = all.part([0, before], [b * t, columns]);
        before += columns;
        found.push(wanted_weight.then(|| weight_gradient(weight, left, part)));
        if wanted[0] && weights.len() == 1 {
            d_x = kernels::matmul_to_vec(part, matrix(weight).transposed());
        } else if wanted[0] {
            d_x.resize(b * t * width, 0.0);
            let sum = MatrixMut::dense(&mut d_x, [b * t, width]);
            kernels::matmul(sum, into, 1.0, part, matrix(weight).transposed(), ThreadUse::Pool);
            into = Accumulate::Add;
        }
    }
    found[0] = wanted[0].then(|| vector(d_x, [b, t, width]));
    found
}

/// Returns the gradients of the weights of linear layers, from the input and the gradient of the output:
/// flat, in the layout of the weights.
pub(super) fn weight_gradients(x: Tensor<3>, d: Tensor<3>, sides: &[WeightLayout]) -> Vec<Tensor<1>> {
    const HOST: &str = "fused operations read tensors on the host";
    let [x, d] = [x, d].map(|tensor| dense(tensor.try_into_primitive::<Flex>().expect(HOST)));
    let ([b, t, width], [.., out]) = (shape(&x), shape::<3>(&d));
    let left = Matrix::dense(slice(&x), [b * t, width]);
    let all = Matrix::dense(slice(&d), [b * t, out]);
    let mut before = 0;
    let gradients = sides.iter().map(|side| {
        let part = all.part([0, before], [b * t, side.columns]);
        before += side.columns;
        let values = weight_values(side.is_transposed, left, part);
        let length = values.len();
        Tensor::from_primitive::<Flex>(vector(values, [length]))
    });
    gradients.collect()
}

/// Returns `xᵀ · d` in the layout of the weight, so that a transposed one (a tied embedding) is not copied.
fn weight_gradient(weight: &FlexTensor, x: Matrix<'_>, d: Matrix<'_>) -> FlexTensor {
    let [rows, columns] = shape(weight);
    let is_transposed = weight.layout().strides()[1] != 1 && rows > 1;
    let values = weight_values(is_transposed, x, d);
    if is_transposed {
        vector(values, [columns, rows]).transpose(0, 1)
    } else {
        vector(values, [rows, columns])
    }
}

/// Returns the values of `xᵀ · d`, or of `dᵀ · x` if the weight is transposed.
fn weight_values(is_transposed: bool, x: Matrix<'_>, d: Matrix<'_>) -> Vec<f32> {
    if is_transposed {
        kernels::matmul_to_vec(d.transposed(), x)
    } else {
        kernels::matmul_to_vec(x.transposed(), d)
    }
}

/// Returns the sums of the columns of `d`, split by the widths of the weights: the gradients of the biases.
fn bias_gradients(d: &FlexTensor, weights: &[FlexTensor]) -> Vec<FlexTensor> {
    let [.., out] = shape::<3>(d);
    let sum = sum_rows(slice(d), out);
    let mut before = 0;
    let parts = weights.iter().map(|weight| {
        let columns = shape::<2>(weight)[1];
        before += columns;
        vector(sum[before - columns..before].to_vec(), [columns])
    });
    parts.collect()
}

/// Sums `rows` chunk by chunk, so that the number of threads does not change the result.
pub(super) fn sum_rows(rows: &[f32], width: usize) -> Vec<f32> {
    let partial = chunks::map(rows.chunks(chunks::rows(width) * width), |rows| {
        let mut sum = vec![0.0; width];
        kernels::add_rows(&mut sum, rows);
        sum
    });
    let mut total = vec![0.0; width];
    for sum in &partial {
        kernels::add(&mut total, sum);
    }
    total
}

/// Returns a weight, which may have any strides, as a matrix.
fn matrix(weight: &FlexTensor) -> Matrix<'_> {
    let layout = weight.layout();
    let strides: Vec<_> = layout.strides().iter().map(|stride| stride.unsigned_abs()).collect();
    Matrix::new(&weight.storage::<f32>()[layout.start_offset()..], shape(weight), [strides[0], strides[1]])
}

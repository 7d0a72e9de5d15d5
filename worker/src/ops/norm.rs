//! Normalization over the last dimension, on the host.

use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::{chunks, kernels};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn layer_norm(x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight), input(bias)], |values| {
        let [x, weight, bias] = <[_; 3]>::try_from(values).expect("layer norm has three inputs").map(dense);
        let [b, t, width] = shape(&x);
        let (mut out, mut stats) = (vec![0.0; b * t * width], vec![0.0; b * t * 2]);
        let rows = chunks::rows(width);
        let chunks =
            slice(&x).chunks(rows * width).zip(out.chunks_mut(rows * width)).zip(stats.chunks_mut(rows * 2));
        chunks::each(chunks, |((x, out), stats)| {
            kernels::layer_norm(x, out, stats, slice(&weight), slice(&bias), epsilon);
        });
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            back(&x, d, &stats, 2, |x, d, stats, sums| {
                let (d_weight, d_bias) = sums.split_at_mut(width);
                kernels::layer_norm_back(x, d, stats, slice(&weight), d_weight, d_bias);
            })
        };
        (vector(out, [b, t, width]), Box::new(gradient))
    })
}

pub(crate) fn rms_norm(x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight)], |values| {
        let [x, weight] = <[_; 2]>::try_from(values).expect("rms norm has two inputs").map(dense);
        let [b, t, width] = shape(&x);
        let (mut out, mut stats) = (vec![0.0; b * t * width], vec![0.0; b * t]);
        let rows = chunks::rows(width);
        let chunks =
            slice(&x).chunks(rows * width).zip(out.chunks_mut(rows * width)).zip(stats.chunks_mut(rows));
        chunks::each(chunks, |((x, out), stats)| kernels::rms_norm(x, out, stats, slice(&weight), epsilon));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            back(&x, d, &stats, 1, |x, d, stats, sums| {
                kernels::rms_norm_back(x, d, stats, slice(&weight), sums);
            })
        };
        (vector(out, [b, t, width]), Box::new(gradient))
    })
}

/// Computes the backward pass of a norm: runs `work` over chunks of `x`, of its gradient in place, of the
/// statistics, and of one row of sums for each of `vectors` parameters; adds the sums in order. Returns the
/// gradients of `x` and of the parameters.
fn back(
    x: &FlexTensor,
    d: FlexTensor,
    stats: &[f32],
    vectors: usize,
    work: impl Fn(&[f32], &mut [f32], &[f32], &mut [f32]) + Sync + Send,
) -> Vec<Option<FlexTensor>> {
    let [b, t, width] = shape(x);
    let (rows, per_row) = (chunks::rows(width), stats.len() / (b * t).max(1));
    let mut d = dense(d);
    let parts = slice(x).chunks(rows * width).zip(d.storage_mut::<f32>().chunks_mut(rows * width));
    let partial = chunks::map(parts.zip(stats.chunks(rows * per_row)), |((x, d), stats)| {
        let mut sums = vec![0.0; vectors * width];
        work(x, d, stats, &mut sums);
        sums
    });
    let mut total = vec![0.0; vectors * width];
    for sums in &partial {
        kernels::add(&mut total, sums);
    }
    let parameters = total.chunks(width).map(|sum| Some(vector(sum.to_vec(), [width])));
    std::iter::once(Some(d)).chain(parameters).collect()
}

//! Normalization over the last dimension, on a device. A layer norm subtracts the mean first; an RMS norm
//! does not.
//!
//! Gradients of weights are sums over all rows: first over groups of rows, then over those sums, in a fixed
//! order.

use super::kernels::{column_sums, sum_of_units};
use super::{CubeBackwardFn, CubeValues, buffer, dense, empty, of_each, of_each_row, record, rows, shape};
use crate::ops::custom_autograd::input;
use burn::tensor::Tensor;
use cubecl::prelude::*;

/// Fewest rows that one unit sums, if there are as many.
const HEIGHT: usize = 64;

pub(super) fn layer_norm(x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight), input(bias)], |values| {
        let [x, weight, bias] = <[_; 3]>::try_from(values).expect("layer norm has three inputs");
        forward(x, dense(weight), Some(dense(bias)), epsilon)
    })
}

pub(super) fn rms_norm(x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight)], |values| {
        let [x, weight] = <[_; 2]>::try_from(values).expect("rms norm has two inputs");
        forward(x, dense(weight), None, epsilon)
    })
}

/// Computes a layer norm if there is a bias, otherwise an RMS norm.
fn forward(
    x: CubeValues,
    weight: CubeValues,
    bias: Option<CubeValues>,
    epsilon: f32,
) -> (CubeValues, CubeBackwardFn) {
    let [b, t, width] = shape(&x);
    let (count, (x, stride)) = (b * t, rows(x));
    let (y, statistics) = (empty(&x, [b, t, width]), empty(&x, [count, 2]));
    let (cubes, cube, indices, units) = of_each_row(count, width, [&x, &weight, &y, &statistics]);
    let is_centred = bias.is_some();
    normalise::launch(
        &x.client,
        cubes,
        cube,
        indices,
        buffer(&x, stride),
        weight.clone().into_buffer_arg(),
        bias.map(CubeValues::into_buffer_arg).into(),
        y.clone().into_buffer_arg(),
        statistics.clone().into_buffer_arg(),
        count,
        width,
        stride,
        epsilon,
        units,
    );
    let gradient = move |d: CubeValues, wanted: [bool; 8]| {
        let (d, d_stride) = rows(d);
        let sides = NormOperands { x, d, statistics, stride, d_stride };
        let d_x = wanted[0].then(|| sides.of_input(&weight, is_centred));
        let d_weight = wanted[1].then(|| sides.of_weight());
        let d_bias = (is_centred && wanted[2]).then(|| columns(sides.d));
        vec![d_x, d_weight, d_bias]
    };
    (y, Box::new(gradient))
}

/// The operands of a norm's gradients: input, statistics and gradient of the output, with the strides of
/// their rows.
struct NormOperands {
    x: CubeValues,
    d: CubeValues,
    statistics: CubeValues,
    stride: usize,
    d_stride: usize,
}

impl NormOperands {
    /// Returns the gradient of the input `x`.
    fn of_input(&self, weight: &CubeValues, is_centred: bool) -> CubeValues {
        let Self { x, d, statistics, stride, d_stride } = self;
        let [b, t, width] = shape(x);
        let d_x = empty(x, [b, t, width]);
        let (cubes, cube, indices, units) = of_each_row(b * t, width, [x, d, weight, statistics, &d_x]);
        normalise_back::launch(
            &d_x.client,
            cubes,
            cube,
            indices,
            buffer(x, *stride),
            buffer(d, *d_stride),
            weight.clone().into_buffer_arg(),
            statistics.clone().into_buffer_arg(),
            d_x.clone().into_buffer_arg(),
            b * t,
            width,
            *stride,
            *d_stride,
            is_centred,
            units,
        );
        d_x
    }

    /// Returns the gradient of the norm's weight.
    fn of_weight(&self) -> CubeValues {
        let Self { x, d, statistics, stride, d_stride } = self;
        let [b, t, width] = shape(x);
        let (rows, height) = (b * t, height(b * t));
        let count = rows.div_ceil(height);
        let parts = empty(x, [count, width]);
        let (cubes, cube, indices) = of_each(count * width, [x, d, statistics, &parts]);
        weight_sums::launch(
            &parts.client,
            cubes,
            cube,
            indices,
            buffer(x, *stride),
            buffer(d, *d_stride),
            statistics.clone().into_buffer_arg(),
            parts.clone().into_buffer_arg(),
            rows,
            width,
            height,
            *stride,
            *d_stride,
        );
        sums(parts, [count, width], width, count)
    }
}

/// Sums the rows of `values`, on a device. `[.., width]` → `[width]`
pub(super) fn columns(values: CubeValues) -> CubeValues {
    let width = values.meta.shape().iter().copied().next_back().unwrap_or(1);
    let count = values.meta.shape().iter().product::<usize>() / width.max(1);
    let (values, stride) = rows(values);
    let height = height(count);
    if height >= count {
        return sums(values, [count, width], stride, count);
    }
    let parts = count.div_ceil(height);
    sums(sums(values, [count, width], stride, height), [parts, width], width, parts)
}

/// Returns the number of rows that one unit sums: about the root of all, so that the second sum is as long.
fn height(rows: usize) -> usize {
    HEIGHT.max(rows.isqrt())
}

/// Sums the columns of each `height` rows; rows start `stride` values after one another.
fn sums(values: CubeValues, [rows, width]: [usize; 2], stride: usize, height: usize) -> CubeValues {
    let parts = rows.div_ceil(height);
    let sums = if parts == 1 { empty(&values, [width]) } else { empty(&values, [parts, width]) };
    let (cubes, cube, indices) = of_each(parts * width, [&values, &sums]);
    let (own, out) = (buffer(&values, stride), sums.clone().into_buffer_arg());
    column_sums::launch(&sums.client, cubes, cube, indices, own, out, rows, width, height, stride);
    sums
}

/// Kernel: normalizes each row; `statistics: [rows, 2]` receives the mean and `1 / sqrt(variance + epsilon)`.
/// One cube for each row; rows of `x` begin `stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn normalise(
    x: &[f32],
    weight: &[f32],
    bias: ComptimeOption<&[f32]>,
    y: &mut [f32],
    statistics: &mut [f32],
    rows: usize,
    width: usize,
    stride: usize,
    epsilon: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin, out) = (UNIT_POS as usize, row * stride, row * width);
    let mut mean = 0.0f32;
    if comptime!(bias.is_some()) {
        let mut sum = 0.0f32;
        let mut column = unit;
        while column < width {
            sum += x[begin + column];
            column += units;
        }
        mean = sum_of_units(sum, units) / width as f32;
    }
    let mut squares = 0.0f32;
    let mut column = unit;
    while column < width {
        let value = x[begin + column] - mean;
        squares += value * value;
        column += units;
    }
    let inverse = (sum_of_units(squares, units) / width as f32 + epsilon).sqrt().recip();
    if unit == 0 {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = inverse;
    }
    let mut column = unit;
    while column < width {
        let value = (x[begin + column] - mean) * inverse * weight[column];
        #[comptime]
        match &bias {
            ComptimeOption::Some(bias) => y[out + column] = value + bias[column],
            ComptimeOption::None => y[out + column] = value,
        }
        column += units;
    }
}

/// Kernel: computes the gradient of a norm's input `x`. One cube for each row; rows of `x` and `d` begin
/// `stride` and `d_stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn normalise_back(
    x: &[f32],
    d: &[f32],
    weight: &[f32],
    statistics: &[f32],
    d_x: &mut [f32],
    rows: usize,
    width: usize,
    stride: usize,
    d_stride: usize,
    #[comptime] is_centred: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin, d_begin) = (UNIT_POS as usize, row * stride, row * d_stride);
    let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
    let mut sum = 0.0f32;
    let mut dots = 0.0f32;
    let mut column = unit;
    while column < width {
        let own = d[d_begin + column] * weight[column];
        sum += own;
        dots += own * (x[begin + column] - mean) * inverse;
        column += units;
    }
    let dot = sum_of_units(dots, units) / width as f32;
    let mut level = 0.0f32;
    if is_centred {
        level = sum_of_units(sum, units) / width as f32;
    }
    let mut column = unit;
    while column < width {
        let normal = (x[begin + column] - mean) * inverse;
        d_x[row * width + column] = (d[d_begin + column] * weight[column] - level - normal * dot) * inverse;
        column += units;
    }
}

/// Kernel: computes partial sums of the gradient of the weight, each of `height` rows; one unit for each
/// value of `parts: [rows / height, width]`.
#[cube(launch, address_type = "dynamic")]
fn weight_sums(
    x: &[f32],
    d: &[f32],
    statistics: &[f32],
    parts: &mut [f32],
    rows: usize,
    width: usize,
    height: usize,
    stride: usize,
    d_stride: usize,
) {
    if ABSOLUTE_POS < parts.len() {
        let column = ABSOLUTE_POS % width;
        let mut row = ABSOLUTE_POS / width * height;
        let mut end = row + height;
        if end > rows {
            end = rows;
        }
        let mut sum = 0.0f32;
        while row < end {
            let value = x[row * stride + column] - statistics[2 * row];
            sum += d[row * d_stride + column] * value * statistics[2 * row + 1];
            row += 1;
        }
        parts[ABSOLUTE_POS] = sum;
    }
}

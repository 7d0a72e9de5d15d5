//! Normalisation over the last dimension. A layer norm takes the mean away first; an RMS norm counts it as zero.
//!
//! Gradients of weights are sums over all rows: first over some at a time, then over those sums, in an order that is always the same.

use super::kernels::{column_sums, sum_of_units};
use super::{Gradient, Values, dense, empty, of_each, of_each_row, record, shape};
use crate::ops::tape::input;
use burn::tensor::Tensor;
use cubecl::prelude::*;

/// Fewest rows that one unit adds up, where there are as many.
const HEIGHT: usize = 64;

pub(super) fn layer_norm(x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight), input(bias)], |values| {
        let [x, weight, bias] = <[_; 3]>::try_from(values).expect("layer norm has three inputs").map(dense);
        forward(x, weight, Some(bias), epsilon)
    })
}

pub(super) fn rms_norm(x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
    record(vec![input(x), input(weight)], |values| {
        let [x, weight] = <[_; 2]>::try_from(values).expect("rms norm has two inputs").map(dense);
        forward(x, weight, None, epsilon)
    })
}

/// A layer norm with a bias, an RMS norm without.
fn forward(x: Values, weight: Values, bias: Option<Values>, epsilon: f32) -> (Values, Gradient) {
    let [b, t, width] = shape(&x);
    let rows = b * t;
    let (y, statistics) = (empty(&x, [b, t, width]), empty(&x, [rows, 2]));
    let (cubes, cube, units) = of_each_row(&x, rows, width);
    let is_centred = bias.is_some();
    normalise::launch(
        &x.client,
        cubes,
        cube,
        x.clone().into_buffer_arg(),
        weight.clone().into_buffer_arg(),
        bias.map(Values::into_buffer_arg).into(),
        y.clone().into_buffer_arg(),
        statistics.clone().into_buffer_arg(),
        rows,
        width,
        epsilon,
        units,
    );
    let gradient = move |d: Values, wanted: [bool; 8]| {
        let d = dense(d);
        let d_x = wanted[0].then(|| backward(&x, &d, &weight, &statistics, is_centred));
        let d_weight = wanted[1].then(|| {
            let (height, count) = (height(rows), rows.div_ceil(height(rows)));
            let parts = empty(&x, [count, width]);
            let (cubes, cube) = of_each(&x, count * width);
            let [x, d, statistics] = [&x, &d, &statistics].map(|side| side.clone().into_buffer_arg());
            let part = parts.clone().into_buffer_arg();
            weight_sums::launch(&parts.client, cubes, cube, x, d, statistics, part, rows, width, height);
            sums(parts, [count, width], count)
        });
        let d_bias = (is_centred && wanted[2]).then(|| columns(d));
        vec![d_x, d_weight, d_bias]
    };
    (y, Box::new(gradient))
}

/// The gradient of `x` from that of the result.
fn backward(x: &Values, d: &Values, weight: &Values, statistics: &Values, is_centred: bool) -> Values {
    let [b, t, width] = shape(x);
    let (cubes, cube, units) = of_each_row(x, b * t, width);
    let d_x = empty(x, [b, t, width]);
    let [x, d, weight, statistics] = [x, d, weight, statistics].map(|side| side.clone().into_buffer_arg());
    let out = d_x.clone().into_buffer_arg();
    let client = &d_x.client;
    normalise_back::launch(
        client,
        cubes,
        cube,
        x,
        d,
        weight,
        statistics,
        out,
        b * t,
        width,
        is_centred,
        units,
    );
    d_x
}

/// The sum of all rows. `[.., width]` → `[width]`
pub(super) fn columns(values: Values) -> Values {
    let width = values.meta.shape().iter().copied().next_back().unwrap_or(1);
    let rows = values.meta.shape().iter().product::<usize>() / width.max(1);
    let height = height(rows);
    if height >= rows {
        return sums(values, [rows, width], rows);
    }
    let parts = rows.div_ceil(height);
    sums(sums(values, [rows, width], height), [parts, width], parts)
}

/// Rows that one unit adds up, so that as many are left to another.
fn height(rows: usize) -> usize {
    HEIGHT.max(rows.isqrt())
}

/// Sums of the columns of each `height` rows.
fn sums(values: Values, [rows, width]: [usize; 2], height: usize) -> Values {
    let parts = rows.div_ceil(height);
    let sums = if parts == 1 { empty(&values, [width]) } else { empty(&values, [parts, width]) };
    let (cubes, cube) = of_each(&values, parts * width);
    let (own, out) = (values.into_buffer_arg(), sums.clone().into_buffer_arg());
    column_sums::launch(&sums.client, cubes, cube, own, out, rows, width, height);
    sums
}

/// `statistics: [rows, 2]` gets the mean and `1 / sqrt(variance + epsilon)`; one cube for each row.
#[cube(launch)]
fn normalise(
    x: &[f32],
    weight: &[f32],
    bias: ComptimeOption<&[f32]>,
    y: &mut [f32],
    statistics: &mut [f32],
    rows: usize,
    width: usize,
    epsilon: f32,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * width);
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
            ComptimeOption::Some(bias) => y[begin + column] = value + bias[column],
            ComptimeOption::None => y[begin + column] = value,
        }
        column += units;
    }
}

/// The gradient of `x`; one cube for each row.
#[cube(launch)]
fn normalise_back(
    x: &[f32],
    d: &[f32],
    weight: &[f32],
    statistics: &[f32],
    d_x: &mut [f32],
    rows: usize,
    width: usize,
    #[comptime] is_centred: bool,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * width);
    let (mean, inverse) = (statistics[2 * row], statistics[2 * row + 1]);
    let mut sum = 0.0f32;
    let mut dots = 0.0f32;
    let mut column = unit;
    while column < width {
        let own = d[begin + column] * weight[column];
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
        d_x[begin + column] = (d[begin + column] * weight[column] - level - normal * dot) * inverse;
        column += units;
    }
}

/// Parts of the gradient of the weight, each of `height` rows; one unit for each value of `parts: [rows / height, width]`.
#[cube(launch)]
fn weight_sums(
    x: &[f32],
    d: &[f32],
    statistics: &[f32],
    parts: &mut [f32],
    rows: usize,
    width: usize,
    height: usize,
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
            let at = row * width + column;
            sum += d[at] * (x[at] - statistics[2 * row]) * statistics[2 * row + 1];
            row += 1;
        }
        parts[ABSOLUTE_POS] = sum;
    }
}

//! Pointwise operations on a device: GELU, SwiGLU and rotary positions.

use super::{CubeValues, buffer, empty, of_each, record, rows, shape, values};
use crate::ops::custom_autograd::input;
use crate::ops::{AttentionHeads, CUBIC, Rotary, SLOPE};
use burn::tensor::Tensor;
use cubecl::prelude::*;

pub(super) fn gelu(x: Tensor<3>) -> Tensor<3> {
    gelu_of(x, false)
}

pub(super) fn gelu_tanh(x: Tensor<3>) -> Tensor<3> {
    gelu_of(x, true)
}

fn gelu_of(x: Tensor<3>, is_tanh: bool) -> Tensor<3> {
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("gelu has one input");
        let ([b, t, width], (x, stride)) = (shape(&x), rows(x));
        let y = empty(&x, [b, t, width]);
        let (cubes, cube, indices) = of_each(b * t * width, [&x, &y]);
        let (own, out) = (buffer(&x, stride), y.clone().into_buffer_arg());
        gelu_forward::launch(&x.client, cubes, cube, indices, own, out, width, stride, is_tanh);
        let gradient = move |d: CubeValues, _: [bool; 8]| {
            let (d, d_stride) = rows(d);
            let d_x = empty(&x, [b, t, width]);
            let (cubes, cube, indices) = of_each(b * t * width, [&x, &d, &d_x]);
            let (own, up, out) = (buffer(&x, stride), buffer(&d, d_stride), d_x.clone().into_buffer_arg());
            let client = &x.client;
            gelu_back::launch(client, cubes, cube, indices, own, up, out, width, stride, d_stride, is_tanh);
            vec![Some(d_x)]
        };
        (y, Box::new(gradient))
    })
}

pub(super) fn swiglu(packed: Tensor<3>) -> Tensor<3> {
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("swiglu has one input");
        let ([b, t, both], (packed, stride)) = (shape(&packed), rows(packed));
        let width = both / 2;
        let y = empty(&packed, [b, t, width]);
        let (cubes, cube, indices) = of_each(b * t * width, [&packed, &y]);
        let (own, out) = (buffer(&packed, stride), y.clone().into_buffer_arg());
        swiglu_forward::launch(&packed.client, cubes, cube, indices, own, out, width, stride);
        let gradient = move |d: CubeValues, _: [bool; 8]| {
            let (d, d_stride) = rows(d);
            let d_packed = empty(&packed, [b, t, both]);
            let count = b * t * width;
            let (cubes, cube, indices) = of_each(count, [&packed, &d, &d_packed]);
            let (own, up) = (buffer(&packed, stride), buffer(&d, d_stride));
            let (client, out) = (&packed.client, d_packed.clone().into_buffer_arg());
            swiglu_back::launch(client, cubes, cube, indices, own, up, out, count, width, stride, d_stride);
            vec![Some(d_packed)]
        };
        (y, Box::new(gradient))
    })
}

pub(super) fn rotary(packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
    let tables = table.whole(heads.width / 2, &packed.device()).map(values);
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("rotary has one input");
        let turned = rotate_heads(packed, heads, &tables, 1.0);
        let gradient = move |d: CubeValues, _: [bool; 8]| vec![Some(rotate_heads(d, heads, &tables, -1.0))];
        (turned, Box::new(gradient))
    })
}

/// Rotates the query and key heads of a packed tensor by their positions; backwards if `sign` is -1.
fn rotate_heads(
    packed: CubeValues,
    heads: AttentionHeads,
    tables: &[CubeValues; 2],
    sign: f32,
) -> CubeValues {
    let ([b, t, all], (packed, stride)) = (shape(&packed), rows(packed));
    let out = empty(&packed, [b, t, all]);
    // Both tables have the same shape, and so the same strides.
    let [(cos, by_place), (sin, _)] = tables.each_ref().map(|table| rows(table.clone()));
    let (cubes, cube, indices) = of_each(b * t * all, [&packed, &cos, &sin, &out]);
    let columns = (heads.query + heads.key) * heads.width;
    let [cos, sin] = [cos, sin].map(|table| buffer(&table, by_place));
    let (own, to) = (buffer(&packed, stride), out.clone().into_buffer_arg());
    rotate_pairs::launch(
        &out.client,
        cubes,
        cube,
        indices,
        own,
        cos,
        sin,
        to,
        t,
        all,
        columns,
        heads.width,
        stride,
        by_place,
        sign,
    );
    out
}

/// Returns the probability that a standard normal variable is below `x`.
#[cube]
fn normal_below(x: f32) -> f32 {
    0.5f32 * (1.0f32 + Erf::erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Kernel: computes GELU. One unit for each value of `y: [.., width]`; rows of `x` begin `stride` values
/// after one another.
#[cube(launch, address_type = "dynamic")]
fn gelu_forward(x: &[f32], y: &mut [f32], width: usize, stride: usize, #[comptime] is_tanh: bool) {
    if ABSOLUTE_POS < y.len() {
        let value = x[ABSOLUTE_POS / width * stride + ABSOLUTE_POS % width];
        if is_tanh {
            y[ABSOLUTE_POS] = value * sigmoid(value * SLOPE * (1.0f32 + value * value * CUBIC));
        } else {
            y[ABSOLUTE_POS] = value * normal_below(value);
        }
    }
}

/// Kernel: computes the gradient of GELU. One unit for each value of `d_x: [.., width]`; rows of `x` and `d`
/// begin `stride` and `d_stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn gelu_back(
    x: &[f32],
    d: &[f32],
    d_x: &mut [f32],
    width: usize,
    stride: usize,
    d_stride: usize,
    #[comptime] is_tanh: bool,
) {
    if ABSOLUTE_POS < d_x.len() {
        let (row, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
        let (value, up) = (x[row * stride + column], d[row * d_stride + column]);
        if is_tanh {
            let square = value * value;
            let open = sigmoid(value * SLOPE * (1.0f32 + square * CUBIC));
            let slope = open * (1.0f32 - open) * SLOPE * (1.0f32 + square * 3.0f32 * CUBIC);
            d_x[ABSOLUTE_POS] = up * (open + value * slope);
        } else {
            // 1 / sqrt(2·π)
            let density = 0.398_942_3f32 * (value * value * -0.5f32).exp();
            d_x[ABSOLUTE_POS] = up * (normal_below(value) + value * density);
        }
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (0.0f32 - x).exp())
}

/// Kernel: computes SwiGLU. One unit for each value of `y: [.., width]`; rows of `packed` begin `stride`
/// values after one another.
#[cube(launch, address_type = "dynamic")]
fn swiglu_forward(packed: &[f32], y: &mut [f32], width: usize, stride: usize) {
    if ABSOLUTE_POS < y.len() {
        let place = ABSOLUTE_POS / width * stride + ABSOLUTE_POS % width;
        let gate = packed[place];
        y[ABSOLUTE_POS] = gate * sigmoid(gate) * packed[place + width];
    }
}

/// Kernel: computes the gradient of SwiGLU. One unit for each of the `count` values of `d`; rows of `packed`
/// and `d` begin `stride` and `d_stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn swiglu_back(
    packed: &[f32],
    d: &[f32],
    d_packed: &mut [f32],
    count: usize,
    width: usize,
    stride: usize,
    d_stride: usize,
) {
    if ABSOLUTE_POS < count {
        let (row, column) = (ABSOLUTE_POS / width, ABSOLUTE_POS % width);
        let (place, out) = (row * stride + column, row * 2 * width + column);
        let (gate, up, own) = (packed[place], packed[place + width], d[row * d_stride + column]);
        let open = sigmoid(gate);
        d_packed[out] = own * up * open * (1.0f32 + gate * (1.0f32 - open));
        d_packed[out + width] = own * gate * open;
    }
}

/// Kernel: rotates pairs of values by their positions. One unit for each value of `y: [.., tokens, all]`, of
/// which the first `columns` of a row rotate. Rows of `x` begin `stride` values after one another; those of
/// `cos` and `sin`, one for each token with a value for each pair, `by_place`.
#[cube(launch, address_type = "dynamic")]
fn rotate_pairs(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    y: &mut [f32],
    tokens: usize,
    all: usize,
    columns: usize,
    width: usize,
    stride: usize,
    by_place: usize,
    sign: f32,
) {
    if ABSOLUTE_POS < y.len() {
        let (row, column) = (ABSOLUTE_POS / all, ABSOLUTE_POS % all);
        let at = row * stride + column;
        let mut value = x[at];
        if column < columns {
            let (half, place) = (width / 2, column % width);
            let angles = row % tokens * by_place;
            if place < half {
                let angle = angles + place;
                value = value * cos[angle] - x[at + half] * sin[angle] * sign;
            } else {
                let angle = angles + place - half;
                value = value * cos[angle] + x[at - half] * sin[angle] * sign;
            }
        }
        y[ABSOLUTE_POS] = value;
    }
}

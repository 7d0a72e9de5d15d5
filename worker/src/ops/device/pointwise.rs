//! Operations on single values and pairs: GELU, SwiGLU and rotary positions.

use super::{Values, dense, empty, of_each, record, shape, values};
use crate::ops::tape::input;
use crate::ops::{CUBIC, Heads, Rotary, SLOPE};
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
        let [x] = <[_; 1]>::try_from(values).expect("gelu has one input").map(dense);
        let size = shape::<3>(&x);
        let y = empty(&x, size);
        let (cubes, cube) = of_each(&x, size.iter().product());
        let [own, out] = [&x, &y].map(|side| side.clone().into_buffer_arg());
        gelu_forward::launch(&x.client, cubes, cube, own, out, is_tanh);
        let gradient = move |d: Values, _: [bool; 8]| {
            let d = dense(d);
            let d_x = empty(&x, size);
            let (cubes, cube) = of_each(&x, size.iter().product());
            let [own, d, out] = [&x, &d, &d_x].map(|side| side.clone().into_buffer_arg());
            gelu_back::launch(&x.client, cubes, cube, own, d, out, is_tanh);
            vec![Some(d_x)]
        };
        (y, Box::new(gradient))
    })
}

pub(super) fn swiglu(packed: Tensor<3>) -> Tensor<3> {
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("swiglu has one input").map(dense);
        let [b, t, both] = shape(&packed);
        let width = both / 2;
        let y = empty(&packed, [b, t, width]);
        let (cubes, cube) = of_each(&packed, b * t * width);
        let [own, out] = [&packed, &y].map(|side| side.clone().into_buffer_arg());
        swiglu_forward::launch(&packed.client, cubes, cube, own, out, width);
        let gradient = move |d: Values, _: [bool; 8]| {
            let d = dense(d);
            let d_packed = empty(&packed, [b, t, both]);
            let (cubes, cube) = of_each(&packed, b * t * width);
            let [own, d, out] = [&packed, &d, &d_packed].map(|side| side.clone().into_buffer_arg());
            swiglu_back::launch(&packed.client, cubes, cube, own, d, out, width);
            vec![Some(d_packed)]
        };
        (y, Box::new(gradient))
    })
}

pub(super) fn rotary(packed: Tensor<3>, heads: Heads, table: &Rotary) -> Tensor<3> {
    let tables = table.whole(heads.width / 2, &packed.device()).map(values);
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("rotary has one input");
        let turned = turn(packed, heads, &tables, 1.0);
        let gradient = move |d: Values, _: [bool; 8]| vec![Some(turn(d, heads, &tables, -1.0))];
        (turned, Box::new(gradient))
    })
}

/// The tensor with its query and key heads turned; backwards where `sign` is -1.
fn turn(packed: Values, heads: Heads, tables: &[Values; 2], sign: f32) -> Values {
    let packed = dense(packed);
    let [b, t, all] = shape(&packed);
    let out = empty(&packed, [b, t, all]);
    let (cubes, cube) = of_each(&packed, b * t * all);
    let columns = (heads.query + heads.key) * heads.width;
    let [own, cos, sin, to] =
        [&packed, &tables[0], &tables[1], &out].map(|side| side.clone().into_buffer_arg());
    turn_pairs::launch(&out.client, cubes, cube, own, cos, sin, to, t, all, columns, heads.width, sign);
    out
}

/// Probability that a normal variable is below `x`.
#[cube]
fn normal_below(x: f32) -> f32 {
    0.5f32 * (1.0f32 + Erf::erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

#[cube(launch)]
fn gelu_forward(x: &[f32], y: &mut [f32], #[comptime] is_tanh: bool) {
    if ABSOLUTE_POS < y.len() {
        let value = x[ABSOLUTE_POS];
        if is_tanh {
            y[ABSOLUTE_POS] = value * sigmoid(value * SLOPE * (1.0f32 + value * value * CUBIC));
        } else {
            y[ABSOLUTE_POS] = value * normal_below(value);
        }
    }
}

#[cube(launch)]
fn gelu_back(x: &[f32], d: &[f32], d_x: &mut [f32], #[comptime] is_tanh: bool) {
    if ABSOLUTE_POS < d_x.len() {
        let value = x[ABSOLUTE_POS];
        if is_tanh {
            let square = value * value;
            let open = sigmoid(value * SLOPE * (1.0f32 + square * CUBIC));
            let slope = open * (1.0f32 - open) * SLOPE * (1.0f32 + square * 3.0f32 * CUBIC);
            d_x[ABSOLUTE_POS] = d[ABSOLUTE_POS] * (open + value * slope);
        } else {
            // 1 / sqrt(2·π)
            let density = 0.398_942_3f32 * (value * value * -0.5f32).exp();
            d_x[ABSOLUTE_POS] = d[ABSOLUTE_POS] * (normal_below(value) + value * density);
        }
    }
}

#[cube]
fn sigmoid(x: f32) -> f32 {
    1.0f32 / (1.0f32 + (0.0f32 - x).exp())
}

/// One unit for each value of `y`.
#[cube(launch)]
fn swiglu_forward(packed: &[f32], y: &mut [f32], width: usize) {
    if ABSOLUTE_POS < y.len() {
        let place = ABSOLUTE_POS / width * 2 * width + ABSOLUTE_POS % width;
        let gate = packed[place];
        y[ABSOLUTE_POS] = gate * sigmoid(gate) * packed[place + width];
    }
}

/// One unit for each value of `d`.
#[cube(launch)]
fn swiglu_back(packed: &[f32], d: &[f32], d_packed: &mut [f32], width: usize) {
    if ABSOLUTE_POS < d.len() {
        let place = ABSOLUTE_POS / width * 2 * width + ABSOLUTE_POS % width;
        let (gate, up, own) = (packed[place], packed[place + width], d[ABSOLUTE_POS]);
        let open = sigmoid(gate);
        d_packed[place] = own * up * open * (1.0f32 + gate * (1.0f32 - open));
        d_packed[place + width] = own * gate * open;
    }
}

/// One unit for each value. `x: [.., tokens, all]`, of which the first `columns` of a row turn; `cos` and `sin` have a row for each
/// token and a value for each pair.
#[cube(launch)]
fn turn_pairs(
    x: &[f32],
    cos: &[f32],
    sin: &[f32],
    y: &mut [f32],
    tokens: usize,
    all: usize,
    columns: usize,
    width: usize,
    sign: f32,
) {
    if ABSOLUTE_POS < y.len() {
        let column = ABSOLUTE_POS % all;
        let mut value = x[ABSOLUTE_POS];
        if column < columns {
            let (half, place) = (width / 2, column % width);
            let angles = ABSOLUTE_POS / all % tokens * half;
            if place < half {
                let angle = angles + place;
                value = value * cos[angle] - x[ABSOLUTE_POS + half] * sin[angle] * sign;
            } else {
                let angle = angles + place - half;
                value = value * cos[angle] + x[ABSOLUTE_POS - half] * sin[angle] * sign;
            }
        }
        y[ABSOLUTE_POS] = value;
    }
}

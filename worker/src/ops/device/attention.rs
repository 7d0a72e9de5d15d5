//! Causal attention as matrix products of all heads at once, with kernels of our own between them.
//!
//! The query heads that a key head serves lie one after the other, as rows of one matrix: keys are not repeated.
// Shapes in this file: b samples · t tokens · k key heads · s query heads that each serves · d width of one head

use super::kernels::{largest_of_units, sum_of_units};
use super::linear::{half_of, narrowed};
use super::product::product;
use super::{Gradient, Values, dense, empty, empty_of, of_each, of_each_row, owned, record, shape, values};
use crate::ops::tape::input;
use crate::ops::{Arithmetic, Heads};
use burn::backend::Cube;
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl::prelude::*;

pub(super) fn attention(arithmetic: Arithmetic, packed: Tensor<3>, heads: Heads) -> Tensor<3> {
    let half = half_of(arithmetic.precision);
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("attention has one input").map(dense);
        let [b, t, _] = shape(&packed);
        let split = Split::of(packed.clone(), heads, half);
        let seen = split.probabilities();
        let out = merged(product(seen.clone(), split.values.clone()), [b, t], heads);
        let kept = (!arithmetic.forgets_scores).then_some((split, seen));
        let gradient: Gradient = Box::new(move |d: Values, _: [bool; 8]| {
            let (split, seen) = kept.unwrap_or_else(|| {
                let split = Split::of(packed.clone(), heads, half);
                let seen = split.probabilities();
                (split, seen)
            });
            vec![Some(split.backward(seen, d))]
        });
        (out, gradient)
    })
}

/// The heads of a packed tensor.
struct Split {
    /// `[b·k, s·t, d]`
    queries: Tensor<3>,
    /// `[b·k, t, d]`
    keys: Tensor<3>,
    /// `[b·k, t, d]`
    values: Tensor<3>,
    heads: Heads,
    half: Option<FloatDType>,
}

impl Split {
    fn of(packed: Values, heads: Heads, half: Option<FloatDType>) -> Self {
        let [b, t, all] = shape(&packed);
        let Heads { query, key, width } = heads;
        let dtype = half.map_or(DType::F32, Into::into);
        let made = [query / key, 1, 1].map(|served| empty_of(&packed, [b * key, served * t, width], dtype));
        let [queries, keys, values] = made.each_ref().map(|part: &Values| part.clone().into_buffer_arg());
        let (cubes, cube) = of_each(&packed, b * t * all);
        let client = packed.client.clone();
        let packed = packed.into_buffer_arg();
        match dtype {
            DType::BF16 => split_heads::launch::<half::bf16>(
                &client, cubes, cube, packed, queries, keys, values, t, query, key, width,
            ),
            DType::F16 => split_heads::launch::<half::f16>(
                &client, cubes, cube, packed, queries, keys, values, t, query, key, width,
            ),
            _ => split_heads::launch::<f32>(
                &client, cubes, cube, packed, queries, keys, values, t, query, key, width,
            ),
        }
        let [queries, keys, values] = made.map(Tensor::from_primitive::<Cube>);
        Self { queries, keys, values, heads, half }
    }

    /// How much each query sees of each value. `[b·k, s·t, t]`
    fn probabilities(&self) -> Tensor<3> {
        let scores = product(self.queries.clone(), self.keys.clone().transpose());
        let scores = owned(values(scores));
        let [groups, rows, t] = shape(&scores);
        let (cubes, cube, units) = of_each_row(&scores, groups * rows, t);
        let (client, own, scale) = (&scores.client, scores.clone().into_buffer_arg(), self.scale());
        match scores.dtype {
            DType::BF16 => {
                softmax::launch::<half::bf16>(client, cubes, cube, own, groups * rows, t, scale, units);
            }
            DType::F16 => {
                softmax::launch::<half::f16>(client, cubes, cube, own, groups * rows, t, scale, units);
            }
            _ => softmax::launch::<f32>(client, cubes, cube, own, groups * rows, t, scale, units),
        }
        Tensor::from_primitive::<Cube>(scores)
    }

    fn scale(&self) -> f32 {
        (self.heads.width as f32).powf(-0.5)
    }

    /// The gradient of the packed tensor from that of the result, `[b, t, k·s·d]`.
    fn backward(self, seen: Tensor<3>, d: Values) -> Values {
        let Heads { query, key, width } = self.heads;
        let [b, t, _] = shape(&d);
        let d: Tensor<3> = Tensor::from_primitive::<Cube>(d);
        let d: Tensor<4> = d.reshape([b, t, query, width]).swap_dims(1, 2);
        let d: Tensor<3> = d.reshape([b * key, query / key * t, width]);
        let d = narrowed(d, self.half);
        let d_values = product(seen.clone().transpose(), d.clone());
        let d_seen = owned(values(product(d, self.values.clone().transpose())));
        let seen = dense(values(seen));
        let rows = b * query * t;
        let (cubes, cube, units) = of_each_row(&seen, rows, t);
        let (client, scale) = (&seen.client, self.scale());
        let [own, out] = [&seen, &d_seen].map(|side| side.clone().into_buffer_arg());
        match seen.dtype {
            DType::BF16 => {
                softmax_back::launch::<half::bf16>(client, cubes, cube, own, out, rows, t, scale, units);
            }
            DType::F16 => {
                softmax_back::launch::<half::f16>(client, cubes, cube, own, out, rows, t, scale, units);
            }
            _ => softmax_back::launch::<f32>(client, cubes, cube, own, out, rows, t, scale, units),
        }
        let d_scores: Tensor<3> = Tensor::from_primitive::<Cube>(d_seen);
        let d_queries = product(d_scores.clone(), self.keys);
        let d_keys = product(d_scores.transpose(), self.queries);
        join([d_queries, d_keys, d_values].map(|part| dense(values(part))), [b, t], self.heads)
    }
}

/// `[b·k, s·t, d]` → `[b, t, k·s·d]`
fn merged(mixed: Tensor<3>, [b, t]: [usize; 2], heads: Heads) -> Values {
    let mixed: Tensor<4> = mixed.reshape([b, heads.query, t, heads.width]).swap_dims(1, 2);
    let mixed: Tensor<3> = mixed.reshape([b, t, heads.query * heads.width]);
    values(mixed.cast(FloatDType::F32))
}

/// The inverse of [`Split::of`].
fn join(parts: [Values; 3], [b, t]: [usize; 2], heads: Heads) -> Values {
    let Heads { query, key, width } = heads;
    let packed = empty(&parts[0], [b, t, (query + 2 * key) * width]);
    let (cubes, cube) = of_each(&packed, b * t * (query + 2 * key) * width);
    let (client, dtype, out) = (&packed.client, parts[0].dtype, packed.clone().into_buffer_arg());
    let [queries, keys, values] = parts.map(Values::into_buffer_arg);
    match dtype {
        DType::BF16 => join_heads::launch::<half::bf16>(
            client, cubes, cube, queries, keys, values, out, t, query, key, width,
        ),
        DType::F16 => join_heads::launch::<half::f16>(
            client, cubes, cube, queries, keys, values, out, t, query, key, width,
        ),
        _ => join_heads::launch::<f32>(client, cubes, cube, queries, keys, values, out, t, query, key, width),
    }
    packed
}

/// One unit for each value of `packed: [b, t, (query + 2·key)·d]`.
#[cube(launch)]
fn split_heads<F: Float>(
    packed: &[f32],
    queries: &mut [F],
    keys: &mut [F],
    values: &mut [F],
    t: usize,
    query: usize,
    key: usize,
    width: usize,
) {
    if ABSOLUTE_POS < packed.len() {
        let all = (query + 2 * key) * width;
        let (row, head) = (ABSOLUTE_POS / all, ABSOLUTE_POS % all / width);
        let (sample, place) = (row / t, row % t * width + ABSOLUTE_POS % width);
        let value = F::cast_from(packed[ABSOLUTE_POS]);
        if head < query {
            queries[(sample * query + head) * t * width + place] = value;
        } else if head < query + key {
            keys[(sample * key + head - query) * t * width + place] = value;
        } else {
            values[(sample * key + head - query - key) * t * width + place] = value;
        }
    }
}

/// One unit for each value of `packed`.
#[cube(launch)]
fn join_heads<F: Float>(
    queries: &[F],
    keys: &[F],
    values: &[F],
    packed: &mut [f32],
    t: usize,
    query: usize,
    key: usize,
    width: usize,
) {
    if ABSOLUTE_POS < packed.len() {
        let all = (query + 2 * key) * width;
        let (row, head) = (ABSOLUTE_POS / all, ABSOLUTE_POS % all / width);
        let (sample, place) = (row / t, row % t * width + ABSOLUTE_POS % width);
        if head < query {
            packed[ABSOLUTE_POS] = f32::cast_from(queries[(sample * query + head) * t * width + place]);
        } else if head < query + key {
            packed[ABSOLUTE_POS] = f32::cast_from(keys[(sample * key + head - query) * t * width + place]);
        } else {
            packed[ABSOLUTE_POS] =
                f32::cast_from(values[(sample * key + head - query - key) * t * width + place]);
        }
    }
}

/// Scores become the softmax of those that a row sees: the first `row % t + 1`. One cube for each row.
#[cube(launch)]
fn softmax<F: Float>(scores: &mut [F], rows: usize, t: usize, scale: f32, #[comptime] units: usize) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin, seen) = (UNIT_POS as usize, row * t, row % t + 1);
    let mut largest = f32::min_value();
    let mut column = unit;
    while column < seen {
        let score = f32::cast_from(scores[begin + column]);
        largest = select(score > largest, score, largest);
        column += units;
    }
    let top = largest_of_units(largest, units);
    let mut sum = 0.0f32;
    let mut column = unit;
    while column < seen {
        sum += ((f32::cast_from(scores[begin + column]) - top) * scale).exp();
        column += units;
    }
    let total = sum_of_units(sum, units);
    let mut column = unit;
    while column < t {
        let mut value = 0.0f32;
        if column < seen {
            value = ((f32::cast_from(scores[begin + column]) - top) * scale).exp() / total;
        }
        scores[begin + column] = F::cast_from(value);
        column += units;
    }
}

/// The gradient of probabilities `p` becomes that of the scores. One cube for each row.
#[cube(launch)]
fn softmax_back<F: Float>(p: &[F], d: &mut [F], rows: usize, t: usize, scale: f32, #[comptime] units: usize) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin) = (UNIT_POS as usize, row * t);
    let mut dots = 0.0f32;
    let mut column = unit;
    while column < t {
        dots += f32::cast_from(p[begin + column]) * f32::cast_from(d[begin + column]);
        column += units;
    }
    let dot = sum_of_units(dots, units);
    let mut column = unit;
    while column < t {
        let (own, up) = (f32::cast_from(p[begin + column]), f32::cast_from(d[begin + column]));
        d[begin + column] = F::cast_from(own * (up - dot) * scale);
        column += units;
    }
}

//! Causal attention on a device, as matrix products of all heads at once, with custom kernels between them.
//!
//! The query heads that a key head serves are consecutive rows of one matrix: keys are not repeated.
// Shapes in this file: b samples · t tokens · k key heads · s query heads that each serves · d width of one
// head

use super::kernels::{largest_of_units, sum_of_units};
use super::linear::{half_of, narrowed};
use super::matmul::matmul;
use super::{
    CubeBackwardFn, CubeValues, buffer, empty, empty_of, flat_rows, of_each, of_each_row, owned_rows, record,
    rows, shape, values,
};
use crate::ops::custom_autograd::input;
use crate::ops::{Arithmetic, AttentionHeads};
use burn::backend::Cube;
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl::prelude::*;

pub(super) fn attention(arithmetic: Arithmetic, packed: Tensor<3>, heads: AttentionHeads) -> Tensor<3> {
    let half = half_of(arithmetic.precision);
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("attention has one input");
        let [b, t, _] = shape(&packed);
        let again = arithmetic.forgets_scores.then(|| packed.clone());
        let split = SplitHeads::of(packed, heads, half);
        let seen = split.probabilities();
        let out = merged(matmul(seen.clone(), split.values.clone()), [b, t], heads);
        // The packed tensor is not needed beside its heads.
        let kept = again.is_none().then_some((split, seen));
        let gradient: CubeBackwardFn = Box::new(move |d: CubeValues, _: [bool; 8]| {
            let (split, seen) = kept.unwrap_or_else(|| {
                let packed = again.expect("it is kept where its heads are not");
                let split = SplitHeads::of(packed, heads, half);
                let seen = split.probabilities();
                (split, seen)
            });
            vec![Some(split.backward(seen, d))]
        });
        (out, gradient)
    })
}

/// The queries, keys and values of a packed tensor, split into heads.
struct SplitHeads {
    /// Queries `[b·k, s·t, d]`, divided by the root of `d`, so that no score leaves the range of f16 before
    /// its softmax.
    queries: Tensor<3>,
    /// Keys `[b·k, t, d]`.
    keys: Tensor<3>,
    /// Values `[b·k, t, d]`.
    values: Tensor<3>,
    heads: AttentionHeads,
    half: Option<FloatDType>,
}

impl SplitHeads {
    fn of(packed: CubeValues, heads: AttentionHeads, half: Option<FloatDType>) -> Self {
        let [b, t, all] = shape(&packed);
        let AttentionHeads { query, key, width } = heads;
        let dtype = half.map_or(DType::F32, Into::into);
        let made = [query / key, 1, 1].map(|served| empty_of(&packed, [b * key, served * t, width], dtype));
        let (packed, stride) = rows(packed);
        let [queries, keys, values] = &made;
        let (cubes, cube, indices) = of_each(b * t * all, [&packed, queries, keys, values]);
        let [queries, keys, values] = made.each_ref().map(|part: &CubeValues| part.clone().into_buffer_arg());
        let (client, scale) = (packed.client.clone(), scale(heads));
        let packed = buffer(&packed, stride);
        match dtype {
            DType::BF16 => split_heads::launch::<half::bf16>(
                &client,
                cubes,
                cube,
                indices,
                packed,
                queries,
                keys,
                values,
                b * t,
                t,
                query,
                key,
                width,
                stride,
                scale,
            ),
            DType::F16 => split_heads::launch::<half::f16>(
                &client,
                cubes,
                cube,
                indices,
                packed,
                queries,
                keys,
                values,
                b * t,
                t,
                query,
                key,
                width,
                stride,
                scale,
            ),
            _ => split_heads::launch::<f32>(
                &client,
                cubes,
                cube,
                indices,
                packed,
                queries,
                keys,
                values,
                b * t,
                t,
                query,
                key,
                width,
                stride,
                scale,
            ),
        }
        let [queries, keys, values] = made.map(Tensor::from_primitive::<Cube>);
        Self { queries, keys, values, heads, half }
    }

    /// Computes the attention probabilities of all heads. `[b·k, s·t, t]`
    fn probabilities(&self) -> Tensor<3> {
        let scores = matmul(self.queries.clone(), self.keys.clone().transpose());
        Tensor::from_primitive::<Cube>(softmax_of(values(scores)))
    }

    /// Computes the gradient of the packed tensor from that of the output, `[b, t, k·s·d]`.
    fn backward(self, seen: Tensor<3>, d: CubeValues) -> CubeValues {
        let AttentionHeads { query, key, width } = self.heads;
        let [b, t, _] = shape(&d);
        let d: Tensor<3> = Tensor::from_primitive::<Cube>(d);
        let d: Tensor<4> = d.reshape([b, t, query, width]).swap_dims(1, 2);
        let d: Tensor<3> = d.reshape([b * key, query / key * t, width]);
        let d = narrowed(d, self.half);
        let d_values = matmul(seen.clone().transpose(), d.clone());
        let d_seen = values(matmul(d, self.values.clone().transpose()));
        let d_scores: Tensor<3> = Tensor::from_primitive::<Cube>(softmax_back_of(values(seen), d_seen));
        let d_queries = matmul(d_scores.clone(), self.keys);
        let d_keys = matmul(d_scores.transpose(), self.queries);
        join([d_queries, d_keys, d_values].map(|part| rows(values(part))), [b, t], self.heads)
    }
}

/// Computes the causal softmax of scores, in place if they are not shared. `[b·k, s·t, t]`
pub(super) fn softmax_of(scores: CubeValues) -> CubeValues {
    let (scores, stride) = owned_rows(scores);
    let [groups, queries, t] = shape(&scores);
    let count = groups * queries;
    let (cubes, cube, indices, units) = of_each_row(count, t, [&scores]);
    let (client, own) = (&scores.client, buffer(&scores, stride));
    match scores.dtype {
        DType::BF16 => {
            softmax::launch::<half::bf16>(client, cubes, cube, indices, own, count, t, stride, units);
        }
        DType::F16 => {
            softmax::launch::<half::f16>(client, cubes, cube, indices, own, count, t, stride, units);
        }
        _ => softmax::launch::<f32>(client, cubes, cube, indices, own, count, t, stride, units),
    }
    scores
}

/// Computes the gradient of scores from their softmax and its gradient, which it overwrites. `[b·k, s·t, t]`
pub(super) fn softmax_back_of(seen: CubeValues, d_seen: CubeValues) -> CubeValues {
    let ((seen, stride), (d_seen, d_stride)) = (rows(seen), owned_rows(d_seen));
    let [groups, queries, t] = shape(&seen);
    let count = groups * queries;
    let (cubes, cube, indices, units) = of_each_row(count, t, [&seen, &d_seen]);
    let (client, own, out) = (&seen.client, buffer(&seen, stride), buffer(&d_seen, d_stride));
    match seen.dtype {
        DType::BF16 => softmax_back::launch::<half::bf16>(
            client, cubes, cube, indices, own, out, count, t, stride, d_stride, units,
        ),
        DType::F16 => softmax_back::launch::<half::f16>(
            client, cubes, cube, indices, own, out, count, t, stride, d_stride, units,
        ),
        _ => softmax_back::launch::<f32>(
            client, cubes, cube, indices, own, out, count, t, stride, d_stride, units,
        ),
    }
    d_seen
}

/// Returns the factor by which scores are multiplied before their softmax.
fn scale(heads: AttentionHeads) -> f32 {
    (heads.width as f32).powf(-0.5)
}

/// Merges the heads of attention's output. `[b·k, s·t, d]` → `[b, t, k·s·d]`
fn merged(mixed: Tensor<3>, [b, t]: [usize; 2], heads: AttentionHeads) -> CubeValues {
    let mixed: Tensor<4> = flat_rows(values(mixed)).reshape([b, heads.query, t, heads.width]).swap_dims(1, 2);
    let mixed: Tensor<3> = mixed.reshape([b, t, heads.query * heads.width]);
    values(mixed.cast(FloatDType::F32))
}

/// Packs the gradients of queries, keys and values, each given with the stride of its rows.
fn join(parts: [(CubeValues, usize); 3], [b, t]: [usize; 2], heads: AttentionHeads) -> CubeValues {
    let AttentionHeads { query, key, width } = heads;
    let [(queries, by_query), (keys, by_key), (values, by_value)] = &parts;
    let packed = empty(queries, [b, t, (query + 2 * key) * width]);
    let (cubes, cube, indices) = of_each(b * t * (query + 2 * key) * width, [queries, keys, values, &packed]);
    let (client, dtype, out) = (&packed.client, queries.dtype, packed.clone().into_buffer_arg());
    let [own, key_rows, value_rows] = parts.each_ref().map(|(part, stride)| buffer(part, *stride));
    let (by_query, by_key, by_value, scale) = (*by_query, *by_key, *by_value, scale(heads));
    match dtype {
        DType::BF16 => join_heads::launch::<half::bf16>(
            client, cubes, cube, indices, own, key_rows, value_rows, out, t, query, key, width, by_query,
            by_key, by_value, scale,
        ),
        DType::F16 => join_heads::launch::<half::f16>(
            client, cubes, cube, indices, own, key_rows, value_rows, out, t, query, key, width, by_query,
            by_key, by_value, scale,
        ),
        _ => join_heads::launch::<f32>(
            client, cubes, cube, indices, own, key_rows, value_rows, out, t, query, key, width, by_query,
            by_key, by_value, scale,
        ),
    }
    packed
}

/// Kernel: splits `packed: [b, t, (query + 2·key)·d]`, whose rows begin `stride` values after one another,
/// into heads. One unit for each value; queries are multiplied by `scale`.
#[cube(launch, address_type = "dynamic")]
fn split_heads<F: Float>(
    packed: &[f32],
    queries: &mut [F],
    keys: &mut [F],
    values: &mut [F],
    rows: usize,
    t: usize,
    query: usize,
    key: usize,
    width: usize,
    stride: usize,
    scale: f32,
) {
    let all = (query + 2 * key) * width;
    let (row, column) = (ABSOLUTE_POS / all, ABSOLUTE_POS % all);
    if row < rows {
        let head = column / width;
        let (sample, place) = (row / t, row % t * width + column % width);
        let value = packed[row * stride + column];
        if head < query {
            queries[(sample * query + head) * t * width + place] = F::cast_from(value * scale);
        } else if head < query + key {
            keys[(sample * key + head - query) * t * width + place] = F::cast_from(value);
        } else {
            values[(sample * key + head - query - key) * t * width + place] = F::cast_from(value);
        }
    }
}

/// Kernel: the inverse of [`fn@split_heads`] for gradients; those of queries are multiplied by `scale` as
/// well. One unit for each value of `packed`; rows of queries begin `by_query` values after one another,
/// and so on.
#[cube(launch, address_type = "dynamic")]
fn join_heads<F: Float>(
    queries: &[F],
    keys: &[F],
    values: &[F],
    packed: &mut [f32],
    t: usize,
    query: usize,
    key: usize,
    width: usize,
    by_query: usize,
    by_key: usize,
    by_value: usize,
    scale: f32,
) {
    if ABSOLUTE_POS < packed.len() {
        let all = (query + 2 * key) * width;
        let (row, head) = (ABSOLUTE_POS / all, ABSOLUTE_POS % all / width);
        let (sample, token, column) = (row / t, row % t, ABSOLUTE_POS % width);
        if head < query {
            let own = (sample * query + head) * t + token;
            packed[ABSOLUTE_POS] = f32::cast_from(queries[own * by_query + column]) * scale;
        } else if head < query + key {
            let own = (sample * key + head - query) * t + token;
            packed[ABSOLUTE_POS] = f32::cast_from(keys[own * by_key + column]);
        } else {
            let own = (sample * key + head - query - key) * t + token;
            packed[ABSOLUTE_POS] = f32::cast_from(values[own * by_value + column]);
        }
    }
}

/// Kernel: replaces scores by the softmax of those that a row sees: the first `row % t + 1`. One cube for
/// each row; rows begin `stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn softmax<F: Float>(scores: &mut [F], rows: usize, t: usize, stride: usize, #[comptime] units: usize) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin, seen) = (UNIT_POS as usize, row * stride, row % t + 1);
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
        sum += (f32::cast_from(scores[begin + column]) - top).exp();
        column += units;
    }
    let total = sum_of_units(sum, units);
    let mut column = unit;
    while column < t {
        let mut value = 0.0f32;
        if column < seen {
            value = (f32::cast_from(scores[begin + column]) - top).exp() / total;
        }
        scores[begin + column] = F::cast_from(value);
        column += units;
    }
}

/// Kernel: replaces the gradient of probabilities `p` by that of the scores. One cube for each row; rows
/// begin `stride` and `d_stride` values after one another.
#[cube(launch, address_type = "dynamic")]
fn softmax_back<F: Float>(
    p: &[F],
    d: &mut [F],
    rows: usize,
    t: usize,
    stride: usize,
    d_stride: usize,
    #[comptime] units: usize,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let (unit, begin, d_begin) = (UNIT_POS as usize, row * stride, row * d_stride);
    let mut dots = 0.0f32;
    let mut column = unit;
    while column < t {
        dots += f32::cast_from(p[begin + column]) * f32::cast_from(d[d_begin + column]);
        column += units;
    }
    let dot = sum_of_units(dots, units);
    let mut column = unit;
    while column < t {
        let (own, up) = (f32::cast_from(p[begin + column]), f32::cast_from(d[d_begin + column]));
        d[d_begin + column] = F::cast_from(own * (up - dot));
        column += units;
    }
}

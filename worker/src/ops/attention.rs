//! Causal attention that never holds a square of scores: rows are computed a block at a time against the keys
//! they may see, and computed again in the backward pass.
// Shapes in this file: b samples · t tokens · d width of one head

use super::kernels::{self, Into, Matrix, MatrixMut, Threads};
use super::tape::{dense, input, record, shape, slice, vector};
use super::{Heads, Rotary, chunks};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

/// Query rows of one block.
const ROWS: usize = 64;

pub(crate) fn attention(packed: Tensor<3>, heads: Heads) -> Tensor<3> {
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("attention has one input");
        let packed = dense(packed);
        let [b, t, _] = shape(&packed);
        let (out, log_sums) = forward(slice(&packed), [b, t], heads);
        let out = vector(out, [b, t, heads.query * heads.width]);
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let d_packed = backward(slice(&packed), slice(&d), &log_sums, [b, t], heads);
            vec![Some(vector(d_packed, shape::<3>(&packed)))]
        };
        (out, Box::new(gradient))
    })
}

/// Turns the query and key heads in place, when nobody else holds the tensor.
pub(crate) fn rotary(packed: Tensor<3>, heads: Heads, table: &Rotary) -> Tensor<3> {
    let table = table.clone();
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("rotary has one input");
        let turned = turn(packed, heads, &table, 1.0);
        (turned, Box::new(move |d, _| vec![Some(turn(d, heads, &table, -1.0))]))
    })
}

fn turn(packed: FlexTensor, heads: Heads, table: &Rotary, sign: f32) -> FlexTensor {
    let mut packed = dense(packed);
    let [_, t, width] = shape(&packed);
    let (turned, half) = ((heads.query + heads.key) * heads.width, heads.width / 2);
    let rows = packed.storage_mut::<f32>().chunks_mut(width).enumerate();
    chunks::each(rows, |(row, values)| {
        let angles = row % t * half..(row % t + 1) * half;
        let (cos, sin) = (&table.cos[angles.clone()], &table.sin[angles]);
        for head in values[..turned].chunks_mut(heads.width) {
            kernels::rotate(head, cos, sin, sign);
        }
    });
    packed
}

/// One key head of one sample, with the query heads it serves.
#[derive(Clone, Copy)]
struct Group<'a> {
    /// `[t, (query + 2·key)·d]` of the sample.
    packed: Matrix<'a>,
    heads: Heads,
    key: usize,
    t: usize,
}

impl<'a> Group<'a> {
    /// Query heads in the group.
    fn size(self) -> usize {
        self.heads.query / self.heads.key
    }

    /// Rows `from..from + rows` of head `index`, counted over query, key and value heads.
    fn head(self, index: usize, from: usize, rows: usize) -> Matrix<'a> {
        self.packed.part([from, index * self.heads.width], [rows, self.heads.width])
    }

    fn query(self, head: usize, from: usize, rows: usize) -> Matrix<'a> {
        self.head(self.key * self.size() + head, from, rows)
    }

    fn keys(self, rows: usize) -> Matrix<'a> {
        self.head(self.heads.query + self.key, 0, rows)
    }

    fn values(self, rows: usize) -> Matrix<'a> {
        self.head(self.heads.query + self.heads.key + self.key, 0, rows)
    }

    fn scale(self) -> f32 {
        (self.heads.width as f32).powf(-0.5)
    }

    /// Scores of the query rows `from..from + rows` against all keys up to the last of them, into `scores`.
    fn scores(self, head: usize, from: usize, rows: usize, scores: &mut [f32]) {
        let seen = from + rows;
        let out = MatrixMut::dense(scores, [rows, seen]);
        let (query, keys) = (self.query(head, from, rows), self.keys(seen).transposed());
        kernels::product(out, Into::Overwrite, self.scale(), query, keys, Threads::One);
    }
}

/// The groups of all samples in order.
fn groups(packed: &[f32], [b, t]: [usize; 2], heads: Heads) -> impl Iterator<Item = Group<'_>> {
    let width = (heads.query + 2 * heads.key) * heads.width;
    (0..b * heads.key).map(move |index| {
        let sample = &packed[index / heads.key * t * width..][..t * width];
        Group { packed: Matrix::dense(sample, [t, width]), heads, key: index % heads.key, t }
    })
}

/// Result and, for each row of scores, the logarithm of its sum of exponentials. `[b, query, t]`
fn forward(packed: &[f32], [b, t]: [usize; 2], heads: Heads) -> (Vec<f32>, Vec<f32>) {
    let served = heads.query / heads.key;
    let mut out = vec![0.0; b * t * heads.query * heads.width];
    let mut log_sums = vec![0.0; b * heads.query * t];
    let outs = out
        .chunks_mut(t * heads.query * heads.width)
        .flat_map(|sample| MatrixMut::columns(sample, t, &vec![served * heads.width; heads.key]));
    let tasks = groups(packed, [b, t], heads).zip(outs).zip(log_sums.chunks_mut(served * t));
    chunks::each(tasks, |((group, out), log_sums)| forward_group(group, out, log_sums));
    (out, log_sums)
}

fn forward_group(group: Group<'_>, mut out: MatrixMut<'_>, log_sums: &mut [f32]) {
    let (t, width) = (group.t, group.heads.width);
    let mut scores = vec![0.0; ROWS.min(t) * t];
    for (head, log_sums) in log_sums.chunks_mut(t).enumerate() {
        for from in (0..t).step_by(ROWS) {
            let rows = ROWS.min(t - from);
            let seen = from + rows;
            let scores = &mut scores[..rows * seen];
            group.scores(head, from, rows, scores);
            kernels::causal_softmax(scores, seen, from, &mut log_sums[from..seen]);
            let mixed = out.part([from, head * width], [rows, width]);
            let scores = Matrix::dense(scores, [rows, seen]);
            kernels::product(mixed, Into::Overwrite, 1.0, scores, group.values(seen), Threads::One);
        }
    }
}

/// Gradient of the packed input. `[b, t, (query + 2·key)·d]`
fn backward(packed: &[f32], d: &[f32], log_sums: &[f32], [b, t]: [usize; 2], heads: Heads) -> Vec<f32> {
    let served = heads.query / heads.key;
    let mut d_packed = vec![0.0; packed.len()];
    let mut widths = vec![served * heads.width; heads.key];
    widths.resize(3 * heads.key, heads.width);
    let outs = d_packed.chunks_mut(packed.len() / b).flat_map(|sample| {
        let mut queries = MatrixMut::columns(sample, t, &widths);
        let mut keys = queries.split_off(heads.key);
        let values = keys.split_off(heads.key);
        queries.into_iter().zip(keys).zip(values)
    });
    let ds = d.chunks(t * heads.query * heads.width).flat_map(|sample| {
        let sample = Matrix::dense(sample, [t, heads.query * heads.width]);
        (0..heads.key).map(move |key| sample.part([0, key * served * heads.width], [t, served * heads.width]))
    });
    let tasks = groups(packed, [b, t], heads).zip(outs).zip(ds).zip(log_sums.chunks(served * t));
    chunks::each(tasks, |(((group, ((d_query, d_key), d_value)), d), log_sums)| {
        backward_group(group, d, log_sums, d_query, d_key, d_value);
    });
    d_packed
}

fn backward_group(
    group: Group<'_>,
    d: Matrix<'_>,
    log_sums: &[f32],
    mut d_query: MatrixMut<'_>,
    mut d_key: MatrixMut<'_>,
    mut d_value: MatrixMut<'_>,
) {
    let (t, width) = (group.t, group.heads.width);
    let mut scores = vec![0.0; ROWS.min(t) * t];
    let mut d_scores = scores.clone();
    for (head, log_sums) in log_sums.chunks(t).enumerate() {
        for from in (0..t).step_by(ROWS) {
            let rows = ROWS.min(t - from);
            let seen = from + rows;
            let (scores, d_scores) = (&mut scores[..rows * seen], &mut d_scores[..rows * seen]);
            let d = d.part([from, head * width], [rows, width]);
            group.scores(head, from, rows, scores);
            let out = MatrixMut::dense(d_scores, [rows, seen]);
            kernels::product(out, Into::Overwrite, 1.0, d, group.values(seen).transposed(), Threads::One);
            kernels::causal_softmax_back(scores, d_scores, seen, from, &log_sums[from..seen], group.scale());
            let scores = Matrix::dense(scores, [rows, seen]);
            let d_scores = Matrix::dense(d_scores, [rows, seen]);
            let size = [seen, width];
            kernels::product(
                d_value.part([0, 0], size),
                Into::Add,
                1.0,
                scores.transposed(),
                d,
                Threads::One,
            );
            let d_rows = d_query.part([from, head * width], [rows, width]);
            kernels::product(d_rows, Into::Overwrite, 1.0, d_scores, group.keys(seen), Threads::One);
            let query = group.query(head, from, rows);
            kernels::product(
                d_key.part([0, 0], size),
                Into::Add,
                1.0,
                d_scores.transposed(),
                query,
                Threads::One,
            );
        }
    }
}

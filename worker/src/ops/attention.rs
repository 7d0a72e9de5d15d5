//! Causal attention on the host without a full matrix of scores: rows are computed a block at a time against
//! the keys that they may see, and recomputed in the backward pass.
// Shapes in this file: b samples · t tokens · d width of one head

use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::kernels::{self, Accumulate, Matrix, MatrixMut, ThreadUse};
use super::{AttentionHeads, AttentionMask, chunks};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use std::ops::Range;

/// Number of query rows in one block.
const ROWS: usize = 64;

pub(crate) fn attention(packed: Tensor<3>, heads: AttentionHeads, mask: &AttentionMask) -> Tensor<3> {
    let mask = mask.clone();
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("attention has one input");
        let packed = dense(packed);
        let [b, t, _] = shape(&packed);
        let width = heads.query * heads.width;
        let (mut out, mut log_sums) = (vec![0.0; b * t * width], vec![0.0; b * heads.query * t]);
        attend(
            &QueryKeyView::causal(slice(&packed), [b, t], heads, &mask, &whole(t)),
            &mut out,
            &mut log_sums,
            Accumulate::Overwrite,
        );
        let out = vector(out, [b, t, width]);
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let upstream = OutputGradient { d: slice(&d), log_sums: &log_sums, dots: None };
            let d_packed = backward(slice(&packed), &upstream, [b, t], heads, &mask);
            vec![Some(vector(d_packed, shape::<3>(&packed)))]
        };
        (out, Box::new(gradient))
    })
}

/// The queries of some samples, and the keys and values that they attend to.
pub(super) struct QueryKeyView<'a> {
    /// Queries of each sample, `[rows, query·d]`.
    queries: Vec<Matrix<'a>>,
    /// Keys beside values of each sample, `[seen, 2·key·d]`.
    keys: Vec<Matrix<'a>>,
    heads: AttentionHeads,
    /// True if row `r` of the queries sees only the first `r + 1` keys; otherwise it sees all.
    causal: bool,
    /// Index of the first key that each query of each sample sees; empty if all see the first.
    first_keys: Vec<Vec<usize>>,
}

/// Returns the positions of all tokens of a sequence, as one piece.
fn whole(t: usize) -> [Range<usize>; 1] {
    [Range { start: 0, end: t }]
}

impl<'a> QueryKeyView<'a> {
    /// Creates the causal view of `packed`, `[b, t, (query + 2·key)·d]`: each token sees itself and those
    /// before it that `mask` leaves. `pieces` are the positions of the tokens.
    pub(super) fn causal(
        packed: &'a [f32],
        [b, t]: [usize; 2],
        heads: AttentionHeads,
        mask: &AttentionMask,
        pieces: &[Range<usize>],
    ) -> Self {
        let AttentionHeads { query, key, width } = heads;
        let keys = samples(packed, b).map(|sample| {
            let sample = Matrix::dense(sample, [t, (query + 2 * key) * width]);
            sample.part([0, query * width], [t, 2 * key * width])
        });
        let (queries, keys) = (queries(packed, [b, t], t, heads), keys.collect());
        Self { queries, keys, heads, causal: true, first_keys: first_keys(mask, b, pieces, pieces) }
    }

    /// Creates a view in which the last `rows` queries of each sample of `packed` see all of `keys`, `[b,
    /// seen, 2·key·d]`, that `mask` leaves. `pieces` are the positions of these queries and of the keys.
    pub(super) fn all(
        packed: &'a [f32],
        [b, t]: [usize; 2],
        rows: usize,
        keys: &'a [f32],
        heads: AttentionHeads,
        mask: &AttentionMask,
        pieces: [&[Range<usize>]; 2],
    ) -> Self {
        let width = 2 * heads.key * heads.width;
        let keys =
            samples(keys, b).map(|sample| Matrix::dense(sample, [sample.len() / width, width])).collect();
        let first_keys = first_keys(mask, b, pieces[0], pieces[1]);
        Self { queries: queries(packed, [b, t], rows, heads), keys, heads, causal: false, first_keys }
    }

    /// Returns the number of query rows of a sample.
    fn rows(&self) -> usize {
        self.queries[0].rows()
    }

    /// Iterates over the key heads of all samples in order, each with the query heads that it serves.
    fn groups(&self) -> impl Iterator<Item = HeadGroup<'_>> {
        let AttentionHeads { key: heads, width, .. } = self.heads;
        let (served, causal) = (self.heads.query / heads, self.causal);
        self.queries.iter().zip(&self.keys).enumerate().flat_map(move |(sample, (queries, keys))| {
            let first_keys = self.first_keys.get(sample).map(Vec::as_slice);
            (0..heads).map(move |key| HeadGroup {
                queries: queries.part([0, key * served * width], [queries.rows(), served * width]),
                keys: keys.part([0, key * width], [keys.rows(), width]),
                values: keys.part([0, (heads + key) * width], [keys.rows(), width]),
                width,
                causal,
                first_keys,
            })
        })
    }
}

/// Returns the index of the first key that each query of each sample sees; empty if all see the first.
fn first_keys(
    mask: &AttentionMask,
    b: usize,
    queries: &[Range<usize>],
    keys: &[Range<usize>],
) -> Vec<Vec<usize>> {
    let length = queries.last().map_or(0, |piece| piece.end);
    if mask.is_causal(length) {
        return Vec::new();
    }
    (0..b).map(|sample| mask.first_keys(sample, queries, keys)).collect()
}

/// Splits `values` into equal parts, one for each of `b` samples.
fn samples(values: &[f32], b: usize) -> impl Iterator<Item = &[f32]> {
    values.chunks(values.len() / b)
}

/// Returns the last `rows` query rows of each sample of `packed`.
fn queries(packed: &[f32], [b, t]: [usize; 2], rows: usize, heads: AttentionHeads) -> Vec<Matrix<'_>> {
    let AttentionHeads { query, key, width } = heads;
    let rows = |sample| {
        let sample = Matrix::dense(sample, [t, (query + 2 * key) * width]);
        sample.part([t - rows, 0], [rows, query * width])
    };
    samples(packed, b).map(rows).collect()
}

/// A key head of one sample, with the query heads that it serves.
#[derive(Clone, Copy)]
struct HeadGroup<'a> {
    /// Queries of the served heads, `[rows, served·d]`.
    queries: Matrix<'a>,
    /// Keys of the head, `[seen, d]`.
    keys: Matrix<'a>,
    /// Values of the head, `[seen, d]`.
    values: Matrix<'a>,
    width: usize,
    causal: bool,
    /// Index of the first key that each query sees; `None` if all see the first.
    first_keys: Option<&'a [usize]>,
}

impl<'a> HeadGroup<'a> {
    fn query(self, head: usize, from: usize, rows: usize) -> Matrix<'a> {
        self.queries.part([from, head * self.width], [rows, self.width])
    }

    fn scale(self) -> f32 {
        (self.width as f32).powf(-0.5)
    }

    /// Iterates over the query rows of the group, a block at a time.
    fn blocks(self) -> impl Iterator<Item = QueryBlock> {
        let (all, keys) = (self.queries.rows(), self.keys.rows());
        let blocks = (0..all).step_by(ROWS).map(move |from| {
            let rows = ROWS.min(all - from);
            // A later query never sees an earlier key than one before it.
            let begin = self.first_keys.map_or(0, |first| first[from]);
            let end = if self.causal { from + rows } else { keys };
            let mut visible = [[0, end - begin]; ROWS];
            for (row, [low, high]) in visible[..rows].iter_mut().enumerate() {
                *low = self.first_keys.map_or(0, |first| first[from + row] - begin);
                if self.causal {
                    *high = from + row + 1 - begin;
                }
            }
            QueryBlock { from, rows, begin, seen: end - begin, visible }
        });
        blocks.filter(|block| block.seen > 0)
    }

    /// Computes the scores of a block of query rows of head `head` against the keys that they see, into
    /// `scores`.
    fn scores(self, head: usize, block: QueryBlock, scores: &mut [f32]) {
        let QueryBlock { from, rows, begin, seen, .. } = block;
        let out = MatrixMut::dense(scores, [rows, seen]);
        let (query, keys) = (self.query(head, from, rows), self.keys.part([begin, 0], [seen, self.width]));
        kernels::matmul(out, Accumulate::Overwrite, self.scale(), query, keys.transposed(), ThreadUse::One);
    }
}

/// A block of consecutive query rows, with the keys that they see.
#[derive(Clone, Copy)]
struct QueryBlock {
    /// Index of the block's first row.
    from: usize,
    rows: usize,
    /// Index of the first key that any row sees.
    begin: usize,
    /// Number of keys from `begin` on that any row sees.
    seen: usize,
    /// Range of the keys from `begin` on that each row sees.
    visible: [[usize; 2]; ROWS],
}

/// Computes the attention output of the queries of `view`: `out` is `[b, t, query·d]`, of which the last
/// rows of each sample are the view's, and `log_sums` receives the logarithm of the sum of exponentials of
/// each row of scores, `[b, query, t]`.
///
/// With [`Accumulate::Add`] both continue from their present content, weighted by its share of the
/// exponentials.
pub(super) fn attend(view: &QueryKeyView<'_>, out: &mut [f32], log_sums: &mut [f32], into: Accumulate) {
    let (b, rows, AttentionHeads { query, key, width }) = (view.queries.len(), view.rows(), view.heads);
    let t = out.len() / (b * query * width);
    let outs = out.chunks_mut(t * query * width).flat_map(|sample| {
        let own = &mut sample[(t - rows) * query * width..];
        MatrixMut::columns(own, rows, &vec![query / key * width; key])
    });
    let tasks = view.groups().zip(outs).zip(log_sums.chunks_mut(query / key * t));
    chunks::each(tasks, |((group, out), log_sums)| attend_group(group, out, log_sums, t, into));
}

fn attend_group(
    group: HeadGroup<'_>,
    mut out: MatrixMut<'_>,
    log_sums: &mut [f32],
    t: usize,
    into: Accumulate,
) {
    let (rows, width) = (group.queries.rows(), group.width);
    let mut scores = vec![0.0; ROWS.min(rows) * group.keys.rows()];
    for (head, log_sums) in log_sums.chunks_mut(t).enumerate() {
        let log_sums = &mut log_sums[t - rows..];
        for block in group.blocks() {
            let QueryBlock { from, rows, begin, seen, visible } = block;
            let (scores, log_sums) = (&mut scores[..rows * seen], &mut log_sums[from..from + rows]);
            let visible = &visible[..rows];
            group.scores(head, block, scores);
            let mut mixed = out.part([from, head * width], [rows, width]);
            match into {
                Accumulate::Overwrite => kernels::masked_softmax(scores, seen, visible, log_sums),
                Accumulate::Add => {
                    let mut factors = [0.0; ROWS];
                    kernels::softmax_on(scores, seen, visible, log_sums, &mut factors);
                    mixed.scale_rows(&factors[..rows]);
                }
            }
            let scores = Matrix::dense(scores, [rows, seen]);
            let values = group.values.part([begin, 0], [seen, width]);
            kernels::matmul(mixed, into, 1.0, scores, values, ThreadUse::One);
        }
    }
}

/// The gradient of attention's output, and the saved values that the backward pass needs.
pub(super) struct OutputGradient<'a> {
    /// Gradient of the output, `[b, t, query·d]`.
    d: &'a [f32],
    /// Logarithms of the sums of exponentials, `[b, query, t]`, see [`attend`].
    log_sums: &'a [f32],
    /// Product of each row of the output with its gradient, `[b, query, t]`; needed if a view has only a
    /// part of the keys.
    dots: Option<Vec<f32>>,
}

impl<'a> OutputGradient<'a> {
    /// Creates the gradient `d` of the output `mixed`, for views that have only a part of the keys.
    pub(super) fn of_parts(
        d: &'a [f32],
        mixed: &[f32],
        log_sums: &'a [f32],
        [b, t]: [usize; 2],
        heads: AttentionHeads,
    ) -> Self {
        let AttentionHeads { query, width, .. } = heads;
        let mut dots = vec![0.0; b * query * t];
        let results = samples(d, b).zip(samples(mixed, b));
        chunks::each(dots.chunks_mut(query * t).zip(results), |(dots, (d, mixed))| {
            kernels::head_dots(d, mixed, dots, t, width);
        });
        Self { d, log_sums, dots: Some(dots) }
    }
}

/// The places to which gradients are written, for each key head of each sample in order.
pub(super) struct HeadGradients<'a> {
    /// Gradients of the query heads that each key head serves, `[rows, served·d]`.
    pub(super) queries: Vec<MatrixMut<'a>>,
    /// Gradients of keys, `[seen, d]`.
    pub(super) keys: Vec<MatrixMut<'a>>,
    /// Gradients of values, `[seen, d]`.
    pub(super) values: Vec<MatrixMut<'a>>,
}

/// Computes the gradient of attention's packed input. `[b, t, (query + 2·key)·d]`
fn backward(
    packed: &[f32],
    upstream: &OutputGradient<'_>,
    [b, t]: [usize; 2],
    heads: AttentionHeads,
    mask: &AttentionMask,
) -> Vec<f32> {
    let AttentionHeads { query, key, width } = heads;
    let mut d_packed = vec![0.0; packed.len()];
    let mut widths = vec![query / key * width; key];
    widths.resize(3 * key, width);
    let mut out = HeadGradients { queries: Vec::new(), keys: Vec::new(), values: Vec::new() };
    for sample in d_packed.chunks_mut(packed.len() / b) {
        let mut columns = MatrixMut::columns(sample, t, &widths).into_iter();
        out.queries.extend(columns.by_ref().take(key));
        out.keys.extend(columns.by_ref().take(key));
        out.values.extend(columns);
    }
    let view = QueryKeyView::causal(packed, [b, t], heads, mask, &whole(t));
    attend_back(&view, upstream, out, Accumulate::Overwrite);
    d_packed
}

/// Computes the gradients of [`attend`]: those of the queries replace the content of `out` or are added to
/// it, according to `into`; those of keys and values are added.
pub(super) fn attend_back(
    view: &QueryKeyView<'_>,
    upstream: &OutputGradient<'_>,
    out: HeadGradients<'_>,
    into: Accumulate,
) {
    let (b, rows, AttentionHeads { query, key, width }) = (view.queries.len(), view.rows(), view.heads);
    let (t, served) = (upstream.log_sums.len() / (b * query), query / key);
    let ds = samples(upstream.d, b).flat_map(|sample| {
        let sample = Matrix::dense(sample, [t, query * width]);
        (0..key).map(move |key| sample.part([t - rows, key * served * width], [rows, served * width]))
    });
    let saved = (0..b * key).map(|group| {
        let own = group * served * t..(group + 1) * served * t;
        (&upstream.log_sums[own.clone()], upstream.dots.as_ref().map(|dots| &dots[own]))
    });
    let outs = out.queries.into_iter().zip(out.keys).zip(out.values);
    let tasks = view.groups().zip(outs).zip(ds).zip(saved);
    chunks::each(tasks, |(((group, ((queries, keys), values)), d), (log_sums, dots))| {
        back_group(group, d, log_sums, dots, t, into, [queries, keys, values]);
    });
}

fn back_group(
    group: HeadGroup<'_>,
    d: Matrix<'_>,
    log_sums: &[f32],
    dots: Option<&[f32]>,
    t: usize,
    into: Accumulate,
    [mut d_queries, mut d_keys, mut d_values]: [MatrixMut<'_>; 3],
) {
    let (skipped, width) = (t - group.queries.rows(), group.width);
    let mut scores = vec![0.0; ROWS.min(t) * group.keys.rows()];
    let mut d_scores = scores.clone();
    for (head, log_sums) in log_sums.chunks(t).enumerate() {
        let dots = dots.map(|dots| &dots[head * t..][..t]);
        for block in group.blocks() {
            let QueryBlock { from, rows, begin, seen, visible } = block;
            let (scores, d_scores) = (&mut scores[..rows * seen], &mut d_scores[..rows * seen]);
            let own = skipped + from..skipped + from + rows;
            let (part, keys, all) = ([from, head * width], [begin, 0], [seen, width]);
            let (query, d) = (group.query(head, from, rows), d.part(part, [rows, width]));
            let product = |out: MatrixMut<'_>, into, left: Matrix<'_>, right: Matrix<'_>| {
                kernels::matmul(out, into, 1.0, left, right, ThreadUse::One);
            };
            group.scores(head, block, scores);
            let values = group.values.part(keys, all).transposed();
            product(MatrixMut::dense(d_scores, [rows, seen]), Accumulate::Overwrite, d, values);
            let (log_sums, dots) = (&log_sums[own.clone()], dots.map(|dots| &dots[own]));
            kernels::softmax_back(scores, d_scores, seen, &visible[..rows], log_sums, dots, group.scale());
            let scores = Matrix::dense(scores, [rows, seen]).transposed();
            let d_scores = Matrix::dense(d_scores, [rows, seen]);
            product(d_values.part(keys, all), Accumulate::Add, scores, d);
            product(d_queries.part(part, [rows, width]), into, d_scores, group.keys.part(keys, all));
            product(d_keys.part(keys, all), Accumulate::Add, d_scores.transposed(), query);
        }
    }
}

//! Expert layers: dispatches rows of tokens to their experts, applies each expert's matrices to its group
//! of rows, and combines the weighted results.
//!
//! Rows pass through host memory on any device. Results are added in the order of experts, so that no bit
//! depends on timing.
// Shapes in this file: b samples · t tokens of a sample · n tokens · k experts a token · w width · f width
// of an expert; rows are `[1, rows, w]`, matrices `[experts of this rank, in, out]`

pub(super) mod fused;

use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::{Arithmetic, TokenRoutes, geglu, gelu, gelu_tanh, kernels, reference, swiglu};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use dtrain_recipes::Activation;
use kernels::MatrixMut;
use std::ops::Range;

/// The matrices of this rank's experts.
#[derive(Clone)]
pub(crate) struct ExpertMatrices {
    /// Gate matrices `[experts, w, f]`, if the activation is gated.
    pub(crate) gate: Option<Tensor<3>>,
    /// Up projections `[experts, w, f]`.
    pub(crate) up: Tensor<3>,
    /// Down projections `[experts, f, w]`.
    pub(crate) down: Tensor<3>,
    /// Activation between the two layers.
    pub(crate) activation: Activation,
}

/// Sends each token to its experts. `[b, t, w]` → the rows that arrive at this rank, by expert.
pub(crate) fn dispatch(x: Tensor<3>, routes: &TokenRoutes) -> Tensor<3> {
    let routes = routes.clone();
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("sending has one input").map(dense);
        let [b, t, width] = shape(&x);
        let rows = rows_of(slice(&x), width, &routes);
        let arrived = routes.send(rows, width);
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let back = routes.send_back(slice(&dense(d)).to_vec(), width);
            let mut d_x = vec![0.0; b * t * width];
            for ((token, _), row) in routes.leaving().zip(back.chunks(width)) {
                kernels::add(&mut d_x[token * width..][..width], row);
            }
            vec![Some(vector(d_x, [b, t, width]))]
        };
        (as_rows(arrived, width), Box::new(gradient))
    })
}

/// Returns rows to the ranks of their tokens, and sums the rows of each token, weighted by `gates: [1, n,
/// k]`. → `[b, t, w]`
pub(crate) fn combine(
    rows: Tensor<3>,
    gates: Tensor<3>,
    routes: &TokenRoutes,
    [b, t]: [usize; 2],
) -> Tensor<3> {
    let routes = routes.clone();
    record(vec![input(rows), input(gates)], |values| {
        let [rows, gates] = <[_; 2]>::try_from(values).expect("two inputs are combined").map(dense);
        let ([.., width], chosen) = (shape::<3>(&rows), shape::<3>(&gates));
        let back = routes.send_back(slice(&rows).to_vec(), width);
        let mut y = vec![0.0; b * t * width];
        for ((token, choice), row) in routes.leaving().zip(back.chunks(width)) {
            kernels::add_scaled(&mut y[token * width..][..width], row, slice(&gates)[choice]);
        }
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let mut upstream = rows_of(slice(&dense(d)), width, &routes);
            let count = upstream.len() / width;
            let mut dots = vec![0.0; count];
            if count > 0 {
                kernels::head_dots(&back, &upstream, &mut dots, count, width);
            }
            let mut d_gates = vec![0.0; chosen.iter().product()];
            for ((_, choice), dot) in routes.leaving().zip(dots) {
                d_gates[choice] = dot;
            }
            let weights: Vec<_> = routes.leaving().map(|(_, choice)| slice(&gates)[choice]).collect();
            MatrixMut::dense(&mut upstream, [count, width]).scale_rows(&weights);
            let d_rows = as_rows(routes.send(upstream, width), width);
            vec![Some(d_rows), Some(vector(d_gates, chosen))]
        };
        (vector(y, [b, t, width]), Box::new(gradient))
    })
}

/// Computes the experts: applies each expert's matrices to its group of rows. `[1, rows, w]` → `[1, rows, w]`
pub(crate) fn feed(
    arithmetic: Arithmetic,
    rows: Tensor<3>,
    matrices: ExpertMatrices,
    groups: Vec<Range<usize>>,
) -> Tensor<3> {
    arithmetic.by.ops().feed(arithmetic, rows, matrices, groups)
}

/// Computes [`feed`] with the operations of `arithmetic`, one group after the other.
pub(super) fn feed_one_by_one(
    arithmetic: Arithmetic,
    rows: Tensor<3>,
    matrices: ExpertMatrices,
    groups: Vec<Range<usize>>,
) -> Tensor<3> {
    let ExpertMatrices { gate, up, down, activation } = matrices;
    let one = |all: &Tensor<3>, expert| all.clone().narrow(0, expert, 1).squeeze_dim::<2>(0);
    let groups = groups.into_iter().enumerate().filter(|(_, group)| !group.is_empty());
    let results = groups.map(|(expert, group)| {
        let x = rows.clone().narrow(1, group.start, group.len());
        let wide = gate.iter().chain([&up]).map(|matrix| one(matrix, expert)).collect();
        let wide = reference::project(arithmetic.precision, x, wide, Vec::new(), None);
        let inner = match activation {
            Activation::Swiglu => swiglu(arithmetic, wide),
            Activation::Geglu => geglu(arithmetic, wide),
            Activation::Gelu => gelu(arithmetic, wide),
            Activation::GeluTanh => gelu_tanh(arithmetic, wide),
        };
        reference::project(arithmetic.precision, inner, vec![one(&down, expert)], Vec::new(), None)
    });
    let results: Vec<_> = results.collect();
    if results.is_empty() { rows } else { Tensor::cat(results, 1) }
}

/// Returns the row of its token for each row that is sent.
fn rows_of(tokens: &[f32], width: usize, routes: &TokenRoutes) -> Vec<f32> {
    routes.leaving().flat_map(|(token, _)| &tokens[token * width..][..width]).copied().collect()
}

fn as_rows(values: Vec<f32>, width: usize) -> FlexTensor {
    let rows = values.len() / width;
    vector(values, [1, rows, width])
}

#[cfg(test)]
mod tests;

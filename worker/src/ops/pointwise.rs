//! Pointwise operations on the host: GELU, SwiGLU, embeddings and the injected gradient.

use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::{VocabRange, chunks, kernels};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn gelu(x: Tensor<3>) -> Tensor<3> {
    each(x, kernels::gelu, kernels::gelu_back)
}

pub(crate) fn gelu_tanh(x: Tensor<3>) -> Tensor<3> {
    each(x, kernels::gelu_tanh, kernels::gelu_tanh_back)
}

/// Applies `function` to each value of `x`; `back` multiplies a gradient by its derivative.
fn each(x: Tensor<3>, function: fn(&[f32], &mut [f32]), back: fn(&[f32], &mut [f32])) -> Tensor<3> {
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("a function has one input").map(dense);
        let mut out = vec![0.0; slice(&x).len()];
        let rows = chunks::rows(1);
        chunks::each(slice(&x).chunks(rows).zip(out.chunks_mut(rows)), |(x, out)| function(x, out));
        let out = vector(out, shape::<3>(&x));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let mut d = dense(d);
            let chunks = slice(&x).chunks(rows).zip(d.storage_mut::<f32>().chunks_mut(rows));
            chunks::each(chunks, |(x, d)| back(x, d));
            vec![Some(d)]
        };
        (out, Box::new(gradient))
    })
}

pub(crate) fn swiglu(packed: Tensor<3>) -> Tensor<3> {
    gated(packed, kernels::swiglu, kernels::swiglu_back)
}

pub(crate) fn geglu(packed: Tensor<3>) -> Tensor<3> {
    gated(packed, kernels::geglu, kernels::geglu_back)
}

/// Applies a gated activation to rows `gate | up`; `back` replaces them by their gradient.
fn gated(
    packed: Tensor<3>,
    function: fn(&[f32], &mut [f32], usize),
    back: fn(&mut [f32], &[f32], usize),
) -> Tensor<3> {
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("an activation has one input").map(dense);
        let [b, t, both] = shape(&packed);
        let (width, rows) = (both / 2, chunks::rows(both));
        let mut out = vec![0.0; b * t * width];
        let chunks = slice(&packed).chunks(rows * both).zip(out.chunks_mut(rows * width));
        chunks::each(chunks, |(packed, out)| function(packed, out, width));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            // The input is not needed again: its gradient overwrites it, if it is not shared.
            let (mut packed, d) = (packed, dense(d));
            let chunks =
                packed.storage_mut::<f32>().chunks_mut(rows * both).zip(slice(&d).chunks(rows * width));
            chunks::each(chunks, |(packed, d)| back(packed, d, width));
            vec![Some(packed)]
        };
        (vector(out, [b, t, width]), Box::new(gradient))
    })
}

pub(crate) fn embed(
    table: Tensor<2>,
    share: VocabRange,
    tokens: &[u32],
    [samples, length]: [usize; 2],
) -> Tensor<3> {
    record(vec![input(table)], |values| {
        let [table] = <[_; 1]>::try_from(values).expect("an embedding has one input").map(dense);
        let [rows, width] = shape(&table);
        let own: Vec<_> = tokens.iter().map(|token| share.own(*token, rows)).collect();
        let mut out = vec![0.0; own.len() * width];
        for (row, out) in own.iter().zip(out.chunks_mut(width)) {
            if let Some(row) = row {
                out.copy_from_slice(&slice(&table)[row * width..(row + 1) * width]);
            }
        }
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let mut d_table = vec![0.0; rows * width];
            // In the order of the tokens, on one thread: tokens may share rows.
            for (row, d) in own.iter().zip(slice(&d).chunks(width)) {
                if let Some(row) = row {
                    kernels::add(&mut d_table[row * width..(row + 1) * width], d);
                }
            }
            vec![Some(vector(d_table, [rows, width]))]
        };
        (vector(out, [samples, length, width]), Box::new(gradient))
    })
}

/// Adds position embeddings, in place if `x` is not shared.
pub(crate) fn add_positions(x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
    let places = places.to_vec();
    record(vec![input(x), input(table)], |values| {
        let [mut x, table] = <[_; 2]>::try_from(values).expect("positions have two inputs").map(dense);
        let [rows, width] = shape(&table);
        for sample in x.storage_mut::<f32>().chunks_mut(places.len() * width) {
            for (x, place) in sample.chunks_mut(width).zip(&places) {
                kernels::add(x, &slice(&table)[place * width..(place + 1) * width]);
            }
        }
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let mut d_table = vec![0.0; rows * width];
            for sample in slice(&d).chunks(places.len() * width) {
                for (d, place) in sample.chunks(width).zip(&places) {
                    kernels::add(&mut d_table[place * width..(place + 1) * width], d);
                }
            }
            vec![Some(d), Some(vector(d_table, [rows, width]))]
        };
        (x, Box::new(gradient))
    })
}

pub(crate) fn inject(output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
    let upstream = upstream.inner().try_into_primitive::<Flex>().expect("both are on the host");
    record(vec![input(output)], |_| (vector(vec![0.0], [1]), Box::new(move |_, _| vec![Some(upstream)])))
}

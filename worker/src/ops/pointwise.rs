//! GELU, SwiGLU, embeddings and the injected gradient.

use super::tape::{dense, input, record, shape, slice, vector};
use super::{chunks, kernels};
use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

pub(crate) fn gelu(x: Tensor<3>) -> Tensor<3> {
    record(vec![input(x)], |values| {
        let [x] = <[_; 1]>::try_from(values).expect("gelu has one input").map(dense);
        let mut out = vec![0.0; slice(&x).len()];
        let rows = chunks::rows(1);
        chunks::each(slice(&x).chunks(rows).zip(out.chunks_mut(rows)), |(x, out)| kernels::gelu(x, out));
        let out = vector(out, shape::<3>(&x));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let mut d = dense(d);
            let chunks = slice(&x).chunks(rows).zip(d.storage_mut::<f32>().chunks_mut(rows));
            chunks::each(chunks, |(x, d)| kernels::gelu_back(x, d));
            vec![Some(d)]
        };
        (out, Box::new(gradient))
    })
}

pub(crate) fn swiglu(packed: Tensor<3>) -> Tensor<3> {
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("swiglu has one input").map(dense);
        let [b, t, both] = shape(&packed);
        let (width, rows) = (both / 2, chunks::rows(both));
        let mut out = vec![0.0; b * t * width];
        let chunks = slice(&packed).chunks(rows * both).zip(out.chunks_mut(rows * width));
        chunks::each(chunks, |(packed, out)| kernels::swiglu(packed, out, width));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            // The input is not needed again: its gradient takes its place, when nobody else holds it.
            let (mut packed, d) = (packed, dense(d));
            let chunks =
                packed.storage_mut::<f32>().chunks_mut(rows * both).zip(slice(&d).chunks(rows * width));
            chunks::each(chunks, |(packed, d)| kernels::swiglu_back(packed, d, width));
            vec![Some(packed)]
        };
        (vector(out, [b, t, width]), Box::new(gradient))
    })
}

pub(crate) fn embed(
    table: Tensor<2>,
    positions: Option<Tensor<2>>,
    tokens: &[u32],
    [samples, length]: [usize; 2],
) -> Tensor<3> {
    let tokens: Vec<usize> = tokens.iter().map(|token| *token as usize).collect();
    let mut inputs = vec![input(table)];
    inputs.extend(positions.map(input));
    record(inputs, |values| {
        let mut values = values.into_iter().map(dense);
        let table = values.next().expect("the table is the first input");
        let positions = values.next();
        let [vocab, width] = shape(&table);
        let mut out = Vec::with_capacity(tokens.len() * width);
        for token in &tokens {
            assert!(*token < vocab, "token {token} is not one of a vocabulary of {vocab}");
            out.extend_from_slice(&slice(&table)[token * width..(token + 1) * width]);
        }
        if let Some(positions) = &positions {
            let own = &slice(positions)[..length * width];
            out.chunks_mut(length * width).for_each(|sample| kernels::add(sample, own));
        }
        let places = positions.map(|positions| shape::<2>(&positions));
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let mut d_table = vec![0.0; vocab * width];
            // In the order of the tokens: threads would have to share rows.
            for (token, d) in tokens.iter().zip(slice(&d).chunks(width)) {
                kernels::add(&mut d_table[token * width..(token + 1) * width], d);
            }
            let mut found = vec![Some(vector(d_table, [vocab, width]))];
            found.extend(places.map(|[places, width]| {
                let mut sum = vec![0.0; places * width];
                slice(&d).chunks(length * width).for_each(|d| kernels::add(&mut sum[..length * width], d));
                Some(vector(sum, [places, width]))
            }));
            found
        };
        (vector(out, [samples, length, width]), Box::new(gradient))
    })
}

pub(crate) fn inject(output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
    let upstream = upstream.inner().try_into_primitive::<Flex>().expect("both are on the host");
    record(vec![input(output)], |_| (vector(vec![0.0], [1]), Box::new(move |_, _| vec![Some(upstream)])))
}

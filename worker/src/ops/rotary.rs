//! Rotary embeddings of queries and keys on the host.

use super::custom_autograd::{dense, input, record, shape};
use super::{AttentionHeads, Rotary, chunks, kernels};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;

/// Applies rotary embeddings to the query and key heads, in place if the tensor is not shared.
pub(crate) fn rotary(packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
    let table = table.clone();
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("rotary has one input");
        let turned = rotate_heads(packed, heads, &table, 1.0);
        (turned, Box::new(move |d, _| vec![Some(rotate_heads(d, heads, &table, -1.0))]))
    })
}

fn rotate_heads(packed: FlexTensor, heads: AttentionHeads, table: &Rotary, sign: f32) -> FlexTensor {
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

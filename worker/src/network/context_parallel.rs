//! Context parallelism: the positions of a sequence that each rank holds, and attention to the tokens of
//! other ranks.
//!
//! All layers except attention process tokens independently. So a rank that is given its part of the
//! tokens, and of the position embeddings, needs no more than another attention.

use crate::data::Batch;
use crate::mesh::Peers;
use crate::ops::{self, Arithmetic, AttentionHeads, AttentionMask};
use burn::tensor::Tensor;
use std::ops::Range;

/// Returns the positions of a sequence of `length` tokens that this rank of `context` holds, in the order
/// in which it holds them.
///
/// The sequence is cut into two equal pieces for each rank, and rank `i` of `n` holds pieces `i` and
/// `2n−1−i`: the early piece sees few keys, the late one many. Panics if `length` does not divide.
pub(crate) fn pieces(length: usize, context: &Peers) -> Vec<Range<usize>> {
    let (rank, ranks) = (context.rank() as usize, context.size() as usize);
    if ranks == 1 {
        return std::iter::once(0..length).collect();
    }
    assert!(length.is_multiple_of(2 * ranks), "{length} positions cut into {} pieces", 2 * ranks);
    let piece = length / (2 * ranks);
    [rank, 2 * ranks - 1 - rank].map(|index| index * piece..(index + 1) * piece).to_vec()
}

/// Returns the part of `batch` that this rank of `context` holds: its tokens of every sequence.
pub(crate) fn cut(batch: Batch, context: &Peers) -> Batch {
    match batch {
        Batch::Tokens { inputs, targets, samples, length, packed } if context.size() > 1 => {
            let pieces = pieces(length, context);
            let part = |tokens: Vec<u32>| {
                let held = |sample: &[u32]| pieces.iter().flat_map(|p| sample[p.clone()].to_vec()).collect();
                tokens.chunks(length).flat_map(|sample| -> Vec<u32> { held(sample) }).collect()
            };
            let (inputs, targets) = (part(inputs), part(targets));
            Batch::Tokens { inputs, targets, samples, length: length / context.size() as usize, packed }
        }
        Batch::Tokens { .. } | Batch::Rows { .. } => batch,
    }
}

/// Computes causal attention over whole sequences to the keys that `mask` leaves, for the tokens that this rank of `context` holds.
///
/// `[b, t, (query + 2·key)·width]` → `[b, t, query·width]`
pub(crate) fn attention(
    arithmetic: Arithmetic,
    packed: Tensor<3>,
    heads: AttentionHeads,
    mask: &AttentionMask,
    context: &Peers,
) -> Tensor<3> {
    if context.size() == 1 {
        ops::attention(arithmetic, packed, heads, mask)
    } else {
        ops::ring_attention::attention(packed, heads, mask, context)
    }
}

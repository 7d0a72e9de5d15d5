//! What a token may attend to, beside the causal rule: the window of a layer, and its document in a packed
//! sequence.

use burn::tensor::{Bool, Device, Tensor, TensorData};
use std::ops::Range;
use std::sync::Arc;

/// The keys that a token may see: none after it, none before its window, and none of another document.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct AttentionMask {
    /// Number of tokens that a token sees, itself included; `None`: all of its document.
    pub(crate) window: Option<usize>,
    /// Documents of packed sequences; `None`: each sequence is one document.
    pub(crate) documents: Option<DocumentStarts>,
}

/// The documents in packed sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DocumentStarts {
    /// Position of the first token of each token's document, `[samples, length]`.
    pub(crate) starts: Arc<[u32]>,
    /// Number of tokens in each whole sequence.
    pub(crate) length: usize,
}

impl AttentionMask {
    /// Returns `true` if every token sees all tokens before it, in sequences of `length` tokens.
    pub(crate) fn is_causal(&self, length: usize) -> bool {
        self.documents.is_none() && self.window.is_none_or(|window| window >= length)
    }

    /// Returns the position of the first token that the one at `position` of `sample` sees.
    pub(crate) fn first(&self, sample: usize, position: usize) -> usize {
        let window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let document = self.documents.as_ref().map_or(0, |all| all.starts[sample * all.length + position]);
        window.max(document as usize)
    }

    /// Returns, for queries and keys at these positions of `sample`, the index of the first key that each query
    /// sees; the number of keys if it sees none. Positions ascend.
    pub(super) fn first_keys(
        &self,
        sample: usize,
        queries: &[Range<usize>],
        keys: &[Range<usize>],
    ) -> Vec<usize> {
        let index = |first: usize| -> usize {
            keys.iter().map(|piece| first.clamp(piece.start, piece.end) - piece.start).sum()
        };
        queries.iter().cloned().flatten().map(|position| index(self.first(sample, position))).collect()
    }

    /// Returns the mask of the keys that each query does not see, of whole sequences. `[b, t, t]`
    pub(super) fn hidden(&self, [b, t]: [usize; 2], device: &Device) -> Tensor<3, Bool> {
        let row = |sample: usize, query: usize| {
            let first = self.first(sample, query);
            (0..t).map(move |key| key < first || key > query)
        };
        let values =
            (0..b).flat_map(|sample| (0..t).flat_map(move |query| row(sample, query))).collect::<Vec<_>>();
        Tensor::from_data(TensorData::new(values, [b, t, t]), &device.clone().inner())
    }
}

#[cfg(test)]
pub(crate) mod tests;

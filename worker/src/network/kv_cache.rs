//! KV cache: keys and values of the tokens that a decoder has read, while it generates a text token by
//! token.
// Shapes in this file: b samples · t tokens · d width of one head

use crate::ops::{self, Arithmetic, AttentionHeads, AttentionMask};
use burn::tensor::{Tensor, activation};

/// The cached keys and values of all blocks of a decoder.
#[derive(Default)]
pub(crate) struct KvCache {
    /// Keys and values of each block, `[b, heads, t, d]`.
    blocks: Vec<[Tensor<4>; 2]>,
    /// Number of cached tokens, without those of the current pass.
    tokens: usize,
    /// Index of the block that computes its attention next.
    next: usize,
}

impl KvCache {
    /// Returns the number of cached tokens, without those of the current pass.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Ends a pass over `tokens` tokens, which then count as cached.
    pub(crate) fn end_pass(&mut self, tokens: usize) {
        self.tokens += tokens;
        self.next = 0;
    }

    /// Computes causal attention of the tokens in a pass over themselves and all cached tokens, and
    /// caches their keys and values; each token sees at most `window` tokens. Either the cache is empty, or the pass has one token. `[b, t, (query
    /// + 2·key)·d]` → `[b, t, query·d]`
    pub(crate) fn attention(
        &mut self,
        arithmetic: Arithmetic,
        packed: Tensor<3>,
        heads: AttentionHeads,
        window: Option<usize>,
    ) -> Tensor<3> {
        let [b, t, _] = packed.dims();
        let AttentionHeads { query, key, width } = heads;
        let of = |begin: usize| {
            let columns = packed.clone().narrow(2, begin * width, key * width);
            columns.reshape([b, t, key, width]).swap_dims(1, 2)
        };
        let new = [of(query), of(query + key)];
        let place = self.next;
        self.next += 1;
        if self.tokens == 0 {
            self.blocks.push(new);
            let mask = AttentionMask { window, documents: None };
            return ops::attention(arithmetic, packed, heads, &mask);
        }
        assert_eq!(t, 1, "tokens come one by one after the first pass");
        let [keys, values] = &mut self.blocks[place];
        for (all, new) in [&mut *keys, &mut *values].into_iter().zip(new) {
            *all = Tensor::cat(vec![all.clone(), new], 2);
        }
        let kept = keys.dims()[2];
        let seen = window.map_or(kept, |window| window.min(kept));
        let [keys, values] = [keys, values].map(|all| all.clone().narrow(2, kept - seen, seen));
        // Every key head serves `query / key` query heads.
        let queries = packed.narrow(2, 0, query * width).reshape([b, key, query / key, width]);
        #[expect(clippy::cast_precision_loss, reason = "the width of a head")]
        let scores = queries.matmul(keys.transpose()) * (width as f32).powf(-0.5);
        activation::softmax(scores, 3).matmul(values).reshape([b, 1, query * width])
    }
}

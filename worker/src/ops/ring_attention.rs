//! Ring attention: causal attention over sequences that several ranks hold parts of. Keys and values travel
//! around a ring, and every rank attends to those that are with it.
//!
//! A sequence is cut into `2·ranks` equal pieces, and rank `i` holds pieces `i` and `2·ranks − 1 − i`. So
//! half of all pairs of its queries and another rank's keys count, for any other rank: all queries see the
//! first piece of a rank before it, and the queries of its second piece see all keys of a rank behind it.
//! No round waits for a mask, and every rank computes as much as any other.
//!
//! Keys travel downwards, from each rank to the one before it. They are whole until they were at rank 0;
//! from there they go to ranks behind the one that they began at, which see their first piece only, and so
//! only that goes on. Neither bits nor messages depend on time: sums are made in the order of the ring.
// Shapes in this file: b samples · t tokens of a sample that this rank holds · d width of one head

use super::attention::{HeadGradients, OutputGradient, QueryKeyView, attend, attend_back};
use super::custom_autograd::{dense, input, record, shape, slice, vector};
use super::kernels::{self, Accumulate, MatrixMut};
use super::{AttentionHeads, AttentionMask};
use crate::comm::{Incoming, Outgoing};
use crate::mesh::Peers;
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use std::ops::Range;

/// Computes attention of the queries of this rank to the keys of all ranks of `peers`. `[b, t, (query +
/// 2·key)·d]` → `[b, t, query·d]`
pub(crate) fn attention(
    packed: Tensor<3>,
    heads: AttentionHeads,
    mask: &AttentionMask,
    peers: &Peers,
) -> Tensor<3> {
    let (peers, mask) = (peers.clone(), mask.clone());
    record(vec![input(packed)], |values| {
        let [packed] = <[_; 1]>::try_from(values).expect("attention has one input");
        let packed = dense(packed);
        let [b, t, _] = shape(&packed);
        let (rank, ranks) = (peers.rank() as usize, peers.size() as usize);
        let ring = RingAttention { rank, ranks, peers, b, t, heads, mask };
        let (out, log_sums) = ring.forward(slice(&packed));
        let out = vector(out, [b, t, heads.query * heads.width]);
        let mixed = out.clone();
        let gradient = move |d: FlexTensor, _: [bool; 8]| {
            let d = dense(d);
            let upstream = OutputGradient::of_parts(slice(&d), slice(&mixed), &log_sums, [b, t], heads);
            vec![Some(vector(ring.backward(slice(&packed), &upstream), shape::<3>(&packed)))]
        };
        (out, Box::new(gradient))
    })
}

/// A block of queries and keys, of two ranks and for each sample, in which all pairs count: of the last
/// `queries` queries and the first `keys` keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AttentionBlock {
    pub(crate) queries: usize,
    pub(crate) keys: usize,
}

/// Returns the block of another rank's keys that rank `rank`, with `t` tokens of each sample, sees.
pub(crate) fn visible_block(rank: usize, other: usize, t: usize) -> AttentionBlock {
    assert_ne!(rank, other, "what a rank sees of itself is no rectangle");
    if other < rank {
        AttentionBlock { queries: t, keys: t / 2 }
    } else {
        AttentionBlock { queries: t / 2, keys: t }
    }
}

/// The shape of ring attention on this rank, and its position among the ranks that hold parts of the same
/// sequences.
struct RingAttention {
    peers: Peers,
    rank: usize,
    ranks: usize,
    b: usize,
    t: usize,
    heads: AttentionHeads,
    mask: AttentionMask,
}

impl RingAttention {
    /// Returns the output of attention, and the logarithms of the sums of exponentials, `[b, query, t]`.
    fn forward(&self, packed: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let Self { b, t, heads, .. } = *self;
        let mut out = vec![0.0; b * t * heads.query * heads.width];
        let mut log_sums = vec![0.0; b * heads.query * t];
        let mut keys = self.own(packed);
        for round in 0..self.ranks {
            let pass = |peers: &Peers| self.pass_keys(peers, round, &keys);
            let (next, ()) = self.peers.meanwhile(pass, || match round {
                0 => attend(&self.own_view(packed), &mut out, &mut log_sums, Accumulate::Overwrite),
                _ => attend(&self.view(round, packed, &keys), &mut out, &mut log_sums, Accumulate::Add),
            });
            keys = next;
        }
        (out, log_sums)
    }

    /// Returns the gradient of `packed`, which holds queries, keys and values.
    ///
    /// The keys travel as in the forward pass. A rank adds its part to their gradient and sends it after
    /// them, while it computes with the next keys; the last rank sends the sum to the owner.
    fn backward(&self, packed: &[f32], upstream: &OutputGradient<'_>) -> Vec<f32> {
        let mut d_packed = vec![0.0; packed.len()];
        let (mut keys, mut d_own, mut d_keys) = (self.own(packed), Vec::new(), Vec::new());
        for round in 0..self.ranks {
            let pass = |peers: &Peers| {
                (self.pass_keys(peers, round, &keys), self.pass_gradient(peers, round, &d_keys))
            };
            let ((next, sum), found) = self.peers.meanwhile(pass, || {
                let mut found = vec![0.0; keys.len()];
                let places = self.places(round, &mut d_packed, &mut found);
                match round {
                    0 => attend_back(&self.own_view(packed), upstream, places, Accumulate::Overwrite),
                    _ => attend_back(&self.view(round, packed, &keys), upstream, places, Accumulate::Add),
                }
                found
            });
            keys = next;
            match round {
                0 => d_own = found,
                1 => d_keys = found,
                _ => {
                    d_keys = sum;
                    self.add(&mut d_keys, &found);
                }
            }
        }
        let home = self.pass_gradient(&self.peers, self.ranks, &d_keys);
        self.add(&mut d_own, &home);
        self.scatter_own(&d_own, &mut d_packed);
        d_packed
    }

    /// Returns the rank whose keys this rank has in `round`.
    fn owner(&self, round: usize) -> usize {
        (self.rank + round) % self.ranks
    }

    /// Returns the number of values in the keys and values of one token.
    fn width(&self) -> usize {
        2 * self.heads.key * self.heads.width
    }

    /// Returns the length of the keys that this rank has in `round`, in values.
    fn keys_length(&self, round: usize) -> usize {
        let owner = self.owner(round);
        let tokens = if owner == self.rank { self.t } else { visible_block(self.rank, owner, self.t).keys };
        self.b * tokens * self.width()
    }

    /// Returns the length of the gradient of the keys that this rank has in `round`, in values. It has both
    /// pieces to the end, except that of rank 0, whose second piece no other rank sees.
    fn gradient_length(&self, round: usize) -> usize {
        let tokens = if self.owner(round) == 0 { self.t / 2 } else { self.t };
        self.b * tokens * self.width()
    }

    /// Copies the keys and values of this rank out of `packed`. `[b, t, 2·key·d]`
    fn own(&self, packed: &[f32]) -> Vec<f32> {
        let width = self.width();
        let row = self.heads.query * self.heads.width + width;
        packed.chunks(row).flat_map(|row| &row[row.len() - width..]).copied().collect()
    }

    /// Returns the view of this rank's queries on the keys that it has in `round`.
    fn view<'a>(&self, round: usize, packed: &'a [f32], keys: &'a [f32]) -> QueryKeyView<'a> {
        let owner = self.owner(round);
        let AttentionBlock { queries, keys: seen } = visible_block(self.rank, owner, self.t);
        let (mine, theirs) = (self.pieces(self.rank), self.pieces(owner));
        // The last queries and the first keys, by whole pieces.
        let mine = &mine[if queries < self.t { 1 } else { 0 }..];
        let theirs = &theirs[..if seen < self.t { 1 } else { 2 }];
        QueryKeyView::all(packed, [self.b, self.t], queries, keys, self.heads, &self.mask, [mine, theirs])
    }

    /// Returns the view of this rank's queries on its own keys.
    fn own_view<'a>(&self, packed: &'a [f32]) -> QueryKeyView<'a> {
        QueryKeyView::causal(packed, [self.b, self.t], self.heads, &self.mask, &self.pieces(self.rank))
    }

    /// Returns the positions of the two pieces of a sequence that `rank` holds.
    fn pieces(&self, rank: usize) -> [Range<usize>; 2] {
        let piece = self.t / 2;
        [rank, 2 * self.ranks - 1 - rank].map(|index| index * piece..(index + 1) * piece)
    }

    /// Sends the keys of `round` to the rank before, and returns those of the next round.
    fn pass_keys(&self, peers: &Peers, round: usize, keys: &[f32]) -> Vec<f32> {
        if round + 1 == self.ranks {
            return Vec::new();
        }
        let mut next = vec![0.0; self.keys_length(round + 1)];
        if self.rank == 0 {
            // From here on only first pieces travel.
            let whole = self.t * self.width();
            let first = keys.chunks(whole).flat_map(|sample| &sample[..whole / 2]);
            self.pass(peers, &first.copied().collect::<Vec<_>>(), &mut next);
        } else {
            self.pass(peers, keys, &mut next);
        }
        next
    }

    /// Sends the gradient of the previous round's keys to their current rank, and returns that of the keys
    /// that are here now; empty until another rank than their own has computed with them.
    fn pass_gradient(&self, peers: &Peers, round: usize, gradient: &[f32]) -> Vec<f32> {
        if round < 2 {
            return Vec::new();
        }
        let mut next = vec![0.0; self.gradient_length(round)];
        self.pass(peers, gradient, &mut next);
        next
    }

    /// Sends `send` to the rank before and receives `receive` from the rank behind, both at once.
    ///
    /// Counted in `planner/src/step/traffic/model_parallel.rs`, `ring`.
    fn pass(&self, peers: &Peers, send: &[f32], receive: &mut [f32]) {
        let index = |rank: usize| u32::try_from(rank % self.ranks).expect("an index among u32 ranks");
        let outgoing = Outgoing { to: index(self.rank + self.ranks - 1), values: send };
        let incoming = Incoming { from: index(self.rank + 1), values: receive };
        peers.exchange(Some(outgoing), Some(incoming));
    }

    /// Returns the places for the gradients of [`RingAttention::view`]: those of the queries in `d_packed`,
    /// those of keys and values in `d_keys`, which has the layout of the keys.
    fn places<'a>(&self, round: usize, d_packed: &'a mut [f32], d_keys: &'a mut [f32]) -> HeadGradients<'a> {
        let Self { b, t, heads: AttentionHeads { query, key, width }, .. } = *self;
        let rows = if round == 0 { t } else { visible_block(self.rank, self.owner(round), t).queries };
        let row = d_packed.len() / (b * t);
        let mut widths = vec![query / key * width; key];
        widths.push(self.width());
        let mut out = HeadGradients { queries: Vec::new(), keys: Vec::new(), values: Vec::new() };
        for sample in d_packed.chunks_mut(t * row) {
            let columns = MatrixMut::columns(&mut sample[(t - rows) * row..], rows, &widths);
            out.queries.extend(columns.into_iter().take(key));
        }
        let tokens = d_keys.len() / (b * self.width());
        for sample in d_keys.chunks_mut(tokens * self.width()) {
            let mut columns = MatrixMut::columns(sample, tokens, &vec![width; 2 * key]);
            out.values.extend(columns.split_off(key));
            out.keys.extend(columns);
        }
        out
    }

    /// Adds `part` to the first tokens of each sample of `sum`.
    fn add(&self, sum: &mut [f32], part: &[f32]) {
        let (whole, length) = (sum.len() / self.b, part.len() / self.b);
        for (sum, part) in sum.chunks_mut(whole).zip(part.chunks(length)) {
            kernels::add(&mut sum[..length], part);
        }
    }

    /// Copies the gradient of this rank's keys and values into `d_packed`, beside that of its queries.
    fn scatter_own(&self, d_own: &[f32], d_packed: &mut [f32]) {
        let row = d_packed.len() / (self.b * self.t);
        for (packed, own) in d_packed.chunks_mut(row).zip(d_own.chunks(self.width())) {
            packed[row - self.width()..].copy_from_slice(own);
        }
    }
}

#[cfg(test)]
mod tests;

//! Ring attention equals attention over whole sequences, with every gradient.

use super::*;
use crate::comm::loopback;
use crate::mesh::Mesh;
use crate::network::context_parallel;
use crate::ops::{Arithmetic, Implementation};
use burn::tensor::{Device, TensorData};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Arrangement, Layout, Rank};
use dtrain_recipes::Precision;
use std::num::NonZeroU32;
use std::ops::Range;
use std::time::Duration;

const REFERENCE: Arithmetic =
    Arithmetic { by: Implementation::Reference, precision: Precision::F32, forgets_scores: false };
const HOST: Arithmetic =
    Arithmetic { by: Implementation::Host, precision: Precision::F32, forgets_scores: false };

/// Number of samples.
const B: usize = 2;

/// Returns values in [-2, 2), a function of `seed`.
fn values(seed: u64, len: usize) -> Vec<f32> {
    (0..len).map(|i| (splitmix64(seed, i as u64) % 4000) as f32 / 1000.0 - 2.0).collect()
}

/// Returns the output of an attention over `[B, t, width]` values, and their gradient under `upstream`.
fn trace(
    packed: Vec<f32>,
    upstream: Vec<f32>,
    t: usize,
    run: impl Fn(Tensor<3>) -> Tensor<3>,
) -> [Vec<f32>; 2] {
    let tensor = |values: Vec<f32>| {
        let width = values.len() / (B * t);
        Tensor::<3>::from_data(TensorData::new(values, [B, t, width]), &Device::flex()).autodiff()
    };
    let leaf = tensor(packed).require_grad();
    let out = run(leaf.clone());
    let mut gradients = (out.clone() * tensor(upstream)).sum().backward();
    let gradient = leaf.grad_remove(&mut gradients).expect("the leaf is used");
    [out.inner(), gradient].map(|tensor| tensor.into_data().try_to_vec().unwrap())
}

/// Returns the tokens of these pieces of every sample.
fn part(values: &[f32], pieces: &[Range<usize>], length: usize) -> Vec<f32> {
    let width = values.len() / (B * length);
    let mut part = Vec::new();
    for sample in values.chunks(length * width) {
        for piece in pieces {
            part.extend_from_slice(&sample[piece.start * width..piece.end * width]);
        }
    }
    part
}

/// Returns the result of `work` on each of `ranks` ranks that hold parts of the same sequences, and the
/// bytes each sent.
fn on_ranks<T: Send>(ranks: u32, work: impl Fn(&Peers) -> T + Sync) -> Vec<(T, u64)> {
    let arrangement = Arrangement {
        layout: Layout { context: NonZeroU32::new(ranks).unwrap(), ..Layout::SINGLE },
        ..Arrangement::SINGLE
    };
    let one = |(rank, group): (u32, loopback::ThreadRank)| {
        let mesh = Mesh::of(Box::new(group), &arrangement, Rank(rank)).unwrap();
        let peers = &mesh.partners().context;
        let result = work(peers);
        mesh.check().expect("nothing went wrong between the ranks");
        (result, peers.bytes_sent())
    };
    std::thread::scope(|scope| {
        let groups = (0..).zip(loopback::threads(ranks, Duration::from_secs(20)));
        let threads: Vec<_> = groups.map(|rank| scope.spawn(|| one(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Compares the attention of `arithmetic` over sequences of `length`, distributed over `ranks` ranks, with
/// that of one rank.
fn check(arithmetic: Arithmetic, ranks: u32, length: usize, heads: AttentionHeads, mask: &AttentionMask) {
    let width = (heads.query + 2 * heads.key) * heads.width;
    let packed = values(1, B * length * width);
    let upstream = values(2, B * length * heads.query * heads.width);
    let whole =
        trace(packed.clone(), upstream.clone(), length, |x| crate::ops::attention(REFERENCE, x, heads, mask));
    let found = on_ranks(ranks, |peers| {
        let pieces = context_parallel::pieces(length, peers);
        let own = |values: &[f32]| part(values, &pieces, length);
        let found = trace(own(&packed), own(&upstream), length / ranks as usize, |x| {
            context_parallel::attention(arithmetic, x, heads, mask, peers)
        });
        (found, whole.each_ref().map(|whole| own(whole)))
    });
    for (rank, ((found, wanted), _)) in found.iter().enumerate() {
        for (what, (found, wanted)) in ["value", "gradient"].iter().zip(found.iter().zip(wanted)) {
            let largest = wanted.iter().fold(1e-3, |a: f32, b| a.max(b.abs()));
            assert_eq!(found.len(), wanted.len());
            for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
                let words = format!("{ranks} ranks, {length} tokens, {heads:?}");
                assert!((f - w).abs() < 1e-5 * largest, "{words}: {what} {i} of rank {rank} is {f}, not {w}");
            }
        }
    }
}

const HEADS: [AttentionHeads; 4] = [
    AttentionHeads { query: 2, key: 2, width: 4 },
    AttentionHeads { query: 4, key: 2, width: 6 },
    AttentionHeads { query: 6, key: 1, width: 3 },
    AttentionHeads { query: 1, key: 1, width: 16 },
];

#[test]
fn a_ring_attends_as_one_rank_does() {
    for ranks in [2, 3, 4] {
        for (piece, heads) in [1, 3, 50, 70].into_iter().zip(HEADS) {
            let length = 2 * ranks as usize * piece;
            check(HOST, ranks, length, heads, &AttentionMask::default());
            for window in [1, 3, length / 2] {
                let window = AttentionMask { window: Some(window), documents: None };
                check(HOST, ranks, length, heads, &window);
                let documents = Some(crate::ops::attention_mask::tests::documents(B, length));
                check(HOST, ranks, length, heads, &AttentionMask { documents, ..window });
            }
        }
    }
}

#[test]
fn the_same_ring_gives_the_same_bits() {
    let heads = HEADS[1];
    let run = || {
        let traces = on_ranks(3, |peers| {
            let seed = u64::from(peers.rank());
            let [packed, upstream] = [(seed, 48), (seed + 9, 24)].map(|(s, width)| values(s, B * 20 * width));
            trace(packed, upstream, 20, |x| {
                context_parallel::attention(HOST, x, heads, &AttentionMask::default(), peers)
            })
        });
        traces.into_iter().map(|(trace, _)| trace).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

#[test]
fn what_is_seen_is_what_comes_before_and_is_the_same_for_all() {
    for ranks in [2, 3, 4, 8] {
        let length = 2 * ranks as usize * 5;
        let held =
            on_ranks(ranks, |peers| context_parallel::pieces(length, peers).into_iter().flatten().collect());
        let held: Vec<Vec<usize>> = held.into_iter().map(|(positions, _)| positions).collect();
        let t = length / ranks as usize;
        let pairs = held.iter().enumerate().map(|(rank, queries)| {
            let mut pairs = t * (t + 1) / 2;
            for (other, keys) in held.iter().enumerate().filter(|(other, _)| *other != rank) {
                let AttentionBlock { queries: rows, keys: seen } = visible_block(rank, other, t);
                for (row, query) in queries.iter().enumerate() {
                    for (column, key) in keys.iter().enumerate() {
                        let is_seen = row >= t - rows && column < seen;
                        assert_eq!(
                            key <= query,
                            is_seen,
                            "token {query} of rank {rank} and {key} of {other}"
                        );
                    }
                }
                pairs += rows * seen;
            }
            assert!(queries.is_sorted(), "a rank sees of itself what lies before");
            pairs
        });
        let pairs: Vec<_> = pairs.collect();
        println!("{ranks} ranks, {length} tokens: {} pairs each of {}", pairs[0], length * (length + 1) / 2);
        assert!(pairs.iter().all(|one| *one == pairs[0]), "{pairs:?}");
        assert_eq!(pairs.iter().sum::<usize>(), length * (length + 1) / 2);
    }
}

#[test]
fn no_piece_travels_to_where_nobody_sees_it() {
    let heads = HEADS[1];
    for ranks in [2, 3, 4u32] {
        let t = 6;
        // Bytes of the keys and values of one piece of all samples.
        let piece = 4 * (B * t / 2 * 2 * heads.key * heads.width) as u64;
        let sent = on_ranks(ranks, |peers| {
            let (packed, upstream) = (values(1, B * t * 48), values(2, B * t * 24));
            drop(trace(packed, upstream, t, |x| {
                context_parallel::attention(HOST, x, heads, &AttentionMask::default(), peers)
            }));
        });
        let sent: Vec<_> = sent.into_iter().map(|(_, sent)| sent / piece).collect();
        let pieces = |rank: u64| {
            let hops = u64::from(ranks) - 1;
            // Both pieces to the ranks below the owner, one to those behind it; and twice, forward and
            // backward.
            let keys = if rank == 0 { hops } else { 2 * (hops + 1 - rank) + rank - 1 };
            let gradient = if rank == 0 { 2 * hops } else { 2 * hops - 1 };
            2 * keys + gradient
        };
        assert_eq!(sent, (0..u64::from(ranks)).map(pieces).collect::<Vec<_>>(), "{ranks} ranks");
    }
}

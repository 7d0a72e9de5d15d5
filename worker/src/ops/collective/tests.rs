//! Collectives in the network: ranks together compute the values and gradients that one computes alone.

use super::*;
use crate::comm::loopback;
use crate::mesh::{Mesh, ModelParallelGroups};
use crate::network::tensor_parallel;
use crate::ops::Implementation;
use crate::ops::{
    Arithmetic, LossFigures, VocabRange, add_positions, cross_entropy, cross_entropy_of_part, embed, gelu,
    project,
};
use burn::tensor::{Device, TensorData};
use dtrain_protocol::sharding::shard_range;
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

/// Number of samples; then tokens of a sequence, width, and width of the cut layers.
const B: usize = 2;
const T: usize = 6;
const W: usize = 5;
const F: usize = 12;

/// Runs `work` on `ranks` ranks, which hold parts of the same matrices.
fn among<R: Send>(ranks: u32, sequence: bool, work: impl Fn(&ModelParallelGroups) -> R + Sync) -> Vec<R> {
    let layout = Layout { tensor: NonZeroU32::new(ranks).unwrap(), ..Layout::SINGLE };
    let arrangement = Arrangement { layout, sequence, ..Arrangement::SINGLE };
    let groups = loopback::threads(ranks, Duration::from_secs(20));
    std::thread::scope(|scope| {
        let spawn = |(rank, group): (u32, loopback::ThreadRank)| {
            let work = &work;
            scope.spawn(move || {
                let mesh = Mesh::of(Box::new(group), &arrangement, Rank(rank)).unwrap();
                let found = work(mesh.partners());
                mesh.check().unwrap();
                found
            })
        };
        let threads: Vec<_> = (0..ranks).zip(groups).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Returns values in [-1, 1), a function of `seed`.
fn made<const D: usize>(seed: u64, shape: [usize; D]) -> Tensor<D> {
    let values =
        (0..shape.iter().product()).map(|i: usize| (splitmix64(seed, i as u64) % 2000) as f32 / 1e3 - 1.0);
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), &Device::flex())
}

fn leaf<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
    tensor.autodiff().require_grad()
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().unwrap()
}

fn close(what: &str, found: &[f32], wanted: &[f32]) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    let largest = wanted.iter().fold(1e-3, |a: f32, b| a.max(b.abs()));
    for (i, (f, w)) in found.iter().zip(wanted).enumerate() {
        assert!((f - w).abs() < 1e-5 * largest, "{what}, element {i}: {f} for {w}");
    }
}

/// Returns the part of `size` that rank `rank` of `ranks` holds.
fn held(size: usize, rank: u32, ranks: u32) -> Range<usize> {
    let range = shard_range(size as u64, rank, ranks);
    range.start as usize..range.end as usize
}

fn narrow<const D: usize>(tensor: Tensor<D>, dimension: usize, range: &Range<usize>) -> Tensor<D> {
    tensor.narrow(dimension, range.start, range.len())
}

/// Computes two layers with biases around a GELU, with a residual, on one rank of `partners`: returns the
/// output and the gradients of input, residual, weights and biases, under a gradient that differs in every
/// element.
fn feed_forward(arithmetic: Arithmetic, partners: &ModelParallelGroups) -> Vec<Vec<f32>> {
    let (rank, ranks) = (partners.tensor.rank(), partners.tensor.size());
    let columns = held(F, rank, ranks);
    let tokens = if partners.sequence { held(T, rank, ranks) } else { 0..T };
    let x = leaf(narrow(made(1, [B, T, W]), 1, &tokens));
    let residual = leaf(narrow(made(2, [B, T, W]), 1, &tokens));
    let up = leaf(narrow(made(3, [W, F]), 1, &columns));
    let up_bias = leaf(narrow(made(4, [F]), 0, &columns));
    let down = leaf(narrow(made(5, [F, W]), 0, &columns));
    let down_bias = leaf(made::<1>(6, [W]));
    let entered = tensor_parallel::enter(partners, x.clone());
    let wide = gelu(arithmetic, project(arithmetic, entered, vec![up.clone()], vec![up_bias.clone()], None));
    let partial = project(arithmetic, wide, vec![down.clone()], Vec::new(), None);
    let y = tensor_parallel::leave(partners, partial, Some(down_bias.clone()), Some(residual.clone()));
    let upstream = narrow(made(7, [B, T, W]), 1, &tokens).autodiff();
    let mut found = (y.clone() * upstream).sum().backward();
    vec![
        flat(y.inner()),
        flat(x.grad_remove(&mut found).unwrap()),
        flat(residual.grad_remove(&mut found).unwrap()),
        flat(up.grad_remove(&mut found).unwrap()),
        flat(up_bias.grad_remove(&mut found).unwrap()),
        flat(down.grad_remove(&mut found).unwrap()),
        flat(down_bias.grad_remove(&mut found).unwrap()),
    ]
}

#[test]
fn cut_layers_compute_what_whole_ones_do() {
    let [y, x, residual, up, up_bias, down, down_bias] =
        feed_forward(REFERENCE, &ModelParallelGroups::none()).try_into().unwrap();
    let part = |values: &[f32], shape: [usize; 3], dimension, range: &Range<usize>| {
        let whole = Tensor::<3>::from_data(TensorData::new(values.to_vec(), shape), &Device::flex());
        flat(narrow(whole, dimension, range))
    };
    for (ranks, sequence) in [(2, false), (2, true), (3, false), (3, true)] {
        for arithmetic in [REFERENCE, HOST] {
            let all = among(ranks, sequence, |partners| feed_forward(arithmetic, partners));
            let mut bias_sum = vec![0.0; W];
            for (rank, found) in (0..).zip(&all) {
                let columns = held(F, rank, ranks);
                let tokens = if sequence { held(T, rank, ranks) } else { 0..T };
                let rows = |values: &[f32]| part(values, [B, T, W], 1, &tokens);
                close("result", &found[0], &rows(&y));
                close("input", &found[1], &rows(&x));
                close("residual", &found[2], &rows(&residual));
                close("columns", &found[3], &part(&up, [1, W, F], 2, &columns));
                close("bias of columns", &found[4], &up_bias[columns.clone()]);
                close("rows", &found[5], &part(&down, [1, F, W], 1, &columns));
                if sequence {
                    bias_sum.iter_mut().zip(&found[6]).for_each(|(sum, own)| *sum += own);
                } else {
                    close("bias of rows", &found[6], &down_bias);
                    assert_eq!(found[0], all[0][0], "all ranks have the same bits");
                    assert_eq!(found[1], all[0][1], "all ranks have the same bits");
                }
            }
            if sequence {
                close("bias of rows, over all parts", &bias_sum, &down_bias);
            }
        }
    }
}

/// A vocabulary that two and three ranks hold unevenly.
const V: usize = 17;

fn words(seed: u64) -> Vec<u32> {
    (0..B * T).map(|i| (splitmix64(seed, i as u64) % V as u64) as u32).collect()
}

/// Computes a tied embedding with positions: returns the loss, its figures, and the gradients of both
/// tables.
fn tied(
    arithmetic: Arithmetic,
    partners: &ModelParallelGroups,
    z_loss: f32,
) -> (f32, LossFigures, Vec<f32>, Vec<f32>) {
    let (rank, ranks) = (partners.tensor.rank(), partners.tensor.size());
    let rows = held(V, rank, ranks);
    let (table, positions) = (leaf(narrow(made(11, [V, W]), 0, &rows)), leaf(made::<2>(12, [T + 2, W])));
    let share = VocabRange { begin: rows.start, of: V };
    let found = embed(arithmetic, table.clone(), share, &words(13), [B, T]);
    let places: Vec<_> = (1..=T).collect();
    let places = tensor_parallel::part_of(partners, &places);
    let x = add_positions(
        arithmetic,
        tensor_parallel::leave(partners, found, None, None),
        positions.clone(),
        places,
    );
    let x = tensor_parallel::enter(partners, x);
    let logits =
        project(arithmetic, x, vec![table.clone().transpose()], Vec::new(), None).flatten(0, 1) * 3.0;
    let targets = words(16);
    let (loss, figures) = match ranks {
        1 => cross_entropy(arithmetic, logits, &targets, z_loss),
        _ => cross_entropy_of_part(arithmetic, logits, &targets, share, &partners.tensor, z_loss),
    };
    let mut found = (loss.clone() * 0.7).backward();
    let table = flat(table.grad_remove(&mut found).unwrap());
    (loss.into_scalar(), figures.read(), table, flat(positions.grad_remove(&mut found).unwrap()))
}

#[test]
fn a_cut_vocabulary_gives_the_loss_of_the_whole_one() {
    cut_vocabulary_gives_the_loss_of_the_whole_one(0.0);
    cut_vocabulary_gives_the_loss_of_the_whole_one(0.3);
}

fn cut_vocabulary_gives_the_loss_of_the_whole_one(z_loss: f32) {
    let (loss, figures, table, positions) = tied(REFERENCE, &ModelParallelGroups::none(), z_loss);
    assert!(figures.hits > 0 && figures.hits < figures.count, "{figures:?}");
    for (ranks, sequence) in [(2, false), (2, true), (3, false), (3, true)] {
        for arithmetic in [REFERENCE, HOST] {
            let mut sum = vec![0.0; (T + 2) * W];
            let all = among(ranks, sequence, |partners| tied(arithmetic, partners, z_loss));
            for (rank, (own_loss, own_figures, own_table, own_positions)) in (0..).zip(all) {
                assert!((own_loss - loss).abs() < 1e-5 * loss, "{own_loss} for {loss}");
                assert_eq!((own_figures.hits, own_figures.count), (figures.hits, figures.count));
                assert!((own_figures.loss_sum / figures.loss_sum - 1.0).abs() < 1e-5);
                let rows = held(V, rank, ranks);
                close("embedding", &own_table, &table[rows.start * W..rows.end * W]);
                if !sequence {
                    close("positions", &own_positions, &positions);
                }
                sum.iter_mut().zip(&own_positions).for_each(|(sum, own)| *sum += own);
            }
            if sequence {
                close("positions, over all parts", &sum, &positions);
            }
        }
    }
}

/// Loss, figures and the gradient of the scores of some classes, on a device where each rank has some of
/// them.
#[cfg(feature = "device")]
#[test]
fn devices_that_have_some_of_the_classes_find_the_loss_of_all() {
    let Some(gpu) = crate::ops::tests::gpu() else { return };
    for z_loss in [0.0, 0.3] {
        devices_find_the_loss_of_all(&gpu, z_loss);
    }
}

#[cfg(feature = "device")]
fn devices_find_the_loss_of_all(gpu: &Device, z_loss: f32) {
    let count = B * T;
    let device = Arithmetic { by: Implementation::Device, ..REFERENCE };
    // Large enough for an overflow of exponentials that are not relative to the largest score of all.
    let scores = || made(21, [count, V]) * 100.0;
    let scored = flat(scores());
    let best = |row: &[f32]| (0..V).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap() as u32;
    // Every third prediction is right.
    let targets = words(22).into_iter().zip(scored.chunks(V)).enumerate();
    let targets: Vec<u32> =
        targets.map(|(place, (word, row))| if place % 3 == 0 { best(row) } else { word }).collect();
    let whole = leaf(scores());
    let (loss, figures) = cross_entropy(REFERENCE, whole.clone(), &targets, z_loss);
    let (wanted_loss, wanted) = (loss.clone().into_scalar::<f32>(), figures.read());
    let gradient = flat(whole.grad_remove(&mut (loss * 0.7).backward()).unwrap());
    assert!(wanted.hits > 0 && wanted.hits < wanted.count, "{wanted:?}");
    for ranks in [2, 3] {
        let found = among(ranks, false, |partners| {
            let columns = held(V, partners.tensor.rank(), ranks);
            let own = narrow(scores(), 1, &columns).into_data();
            let own = leaf(Tensor::<2>::from_data(own, gpu));
            let share = VocabRange { begin: columns.start, of: V };
            let (loss, figures) =
                cross_entropy_of_part(device, own.clone(), &targets, share, &partners.tensor, z_loss);
            let gradient = flat(own.grad_remove(&mut (loss.clone() * 0.7).backward()).unwrap());
            (loss.into_scalar::<f32>(), figures.read(), gradient)
        });
        for (rank, (own_loss, own_figures, own_gradient)) in (0..).zip(&found) {
            assert!((own_loss - wanted_loss).abs() < 1e-5 * wanted_loss, "{own_loss} for {wanted_loss}");
            assert_eq!(own_loss.to_bits(), found[0].0.to_bits(), "all ranks have the same bits");
            assert_eq!((own_figures.hits, own_figures.count), (wanted.hits, wanted.count));
            let columns = held(V, rank, ranks);
            let part: Vec<f32> =
                gradient.chunks(V).flat_map(|row| row[columns.clone()].iter().copied()).collect();
            close("scores", own_gradient, &part);
        }
    }
}

#[test]
fn alone_nothing_is_done() {
    let alone = ModelParallelGroups::none().tensor;
    let x = leaf(made(1, [B, T, W]));
    // The result of an operation would be no leaf.
    assert!(copy_to(x.clone(), &alone).is_require_grad());
    assert!(gather_sequence(x.clone(), &alone).is_require_grad());
    assert!(sum_from(x.clone(), None, None, &alone).is_require_grad());
    assert!(scatter_sequence(x, None, None, &alone).is_require_grad());
}

#[test]
#[should_panic(expected = "17 is not one of 17")]
fn a_token_that_nobody_knows_is_told() {
    let share = VocabRange { begin: 9, of: V };
    drop(embed(HOST, made(1, [8, W]), share, &[3, 17], [1, 2]));
}

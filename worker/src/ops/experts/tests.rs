//! Experts compute the same fused and plain, and distributed over ranks or on one.

use super::*;
use crate::comm::loopback;
use crate::mesh::{Mesh, ModelParallelGroups};
use crate::ops::Implementation;
use burn::tensor::{Device, TensorData};
use dtrain_protocol::shuffle::splitmix64;
use dtrain_protocol::{Arrangement, Layout, Rank};
use dtrain_recipes::Precision;
use std::num::NonZeroU32;
use std::time::Duration;

const REFERENCE: Arithmetic =
    Arithmetic { by: Implementation::Reference, precision: Precision::F32, forgets_scores: false };
const HOST: Arithmetic = Arithmetic { by: Implementation::Host, ..REFERENCE };

/// Tokens, width, width of an expert, experts, experts a token.
const N: usize = 12;
const W: usize = 5;
const F: usize = 7;
const E: usize = 4;
const K: usize = 2;

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

/// Two experts of each token; some of the second choices are dropped.
type Choices = Vec<Option<usize>>;

/// Spreads the tokens over all experts.
fn scattered() -> Choices {
    let pair = |token: usize| {
        let first = splitmix64(3, token as u64) as usize % E;
        [Some(first), (token % 5 != 2).then_some((first + 1 + token % (E - 1)) % E)]
    };
    (0..N).flat_map(pair).collect()
}

/// Sends all tokens to the last two experts: none to the first rank, and none to any rank's first expert.
fn crowded() -> Choices {
    (0..N).flat_map(|token| [Some(E - 1), (token % 3 == 0).then_some(E - 2)]).collect()
}

/// Passes all tokens of some ranks through the experts of `peers`: returns the output, and the gradients of
/// tokens, gates and matrices.
fn pass(
    arithmetic: Arithmetic,
    activation: Activation,
    choices: &Choices,
    partners: &ModelParallelGroups,
) -> Vec<Vec<f32>> {
    let peers = &partners.expert;
    let (rank, ranks) = (peers.rank() as usize, peers.size() as usize);
    let (tokens, experts) = (N / ranks, E / ranks);
    let own = &choices[rank * tokens * K..][..tokens * K];
    let x = leaf(made::<3>(1, [1, N, W]).narrow(1, rank * tokens, tokens));
    let gates = leaf(made::<3>(2, [1, N, K]).narrow(1, rank * tokens, tokens));
    let held = |seed, shape: [usize; 3]| leaf(made(seed, shape).narrow(0, rank * experts, experts));
    let gate = (activation == Activation::Swiglu).then(|| held(3, [E, W, F]));
    let (up, down) = (held(4, [E, W, F]), held(5, [E, F, W]));
    let matrices = ExpertMatrices { gate: gate.clone(), up: up.clone(), down: down.clone(), activation };
    let routes = TokenRoutes::of(own, K, E, peers);
    let rows = feed(arithmetic, dispatch(x.clone(), &routes), matrices, routes.groups());
    let y = combine(rows, gates.clone(), &routes, [1, tokens]);
    let upstream = made::<3>(6, [1, N, W]).narrow(1, rank * tokens, tokens).autodiff();
    let mut found = (y.clone() * upstream).sum().backward();
    let mut gradient = |leaf: &Tensor<3>| {
        let length = leaf.dims().iter().product();
        // Without rows no matrix takes part.
        leaf.grad_remove(&mut found).map_or_else(|| vec![0.0; length], flat)
    };
    let mut all = vec![gradient(&x), gradient(&gates), gradient(&up), gradient(&down)];
    all.extend(gate.iter().map(&mut gradient));
    all.insert(0, flat(y.inner()));
    all
}

#[test]
fn the_fused_experts_are_the_plain_ones() {
    for activation in [Activation::Swiglu, Activation::Gelu, Activation::GeluTanh] {
        for choices in [scattered(), crowded()] {
            let wanted = pass(REFERENCE, activation, &choices, &ModelParallelGroups::none());
            let found = pass(HOST, activation, &choices, &ModelParallelGroups::none());
            for (which, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                assert!(wanted.iter().any(|value| *value != 0.0), "{which}: nothing to compare");
                close(&format!("{activation:?}, {which} (0 is the value)"), found, wanted);
            }
        }
    }
}

#[test]
fn each_row_passes_the_matrices_of_its_expert() {
    let alone = ModelParallelGroups::none().expert;
    let matrices = ExpertMatrices {
        gate: None,
        up: made(4, [E, W, F]),
        down: made(5, [E, F, W]),
        activation: Activation::GeluTanh,
    };
    let (x, up, down) =
        (flat(made::<3>(1, [1, N, W])), flat(matrices.up.clone()), flat(matrices.down.clone()));
    let choices = scattered();
    let routes = TokenRoutes::of(&choices, K, E, &alone);
    let rows = feed(HOST, dispatch(made(1, [1, N, W]), &routes), matrices, routes.groups());
    let y = flat(combine(rows, made(2, [1, N, K]), &routes, [1, N]));
    let gates = flat(made::<3>(2, [1, N, K]));
    let gelu_tanh = |x: f32| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x.powi(3))).tanh());
    let expected = |token: usize, column: usize| -> f32 {
        let one = |choice: usize| {
            let Some(expert) = choices[choice] else { return 0.0 };
            let inner = |f: usize| {
                let sum: f32 = (0..W).map(|w| x[token * W + w] * up[(expert * W + w) * F + f]).sum();
                gelu_tanh(sum) * down[(expert * F + f) * W + column]
            };
            gates[choice] * (0..F).map(inner).sum::<f32>()
        };
        (token * K..(token + 1) * K).map(one).sum()
    };
    let wanted: Vec<_> = (0..N * W).map(|at| expected(at / W, at % W)).collect();
    close("result", &y, &wanted);
}

#[test]
fn experts_on_several_ranks_are_those_on_one() {
    for choices in [scattered(), crowded()] {
        for arithmetic in [REFERENCE, HOST] {
            let alone = pass(arithmetic, Activation::Swiglu, &choices, &ModelParallelGroups::none());
            for ranks in [2, 4] {
                let layout = Layout { expert: NonZeroU32::new(ranks).unwrap(), ..Layout::SINGLE };
                let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
                let groups = loopback::threads(ranks, Duration::from_secs(20));
                let all: Vec<_> = std::thread::scope(|scope| {
                    let spawn = |(rank, group): (u32, loopback::ThreadRank)| {
                        let choices = &choices;
                        scope.spawn(move || {
                            let mesh = Mesh::of(Box::new(group), &arrangement, Rank(rank)).unwrap();
                            let found = pass(arithmetic, Activation::Swiglu, choices, mesh.partners());
                            mesh.check().unwrap();
                            found
                        })
                    };
                    let threads: Vec<_> = (0..ranks).zip(groups).map(spawn).collect();
                    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
                });
                for (which, wanted) in alone.iter().enumerate() {
                    let found: Vec<_> = all.iter().flat_map(|rank| rank[which].clone()).collect();
                    close(&format!("{ranks} ranks, {which} (0 is the value)"), &found, wanted);
                }
            }
        }
    }
}

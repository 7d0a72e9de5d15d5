//! Router of a mixture of experts: its top-k gate chooses the experts of every token, and their gate
//! weights.
// Shapes in this file: b samples · t tokens of a sample · n = b·t · w hidden · e experts · k experts a token

use crate::network::{LayerContext, Weights};
use crate::ops::{self, Arithmetic};
use burn::tensor::{Int, Tensor, TensorData};
use dtrain_recipes::{Experts, Precision};

/// Returns the probability of every expert for every token, in f32 whatever the precision: rounding must
/// not decide near ties. `[n, e]`
pub(super) fn router_probabilities(
    layers: &LayerContext,
    weights: &Weights<'_>,
    seen: Tensor<3>,
) -> Tensor<2> {
    let arithmetic = Arithmetic { precision: Precision::F32, ..layers.arithmetic };
    let router = vec![weights.factor("router.weight")];
    let scores: Tensor<2> = ops::project(arithmetic, seen, router, Vec::new(), None).flatten(0, 1);
    // Burn's softmax has other bits without autodiff, and recomputation must choose the same experts.
    let largest = scores.clone().inner().max_dim(1);
    let largest = if scores.is_autodiff() { largest.autodiff() } else { largest };
    let powers = (scores - largest).exp();
    powers.clone() / powers.sum_dim(1)
}

/// Returns the `k` most likely experts of every token, most likely first; the first of equally likely
/// ones. `[n, e]` → `[n · k]`
pub(super) fn top_k_experts(probabilities: &[f32], experts: &Experts) -> Vec<usize> {
    let mut chosen = Vec::new();
    for row in probabilities.chunks(experts.count as usize) {
        let begin = chosen.len();
        for _ in 0..experts.per_token {
            let is_free = |expert: &usize| !chosen[begin..].contains(expert);
            let larger = |a: usize, b: usize| if row[b] > row[a] { b } else { a };
            let best = (0..row.len()).filter(is_free).reduce(larger);
            chosen.push(best.expect("a token passes no more experts than there are"));
        }
    }
    chosen
}

/// Returns the gate weights of each token's experts: their probabilities, scaled to sum to one if a token
/// has several, unless the model takes them as they are. `[n, k]`
pub(super) fn gate_weights(probabilities: &Tensor<2>, chosen: &[usize], experts: &Experts) -> Tensor<2> {
    let per_token = experts.per_token as usize;
    let places: Vec<_> =
        chosen.iter().map(|expert| i64::try_from(*expert).expect("experts are few")).collect();
    let shape = [chosen.len() / per_token, per_token];
    let places = Tensor::<2, Int>::from_data(TensorData::new(places, shape), &probabilities.device());
    let picked = probabilities.clone().gather(1, places);
    if per_token == 1 || experts.raw_gates { picked } else { picked.clone() / picked.sum_dim(1) }
}

/// Replaces choices beyond the capacity by `None`: an expert takes the first tokens of every sequence
/// that choose it.
pub(super) fn within_capacity(chosen: &[usize], experts: &Experts, length: usize) -> Vec<Option<usize>> {
    let most = experts.most(length);
    let sequences = chosen.chunks(length * experts.per_token as usize);
    let kept = sequences.flat_map(|chosen| {
        let mut taken = vec![0; experts.count as usize];
        chosen.iter().map(move |expert| {
            taken[*expert] += 1;
            (taken[*expert] <= most).then_some(*expert)
        })
    });
    kept.collect()
}

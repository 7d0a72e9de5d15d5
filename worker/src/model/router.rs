//! Router of a mixture of experts: the experts that compute each token, and their weights.
// Shapes in this file: n tokens · w hidden · e experts · k experts a token

use super::{LayerContext, Weights};
use crate::ops::{self, Arithmetic};
use burn::tensor::{Int, Tensor, TensorData};
use dtrain_recipes::{Experts, Precision};

/// Returns the probability of every expert for every token, in f32 for any precision: near ties must not be
/// decided by rounding. `[n, e]`
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

/// Returns the experts of every token, most likely first; of equally likely ones the first. `[n, e]` → `[n ·
/// k]`
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

/// Returns the gate weights of each token's experts: their probabilities, scaled to sum to one if there are
/// several. `[n, k]`
pub(super) fn gate_weights(probabilities: &Tensor<2>, chosen: &[usize], per_token: usize) -> Tensor<2> {
    let places: Vec<_> =
        chosen.iter().map(|expert| i64::try_from(*expert).expect("experts are few")).collect();
    let shape = [chosen.len() / per_token, per_token];
    let places = Tensor::<2, Int>::from_data(TensorData::new(places, shape), &probabilities.device());
    let picked = probabilities.clone().gather(1, places);
    if per_token == 1 { picked } else { picked.clone() / picked.sum_dim(1) }
}

/// Drops choices beyond the experts' capacity: of every sequence, an expert takes the first choices. `None`
/// is a dropped one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    const TWO_OF_FOUR: Experts = Experts { balance: 0.5, ..Experts::new(4, 2) };

    fn tensor<const D: usize>(values: &[f32], shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &Device::flex())
    }

    fn flat<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().try_to_vec().unwrap()
    }

    #[test]
    fn the_likeliest_experts_are_chosen_and_of_equal_ones_the_first() {
        let probabilities = [0.1, 0.4, 0.2, 0.3, 0.25, 0.25, 0.25, 0.25, 0.1, 0.2, 0.5, 0.2];
        assert_eq!(top_k_experts(&probabilities, &TWO_OF_FOUR), [1, 3, 0, 1, 2, 1]);
    }

    #[test]
    fn gates_sum_to_one_unless_there_is_one() {
        let probabilities = tensor(&[0.1, 0.4, 0.2, 0.3, 0.25, 0.25, 0.25, 0.25], [2, 4]);
        let both = flat(gate_weights(&probabilities, &[1, 3, 0, 1], 2));
        assert!(
            both.iter().zip([4.0 / 7.0, 3.0 / 7.0, 0.5, 0.5]).all(|(f, w)| (f - w).abs() < 1e-6),
            "{both:?}"
        );
        assert_eq!(flat(gate_weights(&probabilities, &[1, 0], 1)), [0.4, 0.25]);
    }

    #[test]
    fn an_expert_takes_the_first_tokens_of_each_sequence() {
        // Two sequences of four tokens; an even share is two choices of each expert.
        let chosen = [0, 1, 0, 2, 0, 1, 0, 1, 3, 0, 3, 1, 3, 2, 2, 3];
        let at = |capacity| {
            let kept = within_capacity(&chosen, &Experts { capacity, ..TWO_OF_FOUR }, 4);
            kept.iter().map(|kept| kept.map_or(9, |expert| expert)).collect::<Vec<_>>()
        };
        assert_eq!(at(None), chosen);
        assert_eq!(at(Some(2.0)), chosen);
        assert_eq!(at(Some(1.0)), [0, 1, 0, 2, 9, 1, 9, 9, 3, 0, 3, 1, 9, 2, 2, 9]);
        // Rounded up, and never nothing.
        assert_eq!(at(Some(1.3)), [0, 1, 0, 2, 0, 1, 9, 1, 3, 0, 3, 1, 3, 2, 2, 9]);
        assert_eq!(at(Some(0.1)), [0, 1, 9, 2, 9, 9, 9, 9, 3, 0, 9, 1, 9, 2, 9, 9]);
    }
}

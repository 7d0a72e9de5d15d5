//! Mixture of experts in place of a feed-forward layer (Shazeer et al. 2017; dropless, with top-k
//! renormalised, as Mixtral of Jiang et al. 2024).
//!
//! Everything that depends on more than one token is computed over whole sequences: so neither
//! micro-batches nor replicas change the training.
// Shapes in this file: b samples · t tokens of a sample · n = b·t · w hidden · e experts · k experts a token

use super::router::{gate_weights, router_probabilities, top_k_experts, within_capacity};
use super::{Initializer, LayerContext, ParameterSpec, Weights};
use crate::mesh::ModelParallelGroups;
use crate::network::tensor_parallel;
use crate::ops::collective::copy_to;
use crate::ops::{self, ExpertMatrices, TokenRoutes};
use burn::tensor::{Tensor, TensorData};
use dtrain_recipes::{Activation, Decoder, Experts};

/// Returns the parameters of the experts of one block and of their router; `residual` is the deviation of
/// matrices that add to the residual stream.
pub(crate) fn specs(
    decoder: &Decoder,
    experts: &Experts,
    prefix: &str,
    deviation: f64,
    residual: f64,
) -> Vec<ParameterSpec> {
    let [w, f, e] = [decoder.hidden, decoder.ffn, experts.count].map(|n| n as usize);
    let spec = |name, shape: &[usize], deviation| {
        ParameterSpec::new(prefix, name, shape, Initializer::Normal(deviation))
    };
    let mut specs = vec![spec("router.weight", &[w, e], deviation)];
    if decoder.activation == Activation::Swiglu {
        specs.push(spec("experts.gate.weight", &[e, w, f], deviation));
    }
    specs.push(spec("experts.up.weight", &[e, w, f], deviation));
    specs.push(spec("experts.down.weight", &[e, f, w], residual));
    specs
}

/// Computes the experts of one block: the weighted outputs of each token's experts, plus `residual`.
/// `normed` and `residual` are `[b, t, w]`.
///
/// Every tensor-parallel rank routes every token in the same way, and has a part of each expert's matrices:
/// so the gradient that reaches the gates is a partial sum. In sequence mode it may stay one, as the
/// gradients of replicated parameters are summed in the end; otherwise each rank needs the full sum for its
/// own copy of the router.
pub(crate) fn feed_forward(
    layers: &LayerContext,
    decoder: &Decoder,
    experts: &Experts,
    weights: &Weights<'_>,
    normed: Tensor<3>,
    residual: Tensor<3>,
) -> (Tensor<3>, Option<Tensor<1>>) {
    let partners = &layers.partners;
    let per_token = experts.per_token as usize;
    let entered = tensor_parallel::enter(partners, normed.clone());
    let seen = if partners.sequence { entered.clone() } else { normed };
    let [b, t, _] = seen.dims();
    let probabilities = router_probabilities(layers, weights, seen);
    let values: Vec<f32> = probabilities.to_data().try_to_vec().expect("the router computes in f32");
    let chosen = top_k_experts(&values, experts);
    let gates = gate_weights(&probabilities, &chosen, per_token).unsqueeze();
    let gates = if partners.sequence { gates } else { copy_to(gates, &partners.tensor) };
    let kept = within_capacity(&chosen, experts, t);
    let routes = TokenRoutes::of(&kept, per_token, experts.count as usize, &partners.expert);
    let matrices = ExpertMatrices {
        gate: weights.find("experts.gate.weight"),
        up: weights.get("experts.up.weight"),
        down: weights.get("experts.down.weight"),
        activation: decoder.activation,
    };
    let rows = ops::dispatch(entered, &routes);
    let rows = ops::feed(layers.arithmetic, rows, matrices, routes.groups());
    let partial = ops::combine(rows, gates, &routes, [b, t]);
    let y = tensor_parallel::leave(partners, partial, None, Some(residual));
    (y, load_balance_loss(&probabilities, &chosen, experts, partners, [b, t]))
}

/// Returns the load-balance loss of this rank's tokens, which is added to their mean cross-entropy
/// (DeepSeek-AI 2024, for each sequence): the sum over the experts of the share of choices times the mean
/// probability, times their number. It is smallest, the weight itself, if every expert has as many tokens.
/// `None` if no gradient is needed.
///
/// If ranks hold parts of a sequence, they sum the choices; each adds for its own tokens, so that the mean
/// over these ranks is that of whole sequences. In sequence mode all ranks have all tokens, and each adds
/// its share.
///
/// Counted in `planner/src/step/traffic/model_parallel.rs`, `experts`.
fn load_balance_loss(
    probabilities: &Tensor<2>,
    chosen: &[usize],
    experts: &Experts,
    partners: &ModelParallelGroups,
    [b, t]: [usize; 2],
) -> Option<Tensor<1>> {
    let (count, per_token) = (experts.count as usize, experts.per_token as usize);
    if experts.balance <= 0.0 || !probabilities.is_tracked() {
        return None;
    }
    let mut shares = vec![0.0; b * count];
    for (choice, expert) in chosen.iter().enumerate() {
        shares[choice / (t * per_token) * count + expert] += 1.0;
    }
    partners.context.all_reduce(&mut shares);
    let copies = if partners.sequence { partners.tensor.size() } else { 1 };
    let choices = (t * per_token) as f64 * f64::from(partners.context.size());
    let factor = experts.balance * count as f64 / choices / (b * t) as f64 / f64::from(copies);
    ops::kernels::scale(&mut shares, factor as f32);
    let shares = Tensor::<3>::from_data(TensorData::new(shares, [b, 1, count]), &probabilities.device());
    Some((probabilities.clone().reshape([b, t, count]) * shares).sum())
}

#[cfg(test)]
mod tests;

//! Mixture of experts in place of a feed-forward layer (Shazeer et al. 2017; dropless, with top-k
//! renormalized, as in Mixtral by Jiang et al. 2024).
//!
//! Everything that depends on more than one token is computed over whole sequences: so neither
//! micro-batches nor replicas change the training.
// Shapes in this file: b samples · t tokens of a sample · n = b·t · w hidden · e experts · k experts a token

mod load_balancing;
mod router;

#[cfg(test)]
mod tests;

use super::{ForwardMode, Initializer, LayerContext, ParameterSpec, Weights};
use crate::network::tensor_parallel;
use crate::ops::collective::copy_to;
use crate::ops::{self, ExpertMatrices, TokenRoutes};
use burn::tensor::{Tensor, activation};
use dtrain_recipes::{Activation, Decoder, Experts};
use load_balancing::load_balancing_loss;
use router::{gate_weights, router_probabilities, top_k_experts, within_capacity};

/// Returns the parameters of one block's experts and their router; `residual` is the initial standard
/// deviation of matrices that add to the residual stream, `deviation` that of others.
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
    if decoder.activation.is_gated() {
        specs.push(spec("experts.gate.weight", &[e, w, f], deviation));
    }
    specs.push(spec("experts.up.weight", &[e, w, f], deviation));
    specs.push(spec("experts.down.weight", &[e, f, w], residual));
    if let Some(shared) = experts.shared_ffn {
        let shared = shared as usize;
        if decoder.activation.is_gated() {
            specs.push(spec("shared.gate.weight", &[w, shared], deviation));
        }
        specs.push(spec("shared.up.weight", &[w, shared], deviation));
        specs.push(spec("shared.down.weight", &[shared, w], residual));
        if experts.shared_gate {
            specs.push(spec("shared_gate.weight", &[w, 1], deviation));
        }
    }
    specs
}

/// Computes the experts of one block: the weighted outputs of each token's experts, and of the shared ones, plus
/// `residual` if it is given. `normed` and `residual` are `[b, t, w]`. Also returns the load-balancing loss.
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
    residual: Option<Tensor<3>>,
) -> (Tensor<3>, Option<Tensor<1>>) {
    let partners = &layers.partners;
    let per_token = experts.per_token as usize;
    let entered = tensor_parallel::enter(partners, normed.clone());
    let residual = match experts.shared_ffn {
        Some(_) => Some(shared(layers, decoder, experts, weights, normed.clone(), residual)),
        None => residual,
    };
    let seen = if partners.sequence { entered.clone() } else { normed };
    let [b, t, _] = seen.dims();
    let probabilities = router_probabilities(layers, weights, seen);
    let values: Vec<f32> = probabilities.to_data().try_to_vec().expect("the router computes in f32");
    let chosen = top_k_experts(&values, experts);
    let gates = gate_weights(&probabilities, &chosen, experts).unsqueeze();
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
    let y = tensor_parallel::leave(partners, partial, None, residual);
    let penalty = match weights.mode() {
        ForwardMode::Train => load_balancing_loss(&probabilities, &chosen, experts, partners, [b, t]),
        ForwardMode::Evaluate => None,
    };
    (y, penalty)
}

/// Computes the shared experts, which every token passes through, and adds `residual` if it is given. `[b, t, w]` →
/// `[b, t, w]`
fn shared(
    layers: &LayerContext,
    decoder: &Decoder,
    experts: &Experts,
    weights: &Weights<'_>,
    normed: Tensor<3>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let arithmetic = layers.arithmetic;
    let column = |names: &[&str]| layers.column(weights, names, normed.clone(), None);
    let wide = match decoder.activation {
        Activation::Swiglu => ops::swiglu(arithmetic, column(&["shared.gate", "shared.up"])),
        Activation::Geglu => ops::geglu(arithmetic, column(&["shared.gate", "shared.up"])),
        Activation::Gelu => ops::gelu(arithmetic, column(&["shared.up"])),
        Activation::GeluTanh => ops::gelu_tanh(arithmetic, column(&["shared.up"])),
    };
    if !experts.shared_gate {
        return layers.row(weights, "shared.down", wide, residual, None);
    }
    let y = layers.row(weights, "shared.down", wide, None, None);
    let gate = vec![weights.factor("shared_gate.weight")];
    let gate = activation::sigmoid(ops::project(arithmetic, normed, gate, Vec::new(), None));
    let y = y * gate;
    match residual {
        Some(residual) => residual + y,
        None => y,
    }
}

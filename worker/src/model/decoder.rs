//! Causal transformers of the GPT-2 and the Llama family.
//!
//! Pre-norm blocks: `x + attention(norm(x))`, then `x + ffn(norm(x))`, or experts in place of `ffn`.
// Shapes in this file: b samples · t tokens · w hidden · d width of one head

use super::{Initial, Network, Output, Part, Spec, Weights, experts};
use crate::ops::{self, Measured, Rotary, Share};
use crate::parallel::{Peers, context, tensor};
use crate::stage::Samples;
use burn::tensor::Tensor;
use dtrain_recipes::{Activation, Decoder, Norm, Positions};

/// Standard deviation of embeddings and linear layers at the start (GPT-2).
const DEVIATION: f64 = 0.02;
/// Added to the variance by both norms.
const EPSILON: f32 = 1e-5;

pub(crate) fn specs(decoder: &Decoder, part: Part) -> Vec<Spec> {
    match part {
        Part::Embedding => embedding_specs(decoder),
        Part::Block(index) => block_specs(decoder, &format!("blocks.{index}.")),
        Part::Head => head_specs(decoder),
    }
}

fn embedding_specs(decoder: &Decoder) -> Vec<Spec> {
    let [w, v, t] = [decoder.hidden, decoder.vocab, decoder.context].map(|n| n as usize);
    let mut specs = vec![Spec::new("", "embedding.weight", &[v, w], Initial::Normal(DEVIATION))];
    match decoder.positions {
        Positions::Learned => {
            specs.push(Spec::new("", "positions.weight", &[t, w], Initial::Normal(DEVIATION)));
        }
        Positions::Rotary => {}
    }
    specs
}

fn block_specs(decoder: &Decoder, prefix: &str) -> Vec<Spec> {
    let [w, f] = [decoder.hidden, decoder.ffn].map(|n| n as usize);
    let [q, kv] = [decoder.heads, decoder.kv_heads].map(|heads| (heads * decoder.head_width()) as usize);
    // Both outputs of a block add to the residual stream; its variance grows with 2 · layers of them.
    let residual = DEVIATION / (2.0 * f64::from(decoder.layers)).sqrt();
    let mut specs = norm_specs(decoder, prefix, "attention_norm");
    let linear = |specs: &mut Vec<Spec>, name: &str, shape: [usize; 2], deviation| {
        specs.push(Spec::new(prefix, &format!("{name}.weight"), &shape, Initial::Normal(deviation)));
        if decoder.bias {
            specs.push(Spec::new(prefix, &format!("{name}.bias"), &shape[1..], Initial::Zeros));
        }
    };
    linear(&mut specs, "attention.q", [w, q], DEVIATION);
    linear(&mut specs, "attention.k", [w, kv], DEVIATION);
    linear(&mut specs, "attention.v", [w, kv], DEVIATION);
    linear(&mut specs, "attention.out", [q, w], residual);
    specs.extend(norm_specs(decoder, prefix, "ffn_norm"));
    if let Some(all) = &decoder.experts {
        specs.extend(experts::specs(decoder, all, prefix, DEVIATION, residual));
        return specs;
    }
    if decoder.activation == Activation::Swiglu {
        linear(&mut specs, "ffn.gate", [w, f], DEVIATION);
    }
    linear(&mut specs, "ffn.up", [w, f], DEVIATION);
    linear(&mut specs, "ffn.down", [f, w], residual);
    specs
}

fn head_specs(decoder: &Decoder) -> Vec<Spec> {
    let [w, v] = [decoder.hidden, decoder.vocab].map(|n| n as usize);
    let mut specs = norm_specs(decoder, "", "norm");
    specs.push(if decoder.tied {
        Spec::new("", "embedding.weight", &[v, w], Initial::Normal(DEVIATION))
    } else {
        Spec::new("", "head.weight", &[w, v], Initial::Normal(DEVIATION))
    });
    specs
}

fn norm_specs(decoder: &Decoder, prefix: &str, name: &str) -> Vec<Spec> {
    let shape = [decoder.hidden as usize];
    let mut specs = vec![Spec::new(prefix, &format!("{name}.weight"), &shape, Initial::Ones)];
    if decoder.norm == Norm::Layer {
        specs.push(Spec::new(prefix, &format!("{name}.bias"), &shape, Initial::Zeros));
    }
    specs
}

/// The table of angles of the positions that this rank holds, when positions are rotary.
pub(crate) fn rotary(decoder: &Decoder, context: &Peers) -> Option<Rotary> {
    match decoder.positions {
        Positions::Learned => None,
        Positions::Rotary => {
            let positions = context::pieces(decoder.context as usize, context).into_iter().flatten();
            Some(Rotary::new(positions, decoder.head_width() as usize, decoder.rotary_base()))
        }
    }
}

/// Looks tokens up. `[b, t, w]`
pub(crate) fn embed(network: &Network, weights: &Weights<'_>, samples: &Samples<'_>) -> Tensor<3> {
    let Samples::Tokens { inputs, samples, length, .. } = samples else {
        panic!("a decoder trains on tokens, not on rows");
    };
    let (arithmetic, partners) = (network.arithmetic, &network.partners);
    let (table, share) = (weights.get("embedding.weight"), vocabulary(weights));
    let found = ops::embed(arithmetic, table, share, inputs, [*samples, *length]);
    let x = tensor::leave(partners, found, None, None);
    match weights.find("positions.weight") {
        Some(table) => {
            let context = &partners.context;
            let whole = length * context.size() as usize;
            let places: Vec<_> = context::pieces(whole, context).into_iter().flatten().collect();
            ops::add_positions(arithmetic, x, table, tensor::part_of(partners, &places))
        }
        None => x,
    }
}

/// Which part of the vocabulary this rank looks up, or scores.
fn vocabulary(weights: &Weights<'_>) -> Share {
    let share = weights.share("head.weight", 1).or_else(|| weights.share("embedding.weight", 0));
    share.expect("a part that knows tokens has a weight for each")
}

/// One block. `[b, t, w]` → `[b, t, w]`
pub(crate) fn block(network: &Network, decoder: &Decoder, weights: &Weights<'_>, x: Tensor<3>) -> Output {
    let x = attention(network, decoder, weights, x);
    let normed = norm(network, decoder, weights, "ffn_norm", x.clone());
    match &decoder.experts {
        Some(all) => experts::feed_forward(network, decoder, all, weights, normed, x),
        None => Output::Activation(feed_forward(network, decoder, weights, normed, x), None),
    }
}

fn attention(network: &Network, decoder: &Decoder, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<3> {
    let arithmetic = network.arithmetic;
    let width = decoder.head_width() as usize;
    // Whole heads are held: as many as the weights have columns for.
    let held = |name| weights.shape(name)[1] / width;
    let heads = ops::Heads { query: held("attention.q.weight"), key: held("attention.k.weight"), width };
    let normed = norm(network, decoder, weights, "attention_norm", x.clone());
    let mut packed = tensor::column(network, weights, &["attention.q", "attention.k", "attention.v"], normed);
    if let Some(table) = &network.rotary {
        packed = ops::rotary(arithmetic, packed, heads, table);
    }
    let mixed = context::attention(arithmetic, packed, heads, &network.partners.context);
    tensor::row(network, weights, "attention.out", mixed, x)
}

fn feed_forward(
    network: &Network,
    decoder: &Decoder,
    weights: &Weights<'_>,
    normed: Tensor<3>,
    residual: Tensor<3>,
) -> Tensor<3> {
    let arithmetic = network.arithmetic;
    let wide = match decoder.activation {
        Activation::Swiglu => {
            ops::swiglu(arithmetic, tensor::column(network, weights, &["ffn.gate", "ffn.up"], normed))
        }
        Activation::Gelu => ops::gelu(arithmetic, tensor::column(network, weights, &["ffn.up"], normed)),
        Activation::Relu => ops::relu(tensor::column(network, weights, &["ffn.up"], normed)),
    };
    tensor::row(network, weights, "ffn.down", wide, residual)
}

/// Scores of the next token, for the part of the vocabulary that this rank holds. `[b, t, w]` → `[b·t, vocab]`
pub(crate) fn logits(network: &Network, decoder: &Decoder, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
    let x = tensor::enter(&network.partners, norm(network, decoder, weights, "norm", x));
    let weight = match weights.find_factor("head.weight") {
        Some(head) => head,
        None => weights.factor("embedding.weight").transpose(),
    };
    ops::project(network.arithmetic, x, vec![weight], Vec::new(), None).flatten(0, 1)
}

/// Mean cross-entropy over the whole vocabulary, from the scores of [`logits`].
pub(crate) fn loss(
    network: &Network,
    weights: &Weights<'_>,
    logits: Tensor<2>,
    targets: &[u32],
) -> (Tensor<1>, Measured) {
    tensor::cross_entropy(network, logits, targets, vocabulary(weights))
}

fn norm(network: &Network, decoder: &Decoder, weights: &Weights<'_>, name: &str, x: Tensor<3>) -> Tensor<3> {
    let weight = weights.get(&format!("{name}.weight"));
    match decoder.norm {
        Norm::Layer => {
            let bias = weights.get(&format!("{name}.bias"));
            ops::layer_norm(network.arithmetic, x, weight, bias, EPSILON)
        }
        Norm::Rms => ops::rms_norm(network.arithmetic, x, weight, EPSILON),
    }
}

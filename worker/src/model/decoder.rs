//! Causal transformers of the families in `protocol/src/hugging_face`, with LoRA adapters if the recipe has them.
//!
//! Pre-norm blocks: `x + attention(norm(x))`, then `x + ffn(norm(x))`, or experts in place of `ffn`. With post-norms
//! the outputs of `attention` and `ffn` pass a norm too.
// Shapes in this file: b samples · t tokens · w hidden · d width of one head

use super::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights, experts};
use crate::network::{self, ModelInput, RotaryAngles};
use crate::ops::{self, DeferredLossFigures, VocabRange};
use burn::tensor::Tensor;
use dtrain_recipes::{Activation, Decoder, Norm, Positions};

/// Initial standard deviation of embeddings and linear layers, as in GPT-2.
const DEVIATION: f64 = 0.02;

impl NeuralNetwork for Decoder {
    fn blocks(&self) -> u32 {
        self.layers
    }

    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec> {
        let specs = match part {
            ModelPart::First => embedding_specs(self),
            ModelPart::Block(index) => block_specs(self, &format!("blocks.{index}.")),
            ModelPart::Head => head_specs(self),
        };
        let Some(lora) = &self.lora else { return specs };
        let mut specs: Vec<_> = specs.into_iter().map(ParameterSpec::frozen).collect();
        if let ModelPart::Block(index) = part {
            specs.extend(network::lora::adapter_specs(self, lora, &format!("blocks.{index}.")));
        }
        specs
    }

    /// Looks tokens up in the embedding, and adds learned positions if there are any. `[b, t, w]`
    fn first(&self, layers: &LayerContext, weights: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3> {
        let ModelInput::Tokens { inputs, samples, length, .. } = samples else {
            panic!("a decoder trains on tokens, not on rows");
        };
        let (table, share) = (weights.get("embedding.weight"), vocabulary(weights));
        let x = layers.look_up(table, share, inputs, [*samples, *length]);
        let x = if self.scaled_embedding { x * f64::from(self.hidden).sqrt() } else { x };
        match weights.find("positions.weight") {
            Some(table) => layers.add_positions(x, table, *length),
            None => x,
        }
    }

    /// Computes one block: attention, then a feed-forward layer or experts. `[b, t, w]` → `[b, t, w]`
    fn block(
        &self,
        layers: &LayerContext,
        index: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let x = add_sub_layer(layers, self, weights, "attention_post_norm", x.clone(), |residual| {
            attention(layers, self, index, weights, x, residual)
        });
        let normed = norm(layers, self, weights, "ffn_norm", x.clone());
        let mut penalty = None;
        let y = add_sub_layer(layers, self, weights, "ffn_post_norm", x, |residual| match &self.experts {
            Some(all) => {
                let (y, balance) = experts::feed_forward(layers, self, all, weights, normed, residual);
                penalty = balance;
                y
            }
            None => feed_forward(layers, self, weights, normed, residual),
        });
        (y, penalty)
    }

    /// Computes the logits of the next token for this rank's part of the vocabulary. `[b, t, w]` → `[b·t,
    /// vocab]`
    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
        let weight = match weights.find_factor("head.weight") {
            Some(head) => head,
            None => weights.factor("embedding.weight").transpose(),
        };
        layers.classify(weight, norm(layers, self, weights, "norm", x))
    }

    /// Computes the mean cross-entropy over the whole vocabulary, from the scores of this rank's part of
    /// it; in training with the z-loss.
    fn loss(
        &self,
        layers: &LayerContext,
        weights: &Weights<'_>,
        scores: Tensor<2>,
        targets: &[u32],
    ) -> (Tensor<1>, DeferredLossFigures) {
        layers.cross_entropy(scores, targets, vocabulary(weights), weights.mode())
    }
}

/// Returns `x` plus the output of `sub_layer`, which passes the norm `post_norm` before if the model has
/// post-norms; otherwise `sub_layer` adds `x` itself, in one operation with its last layer.
fn add_sub_layer(
    layers: &LayerContext,
    decoder: &Decoder,
    weights: &Weights<'_>,
    post_norm: &str,
    x: Tensor<3>,
    sub_layer: impl FnOnce(Option<Tensor<3>>) -> Tensor<3>,
) -> Tensor<3> {
    if !decoder.post_norm {
        return sub_layer(Some(x));
    }
    x + norm(layers, decoder, weights, post_norm, sub_layer(None))
}

fn embedding_specs(decoder: &Decoder) -> Vec<ParameterSpec> {
    let [w, v, t] = [decoder.hidden, decoder.vocab, decoder.context].map(|n| n as usize);
    let mut specs = vec![ParameterSpec::new("", "embedding.weight", &[v, w], Initializer::Normal(DEVIATION))];
    match decoder.positions {
        Positions::Learned => {
            specs.push(ParameterSpec::new("", "positions.weight", &[t, w], Initializer::Normal(DEVIATION)));
        }
        Positions::Rotary => {}
    }
    specs
}

fn block_specs(decoder: &Decoder, prefix: &str) -> Vec<ParameterSpec> {
    let [w, f] = [decoder.hidden, decoder.ffn].map(|n| n as usize);
    let [q, kv] = [decoder.heads, decoder.kv_heads].map(|heads| (heads * decoder.head_width()) as usize);
    // Both outputs of a block add to the residual stream; its variance grows with 2 · layers of them.
    let residual = DEVIATION / (2.0 * f64::from(decoder.layers)).sqrt();
    let mut specs = norm_specs(decoder, prefix, "attention_norm");
    let linear = |specs: &mut Vec<ParameterSpec>, name: &str, shape: [usize; 2], deviation, has_bias| {
        specs.push(ParameterSpec::new(
            prefix,
            &format!("{name}.weight"),
            &shape,
            Initializer::Normal(deviation),
        ));
        if has_bias {
            specs.push(ParameterSpec::new(prefix, &format!("{name}.bias"), &shape[1..], Initializer::Zeros));
        }
    };
    linear(&mut specs, "attention.q", [w, q], DEVIATION, decoder.qkv_bias());
    linear(&mut specs, "attention.k", [w, kv], DEVIATION, decoder.qkv_bias());
    linear(&mut specs, "attention.v", [w, kv], DEVIATION, decoder.qkv_bias());
    linear(&mut specs, "attention.out", [q, w], residual, decoder.bias);
    if decoder.qk_norm {
        let width = [decoder.head_width() as usize];
        specs.extend(
            ["attention.q_norm.weight", "attention.k_norm.weight"]
                .map(|name| ParameterSpec::new(prefix, name, &width, Initializer::Ones)),
        );
    }
    specs.extend(norm_specs(decoder, prefix, "ffn_norm"));
    if decoder.post_norm {
        specs.extend(norm_specs(decoder, prefix, "attention_post_norm"));
        specs.extend(norm_specs(decoder, prefix, "ffn_post_norm"));
    }
    if let Some(all) = &decoder.experts {
        specs.extend(experts::specs(decoder, all, prefix, DEVIATION, residual));
        return specs;
    }
    if decoder.activation.is_gated() {
        linear(&mut specs, "ffn.gate", [w, f], DEVIATION, decoder.bias);
    }
    linear(&mut specs, "ffn.up", [w, f], DEVIATION, decoder.bias);
    linear(&mut specs, "ffn.down", [f, w], residual, decoder.bias);
    specs
}

fn head_specs(decoder: &Decoder) -> Vec<ParameterSpec> {
    let [w, v] = [decoder.hidden, decoder.vocab].map(|n| n as usize);
    let mut specs = norm_specs(decoder, "", "norm");
    specs.push(if decoder.tied {
        ParameterSpec::new("", "embedding.weight", &[v, w], Initializer::Normal(DEVIATION))
    } else {
        ParameterSpec::new("", "head.weight", &[w, v], Initializer::Normal(DEVIATION))
    });
    specs
}

fn norm_specs(decoder: &Decoder, prefix: &str, name: &str) -> Vec<ParameterSpec> {
    let shape = [decoder.hidden as usize];
    let mut specs = vec![ParameterSpec::new(prefix, &format!("{name}.weight"), &shape, Initializer::Ones)];
    if decoder.norm == Norm::Layer {
        specs.push(ParameterSpec::new(prefix, &format!("{name}.bias"), &shape, Initializer::Zeros));
    }
    specs
}

/// Returns the range of the vocabulary that this rank looks up, or scores.
fn vocabulary(weights: &Weights<'_>) -> VocabRange {
    let share = weights.share("head.weight", 1).or_else(|| weights.share("embedding.weight", 0));
    share.expect("a part that knows tokens has a weight for each")
}

/// Computes the attention of the block `index`, and adds `residual` if it is given.
fn attention(
    layers: &LayerContext,
    decoder: &Decoder,
    index: u32,
    weights: &Weights<'_>,
    x: Tensor<3>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let width = decoder.head_width() as usize;
    // Whole heads are held: as many as the weights have columns for.
    let held = |name| weights.shape(name)[1] / width;
    let heads =
        ops::AttentionHeads { query: held("attention.q.weight"), key: held("attention.k.weight"), width };
    let normed = norm(layers, decoder, weights, "attention_norm", x);
    let scale = decoder.lora.map(|lora| lora.scale());
    let mut packed = layers.column(weights, &["attention.q", "attention.k", "attention.v"], normed, scale);
    if decoder.qk_norm {
        let norms = ["attention.q_norm.weight", "attention.k_norm.weight"].map(|name| weights.get(name));
        let root = f64::from(decoder.head_width()).sqrt();
        let factor = decoder.attention_scale.map_or(1.0, |scale| scale * root);
        packed = layers.head_norms(packed, heads, norms, epsilon(decoder), factor);
    }
    let window = decoder.window.filter(|window| window.is_in(index));
    match decoder.positions {
        Positions::Learned => {}
        Positions::Rotary => {
            let local = window.and_then(|window| window.rotary_base);
            let angles = RotaryAngles {
                context: decoder.context as usize,
                base: local.unwrap_or_else(|| decoder.rotary_base()),
                scaling: decoder.rotary_scaling.filter(|_| local.is_none()),
                is_local: local.is_some(),
            };
            packed = layers.rotary(packed, heads, angles);
        }
    }
    let mixed = layers.attention(packed, heads, window.map(|window| window.tokens as usize));
    layers.row(weights, "attention.out", mixed, residual, scale)
}

/// Returns what norms add to a variance or a mean square.
fn epsilon(decoder: &Decoder) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "a small number, which needs no more digits")]
    let epsilon = decoder.norm_epsilon() as f32;
    epsilon
}

fn feed_forward(
    layers: &LayerContext,
    decoder: &Decoder,
    weights: &Weights<'_>,
    normed: Tensor<3>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let arithmetic = layers.arithmetic;
    let scale = decoder.lora.map(|lora| lora.scale());
    let column = |names: &[&str], x| layers.column(weights, names, x, scale);
    let wide = match decoder.activation {
        Activation::Swiglu => ops::swiglu(arithmetic, column(&["ffn.gate", "ffn.up"], normed)),
        Activation::Geglu => ops::geglu(arithmetic, column(&["ffn.gate", "ffn.up"], normed)),
        Activation::Gelu => ops::gelu(arithmetic, column(&["ffn.up"], normed)),
        Activation::GeluTanh => ops::gelu_tanh(arithmetic, column(&["ffn.up"], normed)),
    };
    layers.row(weights, "ffn.down", wide, residual, scale)
}

fn norm(
    layers: &LayerContext,
    decoder: &Decoder,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
) -> Tensor<3> {
    let weight = weights.get(&format!("{name}.weight"));
    let epsilon = epsilon(decoder);
    match decoder.norm {
        Norm::Layer => {
            let bias = weights.get(&format!("{name}.bias"));
            ops::layer_norm(layers.arithmetic, x, weight, bias, epsilon)
        }
        Norm::Rms => ops::rms_norm(layers.arithmetic, x, weight, epsilon),
    }
}

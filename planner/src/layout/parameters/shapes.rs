//! Shapes of the parameters that the worker declares, by kind of model and by its parts (embedding, block,
//! head).

use dtrain_recipes::{Cnn, Decoder, LatentAttention, Mlp, Norm, PartOutline, Positions};

/// Name (without the index of the block) and shape of a parameter.
pub(super) type NamedShape = (&'static str, Vec<u64>);

/// Returns the shapes of the parameters in one part of a custom network; none of them is sharded.
pub(super) fn custom_part(part: &PartOutline) -> Vec<NamedShape> {
    part.parameters.iter().map(|shape| ("own.", shape.clone())).collect()
}

/// Returns the shapes of the low-rank adapters of a decoder block.
pub(super) fn decoder_adapters(d: &Decoder) -> Vec<NamedShape> {
    let rank = u64::from(d.lora.map_or(0, |lora| lora.rank));
    let names = |layer| match layer {
        "attention.q" => ["attention.q.lora_a", "attention.q.lora_b"],
        "attention.k" => ["attention.k.lora_a", "attention.k.lora_b"],
        "attention.v" => ["attention.v.lora_a", "attention.v.lora_b"],
        "attention.out" => ["attention.out.lora_a", "attention.out.lora_b"],
        "ffn.gate" => ["ffn.gate.lora_a", "ffn.gate.lora_b"],
        "ffn.up" => ["ffn.up.lora_a", "ffn.up.lora_b"],
        _ => ["ffn.down.lora_a", "ffn.down.lora_b"],
    };
    let pair = |(layer, [input, output]): (&'static str, [u64; 2])| {
        let [a, b] = names(layer);
        [(a, vec![input, rank]), (b, vec![rank, output])]
    };
    d.adapted().into_iter().flat_map(pair).collect()
}

pub(super) fn decoder_embedding(d: &Decoder) -> Vec<NamedShape> {
    let [v, h, t] = [d.vocab, d.hidden, d.context].map(u64::from);
    let mut all = vec![("embedding.weight", vec![v, h])];
    if d.positions == Positions::Learned {
        all.push(("positions.weight", vec![t, h]));
    }
    all
}

/// Returns the shapes of the parameters in a decoder block; if `is_dense`, in one without experts that
/// precedes the blocks with experts.
pub(super) fn decoder_block(d: &Decoder, is_dense: bool) -> Vec<NamedShape> {
    let [h, f] = [d.hidden, if is_dense { d.dense_ffn() } else { d.ffn }].map(u64::from);
    let mut all = norm(d, d.hidden.into(), "attention_norm.weight", "attention_norm.bias");
    all.extend(norm(d, d.hidden.into(), "ffn_norm.weight", "ffn_norm.bias"));
    let mut linear = |weight, bias, shape: [u64; 2], has_bias| {
        all.push((weight, shape.to_vec()));
        if has_bias {
            all.push((bias, shape[1..].to_vec()));
        }
    };
    if d.latent.is_none() {
        let (q, k) = (d.query_width(), d.key_width());
        linear("attention.q.weight", "attention.q.bias", [h, q], d.qkv_bias());
        linear("attention.k.weight", "attention.k.bias", [h, k], d.qkv_bias());
        linear("attention.v.weight", "attention.v.bias", [h, k], d.qkv_bias());
        linear("attention.out.weight", "attention.out.bias", [q, h], d.bias);
    }
    if is_dense || d.experts.is_none() {
        if d.activation.is_gated() {
            linear("ffn.gate.weight", "ffn.gate.bias", [h, f], d.bias);
        }
        linear("ffn.up.weight", "ffn.up.bias", [h, f], d.bias);
        linear("ffn.down.weight", "ffn.down.bias", [f, h], d.bias);
    }
    if d.qk_norm {
        let width = vec![u64::from(d.head_width())];
        all.extend([("attention.q_norm.weight", width.clone()), ("attention.k_norm.weight", width)]);
    }
    if d.post_norm {
        all.extend(norm(d, d.hidden.into(), "attention_post_norm.weight", "attention_post_norm.bias"));
        all.extend(norm(d, d.hidden.into(), "ffn_post_norm.weight", "ffn_post_norm.bias"));
    }
    if let Some(latent) = d.latent {
        all.extend(latent_attention(d, latent));
    }
    if let Some(experts) = d.experts.filter(|_| !is_dense) {
        let e = u64::from(experts.count);
        all.push(("router.weight", vec![h, e]));
        if d.activation.is_gated() {
            all.push(("experts.gate.weight", vec![e, h, f]));
        }
        all.extend([("experts.up.weight", vec![e, h, f]), ("experts.down.weight", vec![e, f, h])]);
        if let Some(shared) = experts.shared_ffn.map(u64::from) {
            if d.activation.is_gated() {
                all.push(("shared.gate.weight", vec![h, shared]));
            }
            all.extend([("shared.up.weight", vec![h, shared]), ("shared.down.weight", vec![shared, h])]);
            if experts.shared_gate {
                all.push(("shared_gate.weight", vec![h, 1]));
            }
        }
    }
    all
}

/// Returns the shapes of the matrices in latent attention, and of the norms between them; the worker does not
/// train them.
fn latent_attention(d: &Decoder, latent: LatentAttention) -> Vec<NamedShape> {
    let [h, heads, width] = [d.hidden, d.heads, d.head_width()].map(u64::from);
    let [query, key_value, rotary, value] =
        [latent.query, latent.key_value, latent.rotary, latent.value].map(u64::from);
    let mut all = norm(d, query, "attention.q_norm.weight", "attention.q_norm.bias");
    all.extend(norm(d, key_value, "attention.kv_norm.weight", "attention.kv_norm.bias"));
    all.extend([
        ("attention.q_down.weight", vec![h, query]),
        ("attention.q_up.weight", vec![query, d.query_width()]),
        ("attention.kv_down.weight", vec![h, key_value + rotary]),
        ("attention.kv_up.weight", vec![key_value, heads * (width + value)]),
        ("attention.out.weight", vec![heads * value, h]),
    ]);
    all
}

/// Returns the shapes of a decoder's head, with its layers that predict further tokens, and those of a tied
/// embedding that it uses.
pub(super) fn decoder_head(d: &Decoder) -> (Vec<NamedShape>, Vec<NamedShape>) {
    let [v, h] = [d.vocab, d.hidden].map(u64::from);
    let mut own = norm(d, h, "norm.weight", "norm.bias");
    for _ in 0..d.mtp_layers {
        own.extend(decoder_block(d, false));
        own.push(("mtp.project.weight", vec![2 * h, h]));
        for (weight, bias) in [
            ("mtp.embedding_norm.weight", "mtp.embedding_norm.bias"),
            ("mtp.hidden_norm.weight", "mtp.hidden_norm.bias"),
            ("mtp.norm.weight", "mtp.norm.bias"),
        ] {
            own.extend(norm(d, h, weight, bias));
        }
    }
    if d.tied {
        return (own, vec![("embedding.weight", vec![v, h])]);
    }
    own.push(("head.weight", vec![h, v]));
    (own, Vec::new())
}

fn norm(d: &Decoder, width: u64, weight: &'static str, bias: &'static str) -> Vec<NamedShape> {
    let shape = vec![width];
    match d.norm {
        Norm::Layer => vec![(weight, shape.clone()), (bias, shape)],
        Norm::Rms => vec![(weight, shape)],
    }
}

pub(super) fn mlp_layer(m: &Mlp, layer: usize) -> Vec<NamedShape> {
    let widths = m.widths();
    let [input, output] = [widths[layer], widths[layer + 1]].map(u64::from);
    vec![("weight", vec![input, output]), ("bias", vec![output])]
}

pub(super) fn cnn_stem(c: &Cnn) -> Vec<NamedShape> {
    let [input, output] = [c.channels, c.stages[0]].map(u64::from);
    vec![
        ("conv.weight", vec![output, input, 3, 3]),
        ("norm.weight", vec![output]),
        ("norm.bias", vec![output]),
    ]
}

pub(super) fn cnn_block(c: &Cnn, block: u32) -> Vec<NamedShape> {
    let (stage, place) = ((block / c.blocks) as usize, block % c.blocks);
    let before = if place == 0 { stage.saturating_sub(1) } else { stage };
    let [input, output] = [c.stages[before], c.stages[stage]].map(u64::from);
    let mut all = vec![
        ("conv1.weight", vec![output, input, 3, 3]),
        ("conv2.weight", vec![output, output, 3, 3]),
        ("norm1.weight", vec![output]),
        ("norm1.bias", vec![output]),
        ("norm2.weight", vec![output]),
        ("norm2.bias", vec![output]),
    ];
    if place == 0 && stage > 0 {
        all.push(("project.weight", vec![output, input, 1, 1]));
    }
    all
}

pub(super) fn cnn_head(c: &Cnn) -> Vec<NamedShape> {
    let last = u64::from(c.stages.last().copied().unwrap_or(0));
    let classes = u64::from(c.classes);
    vec![("weight", vec![last, classes]), ("bias", vec![classes])]
}

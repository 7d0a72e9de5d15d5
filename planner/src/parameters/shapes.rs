//! The shapes that the worker declares, by model and by part of it.

use dtrain_recipes::{Activation, Cnn, Decoder, Mlp, Norm, Positions};

/// Name (without what only tells the block) and shape.
pub(super) type Parameter = (&'static str, Vec<u64>);

pub(super) fn decoder_embedding(d: &Decoder) -> Vec<Parameter> {
    let [v, h, t] = [d.vocab, d.hidden, d.context].map(u64::from);
    let mut all = vec![("embedding.weight", vec![v, h])];
    if d.positions == Positions::Learned {
        all.push(("positions.weight", vec![t, h]));
    }
    all
}

pub(super) fn decoder_block(d: &Decoder) -> Vec<Parameter> {
    let [h, f] = [d.hidden, d.ffn].map(u64::from);
    let k = u64::from(d.kv_heads) * u64::from(d.head_width());
    let mut all = norm(d, "attention_norm.weight", "attention_norm.bias");
    all.extend(norm(d, "ffn_norm.weight", "ffn_norm.bias"));
    let mut linear = |weight, bias, shape: [u64; 2]| {
        all.push((weight, shape.to_vec()));
        if d.bias {
            all.push((bias, shape[1..].to_vec()));
        }
    };
    linear("attention.q.weight", "attention.q.bias", [h, h]);
    linear("attention.k.weight", "attention.k.bias", [h, k]);
    linear("attention.v.weight", "attention.v.bias", [h, k]);
    linear("attention.out.weight", "attention.out.bias", [h, h]);
    if let Some(experts) = d.experts {
        let e = u64::from(experts.count);
        all.push(("router.weight", vec![h, e]));
        if d.activation == Activation::Swiglu {
            all.push(("experts.gate.weight", vec![e, h, f]));
        }
        all.extend([("experts.up.weight", vec![e, h, f]), ("experts.down.weight", vec![e, f, h])]);
        return all;
    }
    if d.activation == Activation::Swiglu {
        linear("ffn.gate.weight", "ffn.gate.bias", [h, f]);
    }
    linear("ffn.up.weight", "ffn.up.bias", [h, f]);
    linear("ffn.down.weight", "ffn.down.bias", [f, h]);
    all
}

/// What the head has of its own, and the embedding that it uses where it is tied.
pub(super) fn decoder_head(d: &Decoder) -> (Vec<Parameter>, Vec<Parameter>) {
    let [v, h] = [d.vocab, d.hidden].map(u64::from);
    let mut own = norm(d, "norm.weight", "norm.bias");
    if d.tied {
        return (own, vec![("embedding.weight", vec![v, h])]);
    }
    own.push(("head.weight", vec![h, v]));
    (own, Vec::new())
}

fn norm(d: &Decoder, weight: &'static str, bias: &'static str) -> Vec<Parameter> {
    let shape = vec![u64::from(d.hidden)];
    match d.norm {
        Norm::Layer => vec![(weight, shape.clone()), (bias, shape)],
        Norm::Rms => vec![(weight, shape)],
    }
}

pub(super) fn mlp_layer(m: &Mlp, layer: usize) -> Vec<Parameter> {
    let widths = m.widths();
    let [input, output] = [widths[layer], widths[layer + 1]].map(u64::from);
    vec![("weight", vec![input, output]), ("bias", vec![output])]
}

pub(super) fn cnn_stem(c: &Cnn) -> Vec<Parameter> {
    let [input, output] = [c.channels, c.stages[0]].map(u64::from);
    vec![
        ("conv.weight", vec![output, input, 3, 3]),
        ("norm.weight", vec![output]),
        ("norm.bias", vec![output]),
    ]
}

pub(super) fn cnn_block(c: &Cnn, block: u32) -> Vec<Parameter> {
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

pub(super) fn cnn_head(c: &Cnn) -> Vec<Parameter> {
    let last = u64::from(c.stages.last().copied().unwrap_or(0));
    let classes = u64::from(c.classes);
    vec![("weight", vec![last, classes]), ("bias", vec![classes])]
}

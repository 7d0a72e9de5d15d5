//! The largest tensor of a step: a device may refuse a tensor above a part of its memory, however much is
//! free.

use super::activations::factor_bytes;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{Bytes, Decoder, Model};

/// The largest tensor of a rank in a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LargestTensor {
    /// Description of the tensor in words.
    pub what: &'static str,
    /// Size of the tensor on one rank.
    pub bytes: Bytes,
}

/// Returns the largest tensor of any rank, for forward passes of `micro` samples.
pub(super) fn largest(model: &Model, arrangement: &Arrangement, micro: u64) -> LargestTensor {
    let all = match model {
        Model::Decoder(decoder) => of_decoder(decoder, arrangement, micro).to_vec(),
        Model::Mlp(mlp) => {
            let widths = mlp.widths();
            let matrices = widths.windows(2).map(|pair| u64::from(pair[0]) * u64::from(pair[1]));
            let widest = widths.iter().copied().max().unwrap_or(0);
            vec![
                ("the activations of a layer", 4 * micro * u64::from(widest)),
                ("the weights of a layer", 4 * matrices.max().unwrap_or(0)),
            ]
        }
        Model::Cnn(cnn) => {
            let pixels = u64::from(cnn.height) * u64::from(cnn.width);
            let plane =
                |(stage, channels): (usize, &u32)| (pixels >> (2 * stage.min(31))) * u64::from(*channels);
            let widest = cnn.stages.iter().enumerate().map(plane).max().unwrap_or(0);
            vec![("the activations of a convolution", 4 * micro * widest)]
        }
        Model::Custom(own) => {
            let parts = [&own.outline.first, &own.outline.head].into_iter().chain(&own.outline.blocks);
            let widest = parts.map(|part| part.output[0].saturating_mul(part.output[1])).max().unwrap_or(0);
            vec![("what a part gives", widest.saturating_mul(4 * micro))]
        }
        Model::Command(_) => Vec::new(),
    };
    // Of equal ones the first.
    let largest = all.into_iter().rev().max_by_key(|(_, bytes)| *bytes);
    let (what, bytes) = largest.unwrap_or(("nothing", 0));
    LargestTensor { what, bytes: Bytes(bytes) }
}

fn of_decoder(d: &Decoder, arrangement: &Arrangement, micro: u64) -> [(&'static str, u64); 5] {
    let layout = &arrangement.layout;
    let [tensor, context] = [layout.tensor, layout.context].map(|degree| u64::from(degree.get()));
    let (h, f, v, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.vocab), u64::from(d.context));
    let inside = |values: u64| values.div_ceil(tensor);
    let tokens = micro * (s / context);
    let up = if d.activation.is_gated() { 2 } else { 1 };
    // Rows of one expert or of all tokens: at most those of all tokens.
    let passed = d.experts.map_or(1, |experts| u64::from(experts.per_token));
    [
        (
            "the attention scores of a micro-batch",
            factor_bytes(arrangement.precision) * tokens * inside(u64::from(d.heads)) * s,
        ),
        ("the logits of a micro-batch", 4 * tokens * inside(v)),
        ("the feed-forward values of a micro-batch", 4 * tokens * inside(up * passed * f)),
        ("the table of the vocabulary", 4 * inside(v) * h),
        ("the feed-forward weights of a block", 4 * h * inside(up * f)),
    ]
}

//! Activation memory: the bytes per sample that passes save for the backward, operation by operation.

use crate::rates::custom_model::kept_bytes;
use dtrain_recipes::{
    Activation, Cnn, CustomModel, Decoder, Experts, InputSignature, Mlp, Model, Positions, Precision,
    Recompute,
};

/// Sharding of a decoder's activations over the ranks of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivationSharding {
    /// Number of tensor-parallel ranks.
    pub(super) tensor: u64,
    /// True if tensor-parallel ranks also split the sequence outside the sharded matrices (sequence
    /// parallelism).
    pub(super) sequence: bool,
    /// Number of context-parallel ranks.
    pub(super) context: u64,
}

impl ActivationSharding {
    /// Returns the bytes per rank of `values` values of `each` bytes a token, for one sample of `s` tokens.
    fn bytes(self, s: u64, each: u64, values: u64) -> u64 {
        (s / self.context) * each * values
    }

    /// Returns the number of values per rank inside the sharded matrices.
    fn inside(self, values: u64) -> u64 {
        values.div_ceil(self.tensor)
    }

    /// Returns the number of values per rank between the sharded matrices.
    fn between(self, values: u64) -> u64 {
        if self.sequence { values.div_ceil(self.tensor) } else { values }
    }
}

/// Bytes of activations saved for the backward of one sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SavedActivations {
    /// Bytes that a block without recompute keeps while its micro-batch is alive.
    pub(super) block_stored: u64,
    /// Extra bytes of a block without recompute while it computes.
    pub(super) block_working: u64,
    /// Bytes that a recomputed block keeps while its micro-batch is alive.
    pub(super) again_stored: u64,
    /// Extra bytes of a recomputed block while it is recomputed.
    pub(super) again_working: u64,
    /// Bytes of the layers before the first block.
    pub(super) outer: u64,
    /// Bytes of the head and the loss.
    pub(super) logits: u64,
}

/// Implementation of the worker's operations, which determines the tensors that they save for backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpBackend {
    /// Fused operations on the host's CPU, in f32.
    Host,
    /// Kernels of a GPU.
    Device,
    /// Compositions of plain tensor operations.
    Plain,
}

pub(super) fn saved_activations(
    model: &Model,
    cut: ActivationSharding,
    recompute: Recompute,
    precision: Precision,
    by: OpBackend,
) -> SavedActivations {
    let kept = match model {
        Model::Decoder(d) => match by {
            OpBackend::Host => decoder_fused(d, cut),
            OpBackend::Device => return decoder_on_device(d, cut, recompute, precision),
            OpBackend::Plain => return decoder_plain(d, cut, recompute, precision),
        },
        Model::Mlp(m) => mlp(m),
        Model::Cnn(c) => cnn(c),
        Model::Custom(own) => custom_model(own),
        Model::Command(_) => SavedActivations::default(),
    };
    match recompute {
        // No attention core saves anything here.
        Recompute::Selective => {
            SavedActivations { again_stored: kept.block_stored, again_working: kept.block_working, ..kept }
        }
        Recompute::None | Recompute::Full => kept,
    }
}

// Values per token: h hidden, q width of all query heads, k key-value width, a heads, s sequence, f
// feed-forward width.

/// Returns the bytes that a decoder's fused operations save: of attention scores, only one logarithm per row.
///
/// Tensor-parallel ranks also shard everything between a column-parallel and a row-parallel matrix. The input
/// of a column-parallel matrix is whole on each rank (gathered, in sequence mode); the residual stream is
/// whole only outside sequence mode.
fn decoder_fused(d: &Decoder, cut: ActivationSharding) -> SavedActivations {
    let (h, f, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.context));
    let (q, k) = (d.query_width(), d.key_width());
    let packed = q + 2 * k;
    let passed = passed(d);
    let (wide, inner) = match d.activation {
        Activation::Swiglu | Activation::Geglu => (2 * passed * f, passed * f),
        Activation::Gelu | Activation::GeluTanh => (passed * f, passed * f),
    };
    // Input, residual; both normed; packed queries, keys and values, logarithms, context; up, activated.
    let input = cut.between(h);
    let all = 2 * input
        + 2 * h
        + post_norms(d, cut)
        + head_norms(d, cut)
        + cut.inside(packed + u64::from(d.heads) + q)
        + cut.inside(wide + inner)
        + routed(d);
    // Keys and values with their gradients in the ring: one piece here, one arriving.
    let ring = if cut.context > 1 { cut.inside(8 * k) } else { 0 };
    // Gradients passing through the block: of the residual, of the packed or the wide tensor and beside it.
    let passing = input + h + cut.inside(packed + q).max(cut.inside(wide + inner)) + ring;
    // The loss overwrites the logits with their gradient; the head saves its input before and after the norm.
    let logits = cut.inside(u64::from(d.vocab)) + input + 2 * h;
    let bytes = |values| cut.bytes(s, 4, values);
    SavedActivations {
        block_stored: bytes(all),
        block_working: bytes(passing),
        again_stored: bytes(input),
        again_working: bytes(all - input + passing),
        outer: bytes(input),
        logits: bytes(logits),
    }
}

/// Returns the number of values per token that norms after the sub-layers of a block save: their inputs.
fn post_norms(d: &Decoder, cut: ActivationSharding) -> u64 {
    if d.post_norm { 2 * cut.between(u64::from(d.hidden)) } else { 0 }
}

/// Returns the number of values per token that the norms of queries and keys save: their inputs, and the packed
/// tensor that their outputs are joined to.
fn head_norms(d: &Decoder, cut: ActivationSharding) -> u64 {
    if d.qk_norm { cut.inside(2 * d.query_width() + 3 * d.key_width()) } else { 0 }
}

/// Returns the number of feed-forward layers that each token passes through in a block.
fn passed(d: &Decoder) -> u64 {
    d.experts.map_or(1, |experts| experts.per_token.into())
}

/// Returns the number of values per token that routing to experts saves: scores, probabilities, and a row to
/// and from each expert.
fn routed(d: &Decoder) -> u64 {
    let each = |experts: Experts| u64::from(experts.per_token) * 2 * u64::from(d.hidden);
    // Shared experts: gate, up, and the product of both.
    let shared = |experts: Experts| 4 * u64::from(experts.shared_ffn.unwrap_or(0));
    d.experts.map_or(0, |experts| 2 * u64::from(experts.count) + each(experts) + shared(experts))
}

/// Returns the bytes of one value of an operand in a matrix product.
pub(super) fn factor_bytes(precision: Precision) -> u64 {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => 2,
    }
}

/// Returns the bytes that the kernels of a device save for a decoder: operands of products in their
/// precision, all else in f32; of attention scores only their softmax, which replaces them.
///
/// Sharding is that of [`decoder_fused`].
fn decoder_on_device(
    d: &Decoder,
    cut: ActivationSharding,
    recompute: Recompute,
    precision: Precision,
) -> SavedActivations {
    let (h, f, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.context));
    let (q, k) = (d.query_width(), d.key_width());
    let product = factor_bytes(precision);
    let (wide, inner) = match d.activation {
        Activation::Swiglu | Activation::Geglu => (cut.inside(2 * passed(d) * f), cut.inside(passed(d) * f)),
        Activation::Gelu | Activation::GeluTanh => (cut.inside(passed(d) * f), cut.inside(passed(d) * f)),
    };
    let (input, packed, context) = (cut.between(h), cut.inside(q + 2 * k), cut.inside(q));
    // Each query attends to the keys of the whole sequence.
    let scores = cut.inside(u64::from(d.heads) * s);
    let gathered = cut.inside(2 * k * (cut.context - 1));
    // Bytes per token: queries, keys and values of each head, and the softmax of their scores.
    let core = product * (packed + gathered + scores);
    // Input and residual, both normed, with mean and deviation of each; context; the up-projection,
    // activated.
    let rest = 4 * (2 * input + 4 + wide + routed(d) + post_norms(d, cut) + head_norms(d, cut))
        + product * (2 * h + context + inner);
    // Gradients passing through the block: of the residual and of its norm; in attention those of the
    // context, the scores and the heads, or else those of the activation and of the up-projection.
    let passing =
        4 * (input + h) + (product * (context + packed + gathered + scores)).max(4 * (wide + inner));
    // The loss overwrites the logits with their gradient. Products of 16 bits are cast before and after it.
    let each_class = match precision {
        Precision::F32 => 4,
        Precision::Bf16 | Precision::F16 | Precision::Fp8 => 6,
    };
    let logits = each_class * cut.inside(u64::from(d.vocab)) + 4 * (input + h) + product * h;
    let bytes = |token| cut.bytes(s, 1, token);
    let (again_stored, again_working) = match recompute {
        // The heads are split again from the packed tensor.
        Recompute::Selective => (rest + 4 * packed, core),
        Recompute::None | Recompute::Full => (4 * input, core + rest - 4 * input),
    };
    SavedActivations {
        block_stored: bytes(core + rest),
        block_working: bytes(passing),
        again_stored: bytes(again_stored),
        again_working: bytes(again_working + passing),
        // For each token its row, its place in the order, and the start of each row.
        outer: bytes(4 * 3),
        logits: bytes(logits),
    }
}

/// Returns the bytes that plain tensor operations save for a decoder.
fn decoder_plain(
    d: &Decoder,
    cut: ActivationSharding,
    recompute: Recompute,
    precision: Precision,
) -> SavedActivations {
    let (h, f, s) = (u64::from(d.hidden), u64::from(d.ffn), u64::from(d.context));
    let (q, k) = (d.query_width(), d.key_width());
    let product = factor_bytes(precision);
    let rotated = if d.positions == Positions::Rotary { q + k } else { 0 };
    // Each query attends to the keys of the whole sequence.
    let scores = cut.inside(2 * u64::from(d.heads) * s);
    let gathered = cut.inside(2 * k * (cut.context - 1));
    // Input, normed, queries, keys, values, rotated copies, context; then residual and normed again.
    let input = cut.between(h);
    let attention = input + h + cut.inside(q + 2 * k + rotated + q) + gathered;
    let feed_forward = input
        + post_norms(d, cut)
        + head_norms(d, cut)
        + h
        + match d.activation {
            Activation::Swiglu | Activation::Geglu => cut.inside(4 * passed(d) * f),
            Activation::Gelu | Activation::GeluTanh => cut.inside(2 * passed(d) * f),
        }
        + routed(d);
    let bytes = |each, values| cut.bytes(s, each, values);
    let all = bytes(product, attention + scores + feed_forward);
    let (again_stored, again_working) = match recompute {
        Recompute::Selective => (bytes(product, attention + feed_forward), bytes(product, scores)),
        Recompute::None | Recompute::Full => (bytes(4, input), all),
    };
    SavedActivations {
        block_stored: all,
        block_working: 0,
        again_stored,
        again_working,
        outer: bytes(4, input + h),
        // Logits, log-softmax and the gradient, all in f32.
        logits: bytes(12, cut.inside(u64::from(d.vocab))) + bytes(4, 2 * h),
    }
}

fn mlp(m: &Mlp) -> SavedActivations {
    let hidden: u64 = m.hidden.iter().map(|w| u64::from(*w)).sum();
    let blocks = (m.hidden.len() as u64).max(1);
    let stored = 4 * 3 * hidden / blocks;
    SavedActivations {
        block_stored: stored,
        block_working: 0,
        again_stored: stored / 3,
        again_working: stored - stored / 3,
        outer: 4 * 2 * u64::from(m.inputs),
        logits: 12 * u64::from(m.classes),
    }
}

fn cnn(c: &Cnn) -> SavedActivations {
    let mut pixels = u64::from(c.height) * u64::from(c.width);
    let (mut values, mut inputs, mut largest) = (0, 0, 0);
    for (index, channels) in c.stages.iter().enumerate() {
        if index > 0 {
            pixels = (pixels / 4).max(1);
        }
        // Two convolutions, two norms (each saves its input and its normed values), two activations, the sum.
        // A convolution is a product over patches, so nine copies of its input exist while it computes.
        let plane = pixels * u64::from(*channels);
        values += u64::from(c.blocks) * 8 * plane;
        inputs += u64::from(c.blocks) * plane;
        largest = largest.max(9 * plane);
    }
    let blocks = (u64::from(c.blocks) * c.stages.len() as u64).max(1);
    let stem = u64::from(c.height) * u64::from(c.width) * u64::from(c.channels + 3 * c.stages[0]);
    SavedActivations {
        block_stored: 4 * values / blocks,
        block_working: 4 * largest,
        again_stored: 4 * inputs / blocks,
        again_working: 4 * (largest + values / blocks),
        outer: 4 * stem,
        logits: 12 * u64::from(c.classes),
    }
}

/// Returns the bytes that a custom network saves, of which only the shapes are known.
fn custom_model(own: &CustomModel) -> SavedActivations {
    let outline = &own.outline;
    let bytes = |output: [u64; 2]| 4 * output[0].saturating_mul(output[1]);
    let blocks = (outline.blocks.len() as u64).max(1);
    let each = outline.blocks.iter().map(|block| kept_bytes(block, None));
    let (stored, largest) = (each.clone().sum::<u64>() / blocks, each.max().unwrap_or(0));
    let before_blocks = std::iter::once(&outline.first).chain(&outline.blocks).take(outline.blocks.len());
    let inputs = before_blocks.map(|part| bytes(part.output)).sum::<u64>() / blocks;
    let samples = match own.reads {
        InputSignature::Tokens { context, .. } => context,
        InputSignature::Rows { inputs, .. } => inputs,
    };
    SavedActivations {
        block_stored: stored,
        // Gradients passing through the block.
        block_working: largest / 2,
        again_stored: inputs,
        again_working: largest + largest / 2,
        outer: kept_bytes(&outline.first, Some(own.reads)) + 4 * u64::from(samples),
        // Scores, log-softmax and the gradient.
        logits: 3 * bytes(outline.head.output) + kept_bytes(&outline.head, None),
    }
}

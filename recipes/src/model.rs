//! Models, described by their numbers.

use serde::{Deserialize, Serialize};

/// Kind of model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Model {
    /// A causal transformer of the GPT-2 or the Llama family.
    Decoder(Decoder),
    /// A multi-layer perceptron over the columns of a table.
    Mlp(Mlp),
    /// A residual convolutional network over images.
    Cnn(Cnn),
    /// A foreign script that trains by itself; dtrain places and watches it.
    Command(Command),
}

/// How a decoder knows where a token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Positions {
    /// A trained vector for each position.
    Learned,
    /// Rotary embedding of queries and keys, base 10,000, halves rotated (the Llama convention).
    Rotary,
}

/// Normalisation before each sub-layer and before the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// LayerNorm with scale and bias, epsilon 1e-5.
    Layer,
    /// RMSNorm with scale, epsilon 1e-5.
    Rms,
}

/// The feed-forward non-linearity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// The exact (erf) GELU.
    Gelu,
    /// `silu(gate) · up`: three matrices in place of two.
    Swiglu,
    /// `max(0, x)`; for mlp and cnn only.
    Relu,
}

/// A causal transformer. All counts are at least 1; `heads` divides `hidden`, `kv_heads` divides `heads`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decoder {
    /// Number of blocks.
    pub layers: u32,
    /// Hidden size.
    pub hidden: u32,
    /// Query heads.
    pub heads: u32,
    /// Key and value heads (grouped-query attention when fewer than `heads`).
    pub kv_heads: u32,
    /// Feed-forward width; of each expert, where there are experts.
    pub ffn: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Sequence length in tokens.
    pub context: u32,
    /// Position encoding.
    pub positions: Positions,
    /// Normalisation.
    pub norm: Norm,
    /// Feed-forward non-linearity: `Gelu` or `Swiglu`.
    pub activation: Activation,
    /// Whether the head shares the embedding's weights.
    pub tied: bool,
    /// Whether linear layers have a bias; those of experts never have.
    pub bias: bool,
    /// Feed-forward layers of which each token passes a few; `None`: one, which every token passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
}

/// A mixture of experts in place of each feed-forward layer.
///
/// A router gives every token a probability for each expert. The token passes the experts with the largest, and their
/// results are summed with the probabilities as weights, scaled to sum to one. With one expert a token, the weight is
/// the probability as it is: scaled it would always be one, and the router would learn nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Experts of each block.
    pub count: u32,
    /// Experts that a token passes; at most `count`.
    pub per_token: u32,
    /// Tokens of one sequence that an expert takes, as a multiple of its even share; later tokens of the sequence pass
    /// it by. `None`: all that are sent to it.
    pub capacity: Option<f64>,
    /// Weight of the load-balance loss, which training lowers beside the cross-entropy; 0 for none.
    pub balance: f64,
}

impl Experts {
    /// Tokens of a sequence of `length` that an expert takes at most; one at least.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a length in tokens, far below 2^52; more than fits means everything"
    )]
    pub fn most(&self, length: usize) -> usize {
        let even = length as f64 * f64::from(self.per_token) / f64::from(self.count);
        self.capacity.map_or(length, |capacity| ((capacity * even).ceil() as usize).max(1))
    }
}

/// A multi-layer perceptron.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mlp {
    /// Number of input columns.
    pub inputs: u32,
    /// Width of each hidden layer, in order; at least one.
    pub hidden: Vec<u32>,
    /// Number of classes.
    pub classes: u32,
    /// `Relu` or `Gelu`.
    pub activation: Activation,
}

/// A residual network over square or oblong images. Normalises by group, not by batch: a batch norm's
/// statistics would depend on the micro-batch, and so the trained weights on the layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cnn {
    /// Channels of an image.
    pub channels: u32,
    /// Rows of an image, in pixels.
    pub height: u32,
    /// Columns of an image, in pixels.
    pub width: u32,
    /// Channels of each residual stage; every stage after the first halves the image.
    pub stages: Vec<u32>,
    /// Residual blocks in each stage.
    pub blocks: u32,
    /// Number of classes.
    pub classes: u32,
}

/// A foreign training command, run once for each rank in the environment that its framework expects.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Command {
    /// Program and arguments; no shell is involved.
    pub argv: Vec<String>,
    /// Whose environment it expects.
    #[serde(default)]
    pub framework: Framework,
    /// How lines of its output tell of its progress: each a checked [`crate::progress::Template`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub progress: Vec<String>,
}

/// What a foreign command is written for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framework {
    /// PyTorch, and whatever else reads what torchrun sets.
    #[default]
    Pytorch,
    /// DeepSpeed.
    Deepspeed,
    /// TensorFlow.
    Tensorflow,
    /// JAX.
    Jax,
    /// Horovod, with Gloo.
    Horovod,
}

impl Decoder {
    /// Width of one head.
    pub fn head_width(&self) -> u32 {
        self.hidden / self.heads
    }

    /// Parameters of one block.
    pub fn block_parameters(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.count))
    }

    /// Parameters of one block that a token passes: all of them without experts.
    pub fn block_parameters_active(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.per_token))
    }

    /// Parameters of one block with some of its experts.
    fn block_with(&self, experts: u32) -> u64 {
        let (h, f) = (u64::from(self.hidden), u64::from(self.ffn));
        let kv = u64::from(self.kv_heads) * u64::from(self.head_width());
        let up = if self.activation == Activation::Swiglu { 2 } else { 1 };
        let attention = h * (h + 2 * kv) + h * h;
        let attention_bias = (h + 2 * kv) + h;
        let matrices = up * h * f + f * h;
        let (feed_forward, bias) = match self.experts {
            Some(all) => {
                let routed = u64::from(experts).saturating_mul(matrices);
                (routed.saturating_add(h * u64::from(all.count)), attention_bias)
            }
            None => (matrices, attention_bias + up * f + h),
        };
        let outside = attention + if self.bias { bias } else { 0 } + 2 * self.norm_parameters();
        feed_forward.saturating_add(outside)
    }

    /// Parameters of one normalisation.
    pub fn norm_parameters(&self) -> u64 {
        match self.norm {
            Norm::Layer => 2 * u64::from(self.hidden),
            Norm::Rms => u64::from(self.hidden),
        }
    }

    /// Parameters outside the blocks: embeddings, final norm, head (counted once when tied).
    pub fn outer_parameters(&self) -> u64 {
        let embedding = u64::from(self.vocab) * u64::from(self.hidden);
        let positions = match self.positions {
            Positions::Learned => u64::from(self.context) * u64::from(self.hidden),
            Positions::Rotary => 0,
        };
        let head = if self.tied { 0 } else { embedding };
        embedding + positions + head + self.norm_parameters()
    }
}

impl Mlp {
    /// Width of every layer boundary: inputs, hidden layers, classes.
    pub fn widths(&self) -> Vec<u32> {
        let mut widths = vec![self.inputs];
        widths.extend(&self.hidden);
        widths.push(self.classes);
        widths
    }
}

impl Model {
    /// Trainable parameters, each counted once; of an absurd model [`u64::MAX`]. Zero for a foreign command, which nobody here can count.
    pub fn parameters(&self) -> u64 {
        match self {
            Self::Decoder(d) => {
                u64::from(d.layers).saturating_mul(d.block_parameters()).saturating_add(d.outer_parameters())
            }
            Self::Mlp(m) => m.widths().windows(2).map(|w| (u64::from(w[0]) + 1) * u64::from(w[1])).sum(),
            Self::Cnn(c) => c.parameters(),
            Self::Command(_) => 0,
        }
    }

    /// Tokens of one sample: the context of a decoder, otherwise one.
    pub fn sample_tokens(&self) -> u64 {
        match self {
            Self::Decoder(d) => u64::from(d.context),
            Self::Mlp(_) | Self::Cnn(_) | Self::Command(_) => 1,
        }
    }

    /// What one sample is between two blocks, before block `boundary` (after the last, where it is their number):
    /// rows and values of a row. `[tokens, hidden]` of a decoder, `[1, width]` of an mlp, `[channels, pixels]` of a cnn.
    pub fn activation_at(&self, boundary: u32) -> [u64; 2] {
        match self {
            Self::Decoder(d) => [d.context.into(), d.hidden.into()],
            Self::Mlp(m) => [1, m.widths()[boundary as usize].into()],
            Self::Cnn(c) => {
                let stage = boundary.saturating_sub(1) / c.blocks;
                let halved = |side: u32| (0..stage).fold(side, |side, _| side.div_ceil(2));
                let pixels = u64::from(halved(c.height)) * u64::from(halved(c.width));
                [c.stages[stage as usize].into(), pixels]
            }
            Self::Command(_) => [0, 0],
        }
    }

    /// Number of equal blocks that a pipeline could cut between.
    pub fn blocks(&self) -> u32 {
        match self {
            Self::Decoder(d) => d.layers,
            #[expect(clippy::cast_possible_truncation, reason = "a list in a recipe is short")]
            Self::Mlp(m) => m.hidden.len() as u32,
            #[expect(clippy::cast_possible_truncation, reason = "a list in a recipe is short")]
            Self::Cnn(c) => c.stages.len() as u32 * c.blocks,
            Self::Command(_) => 0,
        }
    }
}

impl Cnn {
    /// Trainable parameters: 3×3 stem, per block two 3×3 convolutions with group norms, a 1×1 projection
    /// where the channels or the size change, and a linear head. Convolutions have no bias.
    pub fn parameters(&self) -> u64 {
        let conv = |i: u64, o: u64, k: u64| i * o * k * k;
        let mut before = u64::from(self.stages[0]);
        let mut total = conv(u64::from(self.channels), before, 3) + 2 * before;
        for (index, stage) in self.stages.iter().enumerate() {
            let after = u64::from(*stage);
            for block in 0..self.blocks {
                let input = if block == 0 { before } else { after };
                total += conv(input, after, 3) + conv(after, after, 3) + 4 * after;
                if block == 0 && (index > 0 || input != after) {
                    total += conv(input, after, 1);
                }
            }
            before = after;
        }
        total + (before + 1) * u64::from(self.classes)
    }
}

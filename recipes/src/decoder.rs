//! Causal transformers, described by their numbers, and their parameters.

use crate::keyword_enum::keyword_enum;
use crate::model::{Activation, Norm, Positions};
use serde::{Deserialize, Serialize};

/// Base of rotary positions where a recipe names none (Su et al. 2021).
pub const ROTARY_BASE: u64 = 10_000;

/// What norms add to a variance or a mean square where a recipe says nothing.
pub const NORM_EPSILON: f64 = 1e-5;

/// A causal transformer. All counts are at least 1; `kv_heads` divides `heads`, and `heads` divides `hidden` where
/// `head_width` is open.
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
    /// Feed-forward non-linearity.
    pub activation: Activation,
    /// Whether the head shares the embedding's weights.
    pub tied: bool,
    /// Whether linear layers have a bias; those of experts never have. For queries, keys and values read
    /// [`Decoder::qkv_bias`].
    pub bias: bool,
    /// Feed-forward layers of which each token passes a few; `None`: one, which every token passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Width of a head where it is not `hidden / heads`; read [`Decoder::head_width`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_width: Option<u32>,
    /// Base of rotary positions where it is not [`ROTARY_BASE`]; read [`Decoder::rotary_base`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_base: Option<u64>,
    /// What norms add where it is not [`NORM_EPSILON`]; read [`Decoder::norm_epsilon`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_epsilon: Option<f64>,
    /// Whether the projections of queries, keys and values have a bias, where it is not as `bias` says; read
    /// [`Decoder::qkv_bias`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// Multi-head latent attention; `None`: multi-head or grouped-query attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentAttention>,
    /// Sliding-window attention; `None`: every token attends to all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<SlidingWindow>,
    /// Layers that each predict one further token (multi-token prediction).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtp_layers: u32,
    /// Low-rank adapters, which alone are trained; `None`: every weight is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

/// Low-rank adapters (LoRA; Hu et al. 2021, arXiv 2106.09685): a linear layer of weight `W` computes
/// `x·W + alpha / rank · x·A·B`. `A: [in, rank]` and `B: [rank, out]` are trained; all other weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Columns of `A`, and rows of `B`.
    pub rank: u32,
    /// Weight of the adapters, times `rank`.
    pub alpha: f64,
    /// The layers that have adapters.
    pub layers: AdaptedLayers,
}

keyword_enum! {
    /// Linear layers of a block that have adapters.
    pub enum AdaptedLayers {
        /// Those of attention and of the feed-forward layer.
        All = "all",
        /// Queries, keys, values and the output of attention.
        Attention = "attention",
        /// The feed-forward layer.
        Ffn = "ffn",
    }
}

impl Lora {
    /// What multiplies `x·A·B`.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank)
    }

    /// Whether the layers of attention have adapters.
    pub fn adapts_attention(&self) -> bool {
        self.layers != AdaptedLayers::Ffn
    }

    /// Whether the feed-forward layer has adapters.
    pub fn adapts_ffn(&self) -> bool {
        self.layers != AdaptedLayers::Attention
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): queries, and keys with values, pass through narrow
/// matrices. A head of queries and keys has `head_width` channels without positions and `rotary` with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Rank of the queries (`q_lora_rank`).
    pub query: u32,
    /// Rank of keys and values (`kv_lora_rank`).
    pub key_value: u32,
    /// Channels of a head with rotary positions (`qk_rope_head_dim`); all heads share those of the keys.
    pub rotary: u32,
    /// Channels of a head of values (`v_head_dim`).
    pub value: u32,
}

/// Sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// Tokens that a token attends to, itself included.
    pub tokens: u32,
    /// Of this many layers the last attends to all tokens before it; `None`: no layer does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
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
    /// Width of the shared experts together, which every token passes without a weight; `None`: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_ffn: Option<u32>,
    /// Leading layers without experts; `None`: every layer has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<DenseLayers>,
}

/// The leading layers of a mixture of experts that have one feed-forward layer instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenseLayers {
    /// How many; fewer than the layers of the model.
    pub layers: u32,
    /// Their feed-forward width.
    pub ffn: u32,
}

impl Experts {
    /// `count` experts of which a token passes `per_token`, all that are sent to them; nothing is shared.
    pub const fn new(count: u32, per_token: u32) -> Self {
        Self { count, per_token, capacity: None, balance: 0.01, shared_ffn: None, dense: None }
    }

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

impl Decoder {
    /// Width of one head; with latent attention, of the part of its queries and keys without positions.
    pub fn head_width(&self) -> u32 {
        self.head_width.unwrap_or(self.hidden / self.heads)
    }

    /// Width of all heads of queries together.
    pub fn query_width(&self) -> u64 {
        let rotary = self.latent.map_or(0, |latent| latent.rotary);
        u64::from(self.heads) * (u64::from(self.head_width()) + u64::from(rotary))
    }

    /// Width of all heads of keys together, and so of values; without latent attention.
    pub fn key_width(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.head_width())
    }

    /// Base of rotary positions.
    pub fn rotary_base(&self) -> u64 {
        self.rotary_base.unwrap_or(ROTARY_BASE)
    }

    /// What norms add to a variance or a mean square before they take its root.
    pub fn norm_epsilon(&self) -> f64 {
        self.norm_epsilon.unwrap_or(NORM_EPSILON)
    }

    /// Whether the projections of queries, keys and values have a bias.
    pub fn qkv_bias(&self) -> bool {
        self.qkv_bias.unwrap_or(self.bias)
    }

    /// Leading layers that have no experts, where others have.
    pub fn dense_layers(&self) -> u32 {
        self.experts.and_then(|experts| experts.dense).map_or(0, |dense| dense.layers)
    }

    /// Feed-forward width of a layer without experts.
    pub fn dense_ffn(&self) -> u32 {
        self.experts.and_then(|experts| experts.dense).map_or(self.ffn, |dense| dense.ffn)
    }

    /// The model without adapters.
    pub fn base(&self) -> Self {
        Self { lora: None, ..self.clone() }
    }

    /// Linear layers of a block that have adapters: name, such as `attention.q`, inputs and outputs.
    pub fn adapted(&self) -> Vec<(&'static str, [u64; 2])> {
        let Some(lora) = self.lora else { return Vec::new() };
        let [h, f] = [self.hidden, self.ffn].map(u64::from);
        let (q, k) = (self.query_width(), self.key_width());
        let mut all = Vec::new();
        if lora.adapts_attention() {
            let packed = [("attention.q", [h, q]), ("attention.k", [h, k]), ("attention.v", [h, k])];
            all.extend(packed);
            all.push(("attention.out", [q, h]));
        }
        if lora.adapts_ffn() {
            if self.activation == Activation::Swiglu {
                all.push(("ffn.gate", [h, f]));
            }
            all.extend([("ffn.up", [h, f]), ("ffn.down", [f, h])]);
        }
        all
    }

    /// Parameters that training changes: those of adapters, where there are any, otherwise all.
    pub fn trained_parameters(&self) -> u64 {
        let Some(lora) = self.lora else { return self.parameters() };
        let block: u64 = self.adapted().iter().map(|(_, [input, output])| input + output).sum();
        u64::from(self.layers) * u64::from(lora.rank) * block
    }

    /// Parameters without those of adapters, each counted once; of an absurd model [`u64::MAX`].
    pub fn parameters(&self) -> u64 {
        let blocks = u64::from(self.layers - self.dense_layers()).saturating_mul(self.block_parameters());
        let dense = u64::from(self.dense_layers()).saturating_mul(self.dense_block_parameters());
        let further = u64::from(self.mtp_layers).saturating_mul(self.mtp_parameters());
        blocks.saturating_add(dense).saturating_add(further).saturating_add(self.outer_parameters())
    }

    /// Parameters that one token passes, without those of multi-token prediction: of the experts its own only, embedding and
    /// head whole.
    pub fn active_parameters(&self) -> u64 {
        let blocks =
            u64::from(self.layers - self.dense_layers()).saturating_mul(self.block_parameters_active());
        let dense = u64::from(self.dense_layers()).saturating_mul(self.dense_block_parameters());
        blocks.saturating_add(dense).saturating_add(self.outer_parameters())
    }

    /// Parameters of one block; with experts, where there are any.
    pub fn block_parameters(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.count))
    }

    /// Parameters of one block that a token passes: all of them without experts.
    pub fn block_parameters_active(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.per_token))
    }

    /// Parameters of one block with some of its experts.
    fn block_with(&self, experts: u32) -> u64 {
        let Some(all) = self.experts else { return self.dense_block_parameters() };
        let routed = u64::from(experts).saturating_mul(self.matrices(self.ffn));
        let shared = all.shared_ffn.map_or(0, |width| self.matrices(width));
        let router = u64::from(self.hidden) * u64::from(all.count);
        routed.saturating_add(shared + router + self.attention_parameters() + 2 * self.norm_parameters())
    }

    /// Parameters of one block without experts.
    pub fn dense_block_parameters(&self) -> u64 {
        let (h, f) = (u64::from(self.hidden), u64::from(self.dense_ffn()));
        let bias = if self.bias { self.up_matrices() * f + h } else { 0 };
        self.attention_parameters() + self.matrices(self.dense_ffn()) + bias + 2 * self.norm_parameters()
    }

    /// Parameters of a layer that predicts a further token: a block, what joins its two inputs, and three norms
    /// (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2). It shares embedding and head.
    pub fn mtp_parameters(&self) -> u64 {
        let h = u64::from(self.hidden);
        self.block_parameters().saturating_add(2 * h * h + 3 * self.norm_parameters())
    }

    /// Parameters of the attention of one block, biases included.
    fn attention_parameters(&self) -> u64 {
        let (h, queries, width) = (u64::from(self.hidden), self.query_width(), u64::from(self.head_width()));
        let Some(latent) = self.latent else {
            let packed = queries + 2 * self.key_width();
            let of_packed = if self.qkv_bias() { packed } else { 0 };
            let of_output = if self.bias { h } else { 0 };
            return h * packed + queries * h + of_packed + of_output;
        };
        let [query, key_value, rotary, value] =
            [latent.query, latent.key_value, latent.rotary, latent.value].map(u64::from);
        let heads = u64::from(self.heads);
        let down = h * (query + key_value + rotary);
        let up = query * queries + key_value * heads * (width + value);
        let norms = self.norm_values() * (query + key_value);
        down + up + heads * value * h + norms
    }

    /// Matrices of a feed-forward layer that widen.
    fn up_matrices(&self) -> u64 {
        if self.activation == Activation::Swiglu { 2 } else { 1 }
    }

    /// Parameters of the matrices of a feed-forward layer.
    fn matrices(&self, width: u32) -> u64 {
        (self.up_matrices() + 1) * u64::from(self.hidden) * u64::from(width)
    }

    /// Parameters of one normalisation of the hidden state.
    pub fn norm_parameters(&self) -> u64 {
        self.norm_values() * u64::from(self.hidden)
    }

    /// Parameters of a normalisation for each channel.
    fn norm_values(&self) -> u64 {
        match self.norm {
            Norm::Layer => 2,
            Norm::Rms => 1,
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

#[cfg(test)]
mod tests;

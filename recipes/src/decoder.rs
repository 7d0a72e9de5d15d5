//! Causal transformers (decoders): their sizes and parameter counts.

mod attention;
mod experts;
mod lora;
mod small;

pub use attention::{LatentAttention, RotaryScaling, SlidingWindow};
pub use experts::{DenseLayers, Experts};
pub use lora::{AdaptedLayers, Lora};

use crate::architecture::{Activation, Norm, Positions};
use serde::{Deserialize, Serialize};

/// Default base of rotary positions (Su et al. 2021).
pub const ROTARY_BASE: u64 = 10_000;

/// Default epsilon that norms add to a variance or a mean square.
pub const NORM_EPSILON: f64 = 1e-5;

/// A causal transformer. All counts are at least 1; `kv_heads` divides `heads`, and `heads` divides `hidden`
/// if `head_width` is `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decoder {
    /// Number of transformer blocks.
    pub layers: u32,
    /// Hidden size: channels of the activation between blocks.
    pub hidden: u32,
    /// Number of query heads.
    pub heads: u32,
    /// Number of key and value heads (grouped-query attention if fewer than `heads`).
    pub kv_heads: u32,
    /// Feed-forward width; in a mixture of experts, the width of each expert.
    pub ffn: u32,
    /// Vocabulary size.
    pub vocab: u32,
    /// Sequence length in tokens.
    pub context: u32,
    /// Position encoding.
    pub positions: Positions,
    /// Kind of normalization.
    pub norm: Norm,
    /// Non-linearity of the feed-forward layers.
    pub activation: Activation,
    /// `true` if the output head shares the embedding's weights.
    pub tied: bool,
    /// `true` if linear layers have a bias; experts never have one. For queries, keys and values use
    /// [`Decoder::qkv_bias()`].
    pub bias: bool,
    /// Mixture of experts in place of feed-forward layers; `None` for a dense model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub experts: Option<Experts>,
    /// Width of a head; `None`: `hidden / heads`. To read it, use [`Decoder::head_width()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_width: Option<u32>,
    /// Base of rotary positions; `None`: [`ROTARY_BASE`]. To read it, use [`Decoder::rotary_base()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_base: Option<u64>,
    /// Scaling of the angles of rotary positions; `None`: they are not scaled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_scaling: Option<RotaryScaling>,
    /// Epsilon of norms; `None`: [`NORM_EPSILON`]. To read it, use [`Decoder::norm_epsilon()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub norm_epsilon: Option<f64>,
    /// `true` if the projections of queries, keys and values have a bias; `None`: the same as `bias`. To read
    /// it, use [`Decoder::qkv_bias()`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qkv_bias: Option<bool>,
    /// `true` if each head of queries and keys passes an RMS norm before its positions (QK norm).
    #[serde(default, skip_serializing_if = "is_false")]
    pub qk_norm: bool,
    /// Factor of the scores of attention; `None`: `1 / sqrt(head_width)`. Only with `qk_norm`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_scale: Option<f64>,
    /// `true` if the outputs of attention and of the feed-forward layer pass a norm too, before they are added
    /// to the residual stream.
    #[serde(default, skip_serializing_if = "is_false")]
    pub post_norm: bool,
    /// `true` if embeddings are multiplied by the square root of `hidden`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub scaled_embedding: bool,
    /// Multi-head latent attention; `None`: multi-head or grouped-query attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latent: Option<LatentAttention>,
    /// Sliding-window attention; `None`: every token attends to all before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<SlidingWindow>,
    /// Number of extra layers that each predict one further token (multi-token prediction); usually 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtp_layers: u32,
    /// Low-rank adapters (LoRA), the only weights that are trained; `None`: every weight is trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Decoder {
    /// Returns the width of one head; with latent attention, the channels per head of queries and keys that
    /// have no positions.
    pub fn head_width(&self) -> u32 {
        self.head_width.unwrap_or(self.hidden / self.heads)
    }

    /// Returns the width of all query heads together.
    pub fn query_width(&self) -> u64 {
        let rotary = self.latent.map_or(0, |latent| latent.rotary);
        u64::from(self.heads) * (u64::from(self.head_width()) + u64::from(rotary))
    }

    /// Returns the width of all key heads together, which equals that of all value heads; does not apply to
    /// latent attention.
    pub fn key_width(&self) -> u64 {
        u64::from(self.kv_heads) * u64::from(self.head_width())
    }

    /// Returns the base of rotary positions.
    pub fn rotary_base(&self) -> u64 {
        self.rotary_base.unwrap_or(ROTARY_BASE)
    }

    /// Returns the epsilon that norms add to a variance or a mean square before the square root.
    pub fn norm_epsilon(&self) -> f64 {
        self.norm_epsilon.unwrap_or(NORM_EPSILON)
    }

    /// Returns `true` if the projections of queries, keys and values have a bias.
    pub fn qkv_bias(&self) -> bool {
        self.qkv_bias.unwrap_or(self.bias)
    }

    /// Returns the number of leading dense layers of a mixture of experts; 0 for other models.
    pub fn dense_layers(&self) -> u32 {
        self.experts.and_then(|experts| experts.dense).map_or(0, |dense| dense.layers)
    }

    /// Returns the feed-forward width of a layer without experts.
    pub fn dense_ffn(&self) -> u32 {
        self.experts.and_then(|experts| experts.dense).map_or(self.ffn, |dense| dense.ffn)
    }

    /// Returns the same model without adapters.
    pub fn base(&self) -> Self {
        Self { lora: None, ..self.clone() }
    }

    /// Returns the linear layers of a block that have adapters, each as a name such as `attention.q` and the
    /// numbers of inputs and outputs.
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
            if self.activation.is_gated() {
                all.push(("ffn.gate", [h, f]));
            }
            all.extend([("ffn.up", [h, f]), ("ffn.down", [f, h])]);
        }
        all
    }

    /// Returns the number of parameters that are trained: only those of the adapters if the model has any,
    /// otherwise all.
    pub fn trained_parameters(&self) -> u64 {
        let Some(lora) = self.lora else { return self.parameters() };
        let block: u64 = self.adapted().iter().map(|(_, [input, output])| input + output).sum();
        u64::from(self.layers) * u64::from(lora.rank) * block
    }

    /// Returns the number of parameters without adapters, each counted once; [`u64::MAX`] on overflow.
    pub fn parameters(&self) -> u64 {
        let blocks = u64::from(self.layers - self.dense_layers()).saturating_mul(self.block_parameters());
        let dense = u64::from(self.dense_layers()).saturating_mul(self.dense_block_parameters());
        let further = u64::from(self.mtp_layers).saturating_mul(self.mtp_parameters());
        blocks.saturating_add(dense).saturating_add(further).saturating_add(self.outer_parameters())
    }

    /// Returns the number of parameters that are active for one token, without multi-token prediction: only
    /// the experts it is routed to, and all of the embedding and the head.
    pub fn active_parameters(&self) -> u64 {
        let blocks =
            u64::from(self.layers - self.dense_layers()).saturating_mul(self.block_parameters_active());
        let dense = u64::from(self.dense_layers()).saturating_mul(self.dense_block_parameters());
        blocks.saturating_add(dense).saturating_add(self.outer_parameters())
    }

    /// Returns the number of parameters of one block, with all its experts if it has any.
    pub fn block_parameters(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.count))
    }

    /// Returns the number of parameters of one block that are active for a token: all of them in a block
    /// without experts.
    pub fn block_parameters_active(&self) -> u64 {
        self.block_with(self.experts.map_or(0, |experts| experts.per_token))
    }

    /// Returns the number of parameters of one block, counting `experts` of its experts.
    fn block_with(&self, experts: u32) -> u64 {
        let Some(all) = self.experts else { return self.dense_block_parameters() };
        let routed = u64::from(experts).saturating_mul(self.matrices(self.ffn));
        let shared = all.shared_ffn.map_or(0, |width| self.matrices(width));
        let gate = if all.shared_gate { u64::from(self.hidden) } else { 0 };
        let router = u64::from(self.hidden) * u64::from(all.count) + gate;
        routed.saturating_add(shared + router + self.attention_parameters() + self.block_norm_parameters())
    }

    /// Returns the number of parameters of one dense block.
    pub fn dense_block_parameters(&self) -> u64 {
        let (h, f) = (u64::from(self.hidden), u64::from(self.dense_ffn()));
        let bias = if self.bias { self.up_matrices() * f + h } else { 0 };
        self.attention_parameters() + self.matrices(self.dense_ffn()) + bias + self.block_norm_parameters()
    }

    /// Returns the number of parameters of the norms of one block, without those inside of attention.
    fn block_norm_parameters(&self) -> u64 {
        (if self.post_norm { 4 } else { 2 }) * self.norm_parameters()
    }

    /// Returns the number of parameters of a multi-token-prediction layer: a block, the projection that joins
    /// its two inputs, and three norms (DeepSeek-AI 2024, arXiv 2412.19437, section 2.2). It shares embedding
    /// and head.
    pub fn mtp_parameters(&self) -> u64 {
        let h = u64::from(self.hidden);
        self.block_parameters().saturating_add(2 * h * h + 3 * self.norm_parameters())
    }

    /// Returns the number of parameters of the attention of one block, biases included.
    fn attention_parameters(&self) -> u64 {
        let (h, queries, width) = (u64::from(self.hidden), self.query_width(), u64::from(self.head_width()));
        let Some(latent) = self.latent else {
            let packed = queries + 2 * self.key_width();
            let of_packed = if self.qkv_bias() { packed } else { 0 };
            let of_output = if self.bias { h } else { 0 };
            let norms = if self.qk_norm { 2 * width } else { 0 };
            return h * packed + queries * h + of_packed + of_output + norms;
        };
        let [query, key_value, rotary, value] =
            [latent.query, latent.key_value, latent.rotary, latent.value].map(u64::from);
        let heads = u64::from(self.heads);
        let down = h * (query + key_value + rotary);
        let up = query * queries + key_value * heads * (width + value);
        let norms = self.norm_values() * (query + key_value);
        down + up + heads * value * h + norms
    }

    /// Returns the number of up-projections in a feed-forward layer: 2 with a gate, otherwise 1.
    fn up_matrices(&self) -> u64 {
        if self.activation.is_gated() { 2 } else { 1 }
    }

    /// Returns the number of parameters of the matrices of a feed-forward layer of this width.
    fn matrices(&self, width: u32) -> u64 {
        (self.up_matrices() + 1) * u64::from(self.hidden) * u64::from(width)
    }

    /// Returns the number of parameters of one normalization of the hidden state.
    pub fn norm_parameters(&self) -> u64 {
        self.norm_values() * u64::from(self.hidden)
    }

    /// Returns the number of parameters that a normalization has per channel.
    fn norm_values(&self) -> u64 {
        match self.norm {
            Norm::Layer => 2,
            Norm::Rms => 1,
        }
    }

    /// Returns the number of parameters outside the blocks: embeddings, final norm, and head (counted once if
    /// tied).
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

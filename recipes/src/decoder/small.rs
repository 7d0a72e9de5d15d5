//! Small decoders for measurements and tests, which set the fields that they examine.

use super::Decoder;
use crate::architecture::{Activation, Norm, Positions};

impl Decoder {
    /// Returns a small decoder of the Llama family: two blocks of 32 channels, a context of 16 tokens, and no
    /// optional part. Measurements and tests set the fields that they examine.
    pub fn small_llama() -> Self {
        Self {
            layers: 2,
            hidden: 32,
            heads: 4,
            kv_heads: 4,
            ffn: 64,
            vocab: 256,
            context: 16,
            positions: Positions::Rotary,
            norm: Norm::Rms,
            activation: Activation::Swiglu,
            tied: false,
            bias: false,
            experts: None,
            head_width: None,
            rotary_base: None,
            rotary_scaling: None,
            norm_epsilon: None,
            qkv_bias: None,
            qk_norm: false,
            attention_scale: None,
            post_norm: false,
            scaled_embedding: false,
            latent: None,
            window: None,
            mtp_layers: 0,
            lora: None,
        }
    }

    /// Returns a small decoder of the GPT-2 family with the same sizes as [`Decoder::small_llama()`].
    pub fn small_gpt2() -> Self {
        Self {
            positions: Positions::Learned,
            norm: Norm::Layer,
            activation: Activation::Gelu,
            tied: true,
            bias: true,
            ..Self::small_llama()
        }
    }
}

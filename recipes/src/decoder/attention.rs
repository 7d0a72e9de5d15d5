//! Variants of attention in decoders: scaled rotary positions, latent attention, and sliding windows.

use serde::{Deserialize, Serialize};

/// Scaling of the angles of rotary positions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RotaryScaling {
    /// Every angle is divided by `factor`.
    Linear {
        /// Divisor of all angles.
        factor: f64,
    },
    /// The scaling of Llama 3.1 (Grattafiori et al. 2024, arXiv 2407.21783): an angle whose wave is longer than
    /// `original_context / low` tokens is divided by `factor`, one whose wave is shorter than
    /// `original_context / high` stays, and those between are interpolated.
    Llama3 {
        /// Divisor of the slow angles.
        factor: f64,
        /// Number of waves in the original context below which an angle is slow (`low_freq_factor`).
        low: f64,
        /// Number of waves in the original context above which an angle is fast (`high_freq_factor`).
        high: f64,
        /// Context in tokens for which the angles were made (`original_max_position_embeddings`).
        original_context: u32,
    },
}

impl RotaryScaling {
    /// Returns the scaled `frequency`, an angle per token in radians.
    pub fn scaled(self, frequency: f64) -> f64 {
        match self {
            Self::Linear { factor } => frequency / factor,
            Self::Llama3 { factor, low, high, original_context } => {
                let waves = f64::from(original_context) * frequency / std::f64::consts::TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / factor)
            }
        }
    }
}

/// Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434): queries, keys and values pass through
/// low-rank projections. A head of queries and keys has `head_width` channels without positions and `rotary`
/// with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatentAttention {
    /// Rank of the low-rank projection of queries (`q_lora_rank`).
    pub query: u32,
    /// Rank of the low-rank projection that keys and values share (`kv_lora_rank`).
    pub key_value: u32,
    /// Channels per head of queries and keys that have rotary positions (`qk_rope_head_dim`); all heads share
    /// those of the keys.
    pub rotary: u32,
    /// Channels per head of values (`v_head_dim`).
    pub value: u32,
}

/// The window of sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlidingWindow {
    /// Size of the window: the number of tokens that a token attends to, itself included.
    pub tokens: u32,
    /// Period of full attention: every n-th layer attends to all earlier tokens instead; `None`: no layer
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// Base of rotary positions in the layers with a window, whose angles are not scaled; `None`: the same
    /// positions as in all layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotary_base: Option<u64>,
}

impl SlidingWindow {
    /// Returns `true` if the layer number `layer`, counted from 0, has the window.
    pub fn is_in(&self, layer: u32) -> bool {
        self.every.is_none_or(|every| !(layer + 1).is_multiple_of(every))
    }
}

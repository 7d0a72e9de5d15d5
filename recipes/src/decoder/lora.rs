//! The low-rank adapters of a decoder.

use crate::keyword_enum::keyword_enum;
use crate::state::FrozenPrecision;
use serde::{Deserialize, Serialize};

/// Low-rank adapters (LoRA; Hu et al. 2021, arXiv 2106.09685): a linear layer of weight `W` computes
/// `x·W + alpha / rank · x·A·B`. `A: [in, rank]` and `B: [rank, out]` are trained, all other weights frozen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lora {
    /// Rank of the adapters: columns of `A`, and rows of `B`.
    pub rank: u32,
    /// Numerator of the adapters' scale, `alpha / rank`.
    pub alpha: f64,
    /// Linear layers of each block that have adapters.
    pub layers: AdaptedLayers,
    /// Precision of the frozen weights; `None` for that of products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<FrozenPrecision>,
}

keyword_enum! {
    /// The linear layers of a block that have low-rank adapters.
    pub enum AdaptedLayers {
        /// All linear layers of attention and of the feed-forward layer.
        All = "all",
        /// The linear layers of attention: queries, keys, values and output.
        Attention = "attention",
        /// The linear layers of the feed-forward layer.
        Ffn = "ffn",
    }
}

impl Lora {
    /// Returns the scale of the adapters: `alpha / rank`, the factor of `x·A·B`.
    pub fn scale(&self) -> f64 {
        self.alpha / f64::from(self.rank)
    }

    /// Returns `true` if the linear layers of attention have adapters.
    pub fn adapts_attention(&self) -> bool {
        self.layers != AdaptedLayers::Ffn
    }

    /// Returns `true` if the feed-forward layer has adapters.
    pub fn adapts_ffn(&self) -> bool {
        self.layers != AdaptedLayers::Attention
    }
}

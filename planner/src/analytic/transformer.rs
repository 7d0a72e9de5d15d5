//! Dimensions of a transformer that decide its cost, and its parameter counts.

/// Dimensions of a decoder transformer. Counts are `f64`, for formulas.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// Number of layers, without those of multi-token prediction.
    pub layers: f64,
    /// Hidden size, in channels.
    pub hidden: f64,
    /// Number of query heads.
    pub heads: f64,
    /// Number of key-value heads.
    pub kv_heads: f64,
    /// Number of channels of a query or key head.
    pub head: f64,
    /// Number of channels of a value head.
    pub head_value: f64,
    /// Dimensions of multi-head latent attention (low-rank keys and values), if it is used.
    pub latent: Option<LatentDims>,
    /// Dimensions of sliding-window attention, if some layers use it.
    pub window: Option<WindowDims>,
    /// Number of hidden channels of a dense feed-forward block.
    pub ffn: f64,
    /// True if the feed-forward block has a gate: three matrices rather than two.
    pub is_gated: bool,
    /// Dimensions of the mixture of experts, if some layers use it.
    pub experts: Option<ExpertDims>,
    /// True if the head shares the embedding; `None` if engines decide by the family of the model.
    pub is_tied: Option<bool>,
    /// Low-rank adapters, the only trained weights if there are any.
    pub adapters: Option<super::AdapterDims>,
    /// Number of entries in the vocabulary.
    pub vocabulary: f64,
    /// Number of tokens per sample.
    pub sequence: f64,
    /// Number of multi-token prediction layers, each with an output head.
    pub mtp_layers: f64,
}

/// Dimensions of sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowDims {
    /// Size of the window in tokens.
    pub tokens: f64,
    /// Share of the layers that have a window.
    pub share: f64,
}

/// Dimensions of multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentDims {
    /// Rank of the query projection.
    pub query: f64,
    /// Rank of the key-value projection.
    pub key_value: f64,
    /// Number of channels per head with rotary positions.
    pub rotary: f64,
}

/// Dimensions of the mixture of experts in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertDims {
    /// Number of experts, shared ones aside.
    pub count: f64,
    /// Number of experts chosen for each token (top-k).
    pub chosen: f64,
    /// Number of hidden channels of one expert.
    pub ffn: f64,
    /// Number of hidden channels of the shared experts together.
    pub shared: f64,
    /// Number of dense layers before the first layer with experts.
    pub dense_layers: f64,
    /// True if tokens beyond an expert's capacity are dropped, so that counts are known without a
    /// synchronization.
    pub drop: bool,
}

impl Transformer {
    /// Returns the number of matrices of a feed-forward block.
    pub fn matrices(&self) -> f64 {
        if self.is_gated { 3.0 } else { 2.0 }
    }

    /// Returns the number of multi-token prediction layers.
    pub fn further(&self) -> f64 {
        self.mtp_layers
    }

    /// Returns the number of parameters of a layer's attention.
    pub fn attention(&self) -> f64 {
        let (h, queries, values) = (self.hidden, self.heads * self.head, self.heads * self.head_value);
        match self.latent {
            Some(LatentDims { query, key_value, rotary }) => {
                let expanded = self.heads * (self.head - rotary + self.head_value);
                h * query + query * queries + h * (key_value + rotary) + key_value * expanded + values * h
            }
            None => h * (queries + 2.0 * self.kv_heads * self.head) + queries * h,
        }
    }

    /// Returns the number of parameters of a dense feed-forward block.
    pub fn feed_forward(&self) -> f64 {
        self.matrices() * self.hidden * self.ffn
    }

    /// Returns the number of parameters of one expert; 0 without experts.
    pub fn expert(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.matrices() * self.hidden * experts.ffn)
    }

    /// Returns the number of parameters of a layer's shared experts.
    pub fn shared(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.matrices() * self.hidden * experts.shared)
    }

    /// Returns the number of parameters of a layer's router.
    pub fn router(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.hidden * experts.count)
    }

    /// Returns the number of parameters of the embedding.
    pub fn embedding(&self) -> f64 {
        self.vocabulary * self.hidden
    }
}

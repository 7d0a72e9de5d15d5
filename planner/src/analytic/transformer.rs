//! Dimensions of a transformer that decide its cost, and its parameter counts.

/// Dimensions of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// Number of layers, multi-token prediction aside.
    pub layers: f64,
    /// Hidden size.
    pub hidden: f64,
    /// Query heads.
    pub heads: f64,
    /// Key-value heads.
    pub kv_heads: f64,
    /// Channels of a query or key head.
    pub head: f64,
    /// Channels of a value head.
    pub head_value: f64,
    /// Multi-head latent attention (low-rank keys and values), if used.
    pub latent: Option<LatentDims>,
    /// Sliding-window attention, if some layers use it.
    pub window: Option<WindowDims>,
    /// Hidden channels of a dense feed-forward.
    pub ffn: f64,
    /// True if the feed-forward has a gate: three matrices rather than two.
    pub is_gated: bool,
    /// Mixture of experts, if some layers use it.
    pub experts: Option<ExpertDims>,
    /// Vocabulary size.
    pub vocabulary: f64,
    /// Tokens per sample.
    pub sequence: f64,
    /// Multi-token prediction layers, each with a head.
    pub mtp_layers: f64,
}

/// Sliding-window attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowDims {
    /// Window size in tokens.
    pub tokens: f64,
    /// Share of the layers with a window.
    pub share: f64,
}

/// Multi-head latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentDims {
    /// Rank of the query projection.
    pub query: f64,
    /// Rank of the key-value projection.
    pub key_value: f64,
    /// Channels per head with rotary positions.
    pub rotary: f64,
}

/// Mixture of experts in a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertDims {
    /// Number of experts.
    pub count: f64,
    /// Experts per token (top-k).
    pub chosen: f64,
    /// Hidden channels of one expert.
    pub ffn: f64,
    /// Hidden channels of the shared experts.
    pub shared: f64,
    /// Dense layers before the first with experts.
    pub dense_layers: f64,
    /// True if tokens beyond an expert's capacity are dropped: counts are known without a synchronization.
    pub drop: bool,
}

impl Transformer {
    /// Number of matrices of a feed-forward.
    pub fn matrices(&self) -> f64 {
        if self.is_gated { 3.0 } else { 2.0 }
    }

    /// Number of multi-token prediction layers.
    pub fn further(&self) -> f64 {
        self.mtp_layers
    }

    /// Parameters of a layer's attention.
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

    /// Parameters of a dense feed-forward.
    pub fn feed_forward(&self) -> f64 {
        self.matrices() * self.hidden * self.ffn
    }

    /// Parameters of one expert.
    pub fn expert(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.matrices() * self.hidden * experts.ffn)
    }

    /// Parameters of a layer's shared experts.
    pub fn shared(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.matrices() * self.hidden * experts.shared)
    }

    /// Parameters of a layer's router.
    pub fn router(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.hidden * experts.count)
    }

    /// Parameters of the embedding.
    pub fn embedding(&self) -> f64 {
        self.vocabulary * self.hidden
    }
}

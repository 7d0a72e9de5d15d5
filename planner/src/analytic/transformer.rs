//! The dimensions of a transformer that decide its cost, and its parameters by part.

/// Dimensions of a decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct Transformer {
    /// Layers, not counting one that predicts a further token.
    pub layers: f64,
    /// Hidden size.
    pub hidden: f64,
    /// Heads of queries.
    pub heads: f64,
    /// Heads of keys and values.
    pub kv_heads: f64,
    /// Channels of a head of queries and keys.
    pub head: f64,
    /// Channels of a head of values.
    pub head_value: f64,
    /// Latent attention, where keys and values pass through narrow matrices.
    pub latent: Option<LatentDims>,
    /// Sliding windows, where not every layer attends to all tokens.
    pub window: Option<WindowDims>,
    /// Hidden channels of the feed-forward of a dense layer.
    pub ffn: f64,
    /// Whether it has a gate: three matrices rather than two.
    pub is_gated: bool,
    /// Experts, in layers that have them.
    pub experts: Option<ExpertDims>,
    /// Tokens of the vocabulary.
    pub vocabulary: f64,
    /// Tokens of a sample.
    pub sequence: f64,
    /// Layers, each with a head, that predict a further token.
    pub mtp_layers: f64,
}

/// Sliding windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowDims {
    /// Tokens that a token attends to in a layer with a window.
    pub tokens: f64,
    /// Share of the layers that have one.
    pub share: f64,
}

/// Latent attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatentDims {
    /// Channels that queries pass through.
    pub query: f64,
    /// Channels that keys and values pass through.
    pub key_value: f64,
    /// Channels of a head that carry rotary positions.
    pub rotary: f64,
}

/// Experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertDims {
    /// In all.
    pub count: f64,
    /// That one token goes to.
    pub chosen: f64,
    /// Hidden channels of one.
    pub ffn: f64,
    /// Hidden channels of those that every token goes to.
    pub shared: f64,
    /// Layers before the first with experts.
    pub dense_layers: f64,
    /// Whether tokens beyond an expert's capacity are dropped, so that counts are known without waiting.
    pub drop: bool,
}

impl Transformer {
    /// Matrices of a feed-forward.
    pub fn matrices(&self) -> f64 {
        if self.is_gated { 3.0 } else { 2.0 }
    }

    /// Layers that predict a further token.
    pub fn further(&self) -> f64 {
        self.mtp_layers
    }

    /// Parameters of the attention of a layer.
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

    /// Parameters of the experts that every token goes to.
    pub fn shared(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.matrices() * self.hidden * experts.shared)
    }

    /// Parameters that choose experts.
    pub fn router(&self) -> f64 {
        self.experts.map_or(0.0, |experts| self.hidden * experts.count)
    }

    /// Parameters of the embedding.
    pub fn embedding(&self) -> f64 {
        self.vocabulary * self.hidden
    }

    /// Parameters that one token meets, with the head and without the embedding.
    pub fn active(&self) -> f64 {
        let (attention, dense) = (self.attention(), self.feed_forward());
        let layers = match self.experts {
            Some(experts) => {
                let sparse = attention + experts.chosen * self.expert() + self.shared() + self.router();
                (self.layers - experts.dense_layers) * sparse + experts.dense_layers * (attention + dense)
            }
            None => self.layers * (attention + dense),
        };
        layers + self.embedding()
    }

    /// Floating-point operations of training for one token: six for each parameter it meets, and causal attention.
    pub fn flops_per_token(&self) -> f64 {
        6.0 * self.active() + 6.0 * self.layers * self.heads * self.head * self.sequence
    }
}

//! The mixture of experts of a decoder.

use super::is_false;
use serde::{Deserialize, Serialize};

/// A mixture of experts in place of each feed-forward layer.
///
/// A router gives every token a probability for each expert. The token passes the experts with the largest
/// ones. Their outputs are summed with these probabilities as weights, scaled to sum to one. With one expert
/// per token the weight is not scaled: it would always be one, and the router would learn nothing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Experts {
    /// Number of experts in each block.
    pub count: u32,
    /// Number of experts that each token is routed to; at most `count`.
    pub per_token: u32,
    /// Capacity factor: the most tokens of one sequence that an expert takes, as a multiple of an even share.
    /// Later tokens skip the expert. `None`: no limit.
    pub capacity: Option<f64>,
    /// Weight of the load-balancing loss that is added to the cross-entropy; 0 for none.
    pub balance: f64,
    /// Total width of the shared experts, which every token passes through with weight 1; `None`: no shared
    /// experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_ffn: Option<u32>,
    /// `true` if the output of the shared experts is multiplied by the sigmoid of a linear layer of their
    /// input.
    #[serde(default, skip_serializing_if = "is_false")]
    pub shared_gate: bool,
    /// `true` if the probabilities of a token's experts are its weights as they are; `false`: scaled to sum to
    /// one if there are several.
    #[serde(default, skip_serializing_if = "is_false")]
    pub raw_gates: bool,
    /// Leading layers that are dense instead of having experts; `None`: every layer has experts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<DenseLayers>,
}

/// The leading dense layers of a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DenseLayers {
    /// Number of leading dense layers; fewer than the layers of the model.
    pub layers: u32,
    /// Feed-forward width of the dense layers.
    pub ffn: u32,
}

impl Experts {
    /// Returns a mixture of `count` experts, `per_token` of them per token, without a capacity limit or
    /// shared experts.
    pub const fn new(count: u32, per_token: u32) -> Self {
        Self {
            count,
            per_token,
            capacity: None,
            balance: 0.01,
            shared_ffn: None,
            shared_gate: false,
            raw_gates: false,
            dense: None,
        }
    }

    /// Returns the most tokens that one expert takes from a sequence of `length` tokens; at least one.
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

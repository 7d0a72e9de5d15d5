//! Floating-point operations (FLOPs) of training a transformer, and the share of the hardware's peak that a
//! step reaches (MFU).

use super::{StepInputs, Transformer};

impl Transformer {
    /// Returns the number of parameters that take part in the computation of one token, with the output head
    /// and without the embedding.
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

    /// Returns the FLOPs to train on one token: six per active parameter, plus those of causal attention.
    pub fn flops_per_token(&self) -> f64 {
        6.0 * self.active() + 6.0 * self.layers * self.heads * self.head * self.sequence
    }
}

impl StepInputs<'_> {
    /// Returns the model FLOPs utilization (MFU) of a step that takes `seconds`: the FLOPs of the model,
    /// without recomputation, over those that all devices could do at `peak` FLOP/s each.
    pub fn model_flops_utilization(&self, seconds: f64, peak: f64) -> f64 {
        let tokens = self.config.batch() * self.model.sequence;
        self.model.flops_per_token() * tokens / (seconds * self.config.ranks() * peak)
    }
}

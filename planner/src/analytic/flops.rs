//! Floating-point operations (FLOPs) of training a transformer, and the share of the peak that a step reaches
//! (MFU).

use super::{StepInputs, Transformer};

impl Transformer {
    /// Active parameters per token, with the head and without the embedding.
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

    /// Training FLOPs per token: six per active parameter, plus causal attention.
    pub fn flops_per_token(&self) -> f64 {
        6.0 * self.active() + 6.0 * self.layers * self.heads * self.head * self.sequence
    }
}

impl StepInputs<'_> {
    /// Returns the model FLOPs utilisation (MFU) of a step of `seconds`: the model's FLOPs without
    /// recomputation, over the data sheet's `peak` FLOP/s.
    pub fn model_flops_utilization(&self, seconds: f64, peak: f64) -> f64 {
        let tokens = self.config.batch() * self.model.sequence;
        self.model.flops_per_token() * tokens / (seconds * self.config.ranks() * peak)
    }
}

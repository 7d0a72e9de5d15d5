//! What the recipe language can say and the worker cannot train, wherever it runs.

use dtrain_recipes::{Model, Precision};
use std::fmt;

/// Something that the recipe language can say and the worker cannot train in any layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untrainable {
    /// The key of the recipe.
    pub key: &'static str,
    /// What it asks for.
    pub what: &'static str,
}

impl fmt::Display for Untrainable {
    /// What is missing and, after a semicolon, what to do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, what } = self;
        write!(
            f,
            "`{key}`: dtrain's own worker has no {what}; plan for an engine that has it: \
             `dtrain plan RECIPE --on \"HOSTSxGPUS PART\" --engine NAME` with megatron, torchtitan or jax"
        )
    }
}

/// What of a model or of a precision the worker cannot train, wherever it runs; `None` when there is nothing.
pub fn cannot_train(model: &Model, precision: Precision) -> Option<Untrainable> {
    let missing = |key, what| Some(Untrainable { key, what });
    if precision == Precision::Fp8 {
        return missing("train.precision", "fp8");
    }
    let Model::Decoder(decoder) = model else { return None };
    if decoder.latent.is_some() {
        return missing("model.latent", "latent attention");
    }
    if decoder.window.is_some() {
        return missing("model.window", "sliding windows");
    }
    if decoder.mtp_layers > 0 {
        return missing("model.mtp_layers", "multi-token prediction");
    }
    let experts = decoder.experts?;
    if experts.shared_ffn.is_some() {
        return missing("model.shared_ffn", "shared experts");
    }
    experts.dense.and_then(|_| missing("model.dense_layers", "dense layers among layers with experts"))
}

//! Recipes that are valid but that the worker cannot train in any layout.

use dtrain_recipes::{Model, Precision};
use std::fmt;

/// A setting of a recipe that the worker supports in no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Untrainable {
    /// Recipe key of the setting.
    pub key: &'static str,
    /// Description of the requested feature that is missing.
    pub what: &'static str,
}

impl fmt::Display for Untrainable {
    /// Formats the unsupported setting and, after a semicolon, the suggested fix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, what } = self;
        write!(
            f,
            "`{key}`: dtrain's own worker has no {what}; plan for an engine that has it: \
             `dtrain plan RECIPE --on \"HOSTSxGPUS PART\" --engine NAME` with megatron, torchtitan or jax"
        )
    }
}

/// Returns the setting of a model or a precision that the worker cannot train; `None` if there is none.
pub fn cannot_train(model: &Model, precision: Precision) -> Option<Untrainable> {
    let missing = |key, what| Some(Untrainable { key, what });
    if precision == Precision::Fp8 {
        return missing("train.precision", "fp8");
    }
    let Model::Decoder(decoder) = model else { return None };
    if decoder.latent.is_some() {
        return missing("model.latent", "latent attention");
    }
    if decoder.mtp_layers > 0 {
        return missing("model.mtp_layers", "multi-token prediction");
    }
    let experts = decoder.experts?;
    experts.dense.and_then(|_| missing("model.dense_layers", "dense layers among layers with experts"))
}

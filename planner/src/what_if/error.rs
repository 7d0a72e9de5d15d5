//! Reasons why data sheets give no plan.

/// Reasons why there is no plan from data sheets.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DatasheetPlanError {
    /// The model is not a decoder, which the formulas require.
    #[error(
        "model.kind = \"{kind}\": only decoders can be planned from data sheets; plan other models on the \
        machine itself"
    )]
    NoDecoder {
        /// Kind of the model.
        kind: &'static str,
    },
    /// Adapters: the formulas count gradients and moments of every weight.
    #[error(
        "model.lora: adapters cannot be planned from data sheets; plan them on the machine itself, without --on"
    )]
    Adapters,
    /// The number of samples per step cannot be determined.
    #[error(
        "train.batch is \"auto\" and objective.stop names neither steps, samples nor tokens: name one of them, or the batch"
    )]
    NoBatch,
    /// A pin that the space of equal devices lacks.
    #[error("layout.{key} is set: the cost model for other devices does not support it; remove it")]
    Pin {
        /// Key of the pin.
        key: &'static str,
    },
    /// The engine does not support the device.
    #[error("{engine} does not run on {part}{instead}")]
    Part {
        /// Name of the engine.
        engine: &'static str,
        /// Name of the device.
        part: String,
        /// Engines that support it, in words.
        instead: String,
    },
    /// No layout divides the batch, heads and pinned axes.
    #[error(
        "no layout of {devices} devices is left: a batch of {batch} samples, {heads} heads and the pinned axes must divide"
    )]
    NoLayout {
        /// Number of devices.
        devices: u32,
        /// Samples per step.
        batch: u32,
        /// Query heads.
        heads: u32,
    },
    /// The engine can run none of the remaining layouts.
    #[error("{engine} can run no layout of {devices} devices: it does not support {what}; {instead}")]
    Engine {
        /// Name of the engine.
        engine: &'static str,
        /// Number of devices.
        devices: u32,
        /// The unsupported feature.
        what: &'static str,
        /// Suggested alternative.
        instead: &'static str,
    },
    /// Memory does not suffice.
    #[error(
        "no layout fits: the nearest needs {needed:.1} GiB of {available:.1} GiB on each device ({nearest})"
    )]
    NothingFits {
        /// GiB of the heaviest rank.
        needed: f64,
        /// GiB of a device.
        available: f64,
        /// The layout, in words.
        nearest: String,
    },
}

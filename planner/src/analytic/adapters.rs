//! Low-rank adapters beside frozen weights: the work and the bytes that they change.

use super::matmul::{ForwardBackward, linear};
use super::{StepInputs, Transformer};
use dtrain_recipes::FrozenPrecision;

/// Low-rank adapters of a model; all other weights are frozen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterDims {
    /// Rank of the adapters.
    pub rank: f64,
    /// Matrices of a layer that have adapters.
    pub matrices: AdaptedMatrices,
    /// Precision of the frozen weights; `None` for that of products.
    pub frozen: Option<FrozenPrecision>,
}

/// The matrices of a layer that have adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each of them is a matrix of its own")]
#[expect(missing_docs, reason = "named after the matrices")]
pub struct AdaptedMatrices {
    pub query: bool,
    pub key: bool,
    pub value: bool,
    pub output: bool,
    pub gate: bool,
    pub up: bool,
    pub down: bool,
}

impl AdaptedMatrices {
    /// All matrices of attention and feed-forward block.
    pub const ALL: Self =
        Self { query: true, key: true, value: true, output: true, gate: true, up: true, down: true };

    /// Returns the inputs and outputs of each adapted matrix of a layer of `model` without experts.
    pub fn shapes(self, model: &Transformer) -> impl Iterator<Item = (f64, f64)> {
        let (h, f) = (model.hidden, model.ffn);
        let (queries, keys) = (model.heads * model.head, model.kv_heads * model.head);
        [
            (self.query, (h, queries)),
            (self.key, (h, keys)),
            (self.value, (h, keys)),
            (self.output, (model.heads * model.head_value, h)),
            (self.gate && model.is_gated, (h, f)),
            (self.up, (h, f)),
            (self.down, (f, h)),
        ]
        .into_iter()
        .filter(|(is_adapted, _)| *is_adapted)
        .map(|(_, shape)| shape)
    }
}

impl AdapterDims {
    /// Returns the number of trained parameters of a layer of `model`.
    pub fn parameters(&self, model: &Transformer) -> f64 {
        self.matrices.shapes(model).map(|(inputs, outputs)| self.rank * (inputs + outputs)).sum()
    }
}

impl StepInputs<'_> {
    /// Returns the share of the parameters of a layer that is trained.
    pub(super) fn trained_share(&self) -> f64 {
        let Some(adapters) = self.model.adapters else { return 1.0 };
        let all = self.model.attention() + self.model.feed_forward();
        adapters.parameters(self.model) / all
    }

    /// Returns the bytes of a frozen weight in a layer, with the scales of its blocks.
    pub(super) fn frozen_bytes(&self, frozen: Option<FrozenPrecision>) -> f64 {
        match frozen {
            Some(FrozenPrecision::F32) => 4.0,
            Some(FrozenPrecision::Bf16) => 2.0,
            // Scales of a row and of a column.
            Some(FrozenPrecision::Int8) => 1.01,
            // Blocks of 64 with scales of 8 bits, which have scales of 32 (Dettmers et al. 2023).
            Some(FrozenPrecision::Nf4) => 0.516,
            None => self.usual_frozen_bytes(),
        }
    }

    fn usual_frozen_bytes(&self) -> f64 {
        if self.products == super::MatmulPrecision::Bits32 { 4.0 } else { 2.0 }
    }

    /// Returns `true` if frozen weights must be expanded before each product.
    pub(super) fn is_quantized(&self) -> bool {
        self.model.adapters.is_some_and(|adapters| {
            matches!(adapters.frozen, Some(FrozenPrecision::Int8 | FrozenPrecision::Nf4))
        })
    }
}

/// Returns the seconds of a linear layer of the model over `tokens`: frozen weights have no gradients.
pub(super) fn model_linear(case: &StepInputs<'_>, tokens: f64, outputs: f64, inputs: f64) -> ForwardBackward {
    let all = linear(tokens, outputs, inputs, &case.device);
    if case.model.adapters.is_none() {
        return all;
    }
    // The gradient of the inputs alone is a product of the size of the forward.
    ForwardBackward { forward: all.forward, backward: linear(tokens, inputs, outputs, &case.device).forward }
}

/// Returns the seconds of the adapters of a layer: two thin products for each, and passes over what goes in
/// and comes out; and the seconds to expand quantized weights.
pub(super) fn adapter_seconds(case: &StepInputs<'_>) -> ForwardBackward {
    let Some(adapters) = case.model.adapters else { return ForwardBackward::default() };
    let (c, t, device) = (case.general(), case.config.tensor(), &case.device);
    let tokens = case.tokens();
    let of = |(inputs, outputs): (f64, f64)| {
        let thin = linear(tokens, adapters.rank, inputs / t, device)
            + linear(tokens, outputs / t, adapters.rank, device);
        let passes = c.adapter_passes * tokens * (inputs + outputs) / t / device.stream;
        thin + ForwardBackward { forward: passes, backward: 1.5 * passes }
    };
    let thin = adapters.matrices.shapes(case.model).map(of).fold(ForwardBackward::default(), |a, b| a + b);
    let weights = (case.model.attention() + case.model.feed_forward()) / t;
    let expanded = if case.is_quantized() { c.dequantise * 2.5 * weights / device.stream } else { 0.0 };
    thin + ForwardBackward { forward: expanded, backward: expanded }
}

/// Returns the number of kernels that adapters, and the expansion of quantized weights, add to the forward of
/// a layer.
pub(super) fn adapter_operations(case: &StepInputs<'_>) -> f64 {
    let Some(adapters) = case.model.adapters else { return 0.0 };
    #[expect(clippy::cast_precision_loss, reason = "at most seven")]
    let adapted = adapters.matrices.shapes(case.model).count() as f64;
    let expanded = if case.is_quantized() { 3.0 * 7.0 } else { 0.0 };
    case.general().operations_adapter * adapted + expanded
}

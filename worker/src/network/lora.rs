//! LoRA adapters: their parameters, and their forward pass beside the parallel linear layers.

use super::tensor_parallel::{enter, leave};
use super::{Initializer, LayerContext, ParameterSpec, Weights};
use crate::ops;
use burn::tensor::Tensor;
use dtrain_recipes::{Decoder, Lora};

/// Returns the parameters of the LoRA adapters of one block. `A` is initialized with the variance that
/// the library `peft` uses (uniform between ±1/√inputs), and `B` with zeros: the initial model equals the
/// one without adapters.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "sides of what lies in memory"
)]
pub(crate) fn adapter_specs(decoder: &Decoder, lora: &Lora, prefix: &str) -> Vec<ParameterSpec> {
    let rank = lora.rank as usize;
    let pair = |(name, [input, output]): (&str, [u64; 2])| {
        let normal = Initializer::Normal((3.0 * input as f64).sqrt().recip());
        let spec =
            |end: &str, shape, initial| ParameterSpec::new(prefix, &format!("{name}.{end}"), shape, initial);
        [
            spec("lora_a", &[input as usize, rank], normal),
            spec("lora_b", &[rank, output as usize], Initializer::Zeros),
        ]
    };
    decoder.adapted().into_iter().flat_map(pair).collect()
}

/// Computes the LoRA adapters of column-parallel layers, `scale · x·A·B` of each, side by side; `None` if
/// the layers have none. Every rank has all of `A` and some columns of `B`. `[b, t, w]` → `[b, t, sum of
/// the columns held]`
pub(super) fn column_adapters(
    layers: &LayerContext,
    weights: &Weights<'_>,
    names: &[&str],
    x: Tensor<3>,
    scale: f64,
) -> Option<Tensor<3>> {
    let down = names.iter().map(|name| weights.find_factor(&format!("{name}.lora_a")));
    let down = down.collect::<Option<Vec<_>>>()?;
    // Outside of the cut layers every rank has the whole gradient of `x`, so `A` is applied before they are
    // entered.
    let low = ops::project(layers.arithmetic, x, down, Vec::new(), None) * scale;
    let low = enter(&layers.partners, low);
    let rank = low.dims()[2] / names.len();
    let up = (0..).zip(names).map(|(place, name)| {
        let low = low.clone().narrow(2, place * rank, rank);
        let factor = weights.factor(&format!("{name}.lora_b"));
        ops::project(layers.arithmetic, low, vec![factor], Vec::new(), None)
    });
    Some(Tensor::cat(up.collect(), 2))
}

/// Returns `residual`, if there is one, plus the output of the LoRA adapter of a row-parallel layer, `scale · x·A·B`. Every
/// rank has some rows of `A` and all of `B`. `x` is `[b, t, rows held]`, `residual` is `[b, t, w]`.
pub(super) fn row_adapter(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Option<Tensor<3>>,
    scale: f64,
) -> Option<Tensor<3>> {
    let Some(down) = weights.find_factor(&format!("{name}.lora_a")) else { return residual };
    let partial = ops::project(layers.arithmetic, x, vec![down], Vec::new(), None) * scale;
    let low = if layers.partners.tensor.size() == 1 {
        partial
    } else {
        leave(&layers.partners, partial, None, None)
    };
    let up = weights.factor(&format!("{name}.lora_b"));
    Some(ops::project(layers.arithmetic, low, vec![up], Vec::new(), residual))
}

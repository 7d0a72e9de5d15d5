//! Parallel linear layers: matrices cut by columns or by rows among the tensor-parallel ranks, with their LoRA
//! adapters.

use super::tensor_parallel::{enter, leave};
use super::{LayerContext, Weights};
use crate::ops;
use burn::tensor::Tensor;

impl LayerContext {
    /// Computes column-parallel linear layers of one input. Layers with LoRA adapters add their output,
    /// times `scale`. `[b, t, w]` → `[b, t, columns held]`
    pub(crate) fn column(
        &self,
        weights: &Weights<'_>,
        names: &[&str],
        x: Tensor<3>,
        scale: Option<f64>,
    ) -> Tensor<3> {
        let added = scale.and_then(|scale| column_adapters(self, weights, names, x.clone(), scale));
        column(self, weights, names, x, added)
    }

    /// Computes a row-parallel linear layer, plus the residual. A LoRA adapter adds its output, times
    /// `scale`. `[b, t, rows held]` → `[b, t, w]`
    pub(crate) fn row(
        &self,
        weights: &Weights<'_>,
        name: &str,
        x: Tensor<3>,
        residual: Tensor<3>,
        scale: Option<f64>,
    ) -> Tensor<3> {
        let residual = match scale {
            Some(scale) => row_adapter(self, weights, name, x.clone(), residual, scale),
            None => residual,
        };
        row(self, weights, name, x, residual)
    }
}

/// Computes column-parallel layers of one input, plus `added`.
///
/// `[b, t, w]` → `[b, t, sum of the columns held]`
fn column(
    layers: &LayerContext,
    weights: &Weights<'_>,
    names: &[&str],
    x: Tensor<3>,
    added: Option<Tensor<3>>,
) -> Tensor<3> {
    let matrices = names.iter().map(|name| weights.factor(&format!("{name}.weight"))).collect();
    let biases = names.iter().filter_map(|name| weights.find(&format!("{name}.bias"))).collect();
    ops::project(layers.arithmetic, enter(&layers.partners, x), matrices, biases, added)
}

/// Computes a row-parallel layer, plus the residual. `[b, t, rows held]` → `[b, t, w]`
fn row(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Tensor<3>,
) -> Tensor<3> {
    let (arithmetic, partners) = (layers.arithmetic, &layers.partners);
    let matrix = vec![weights.factor(&format!("{name}.weight"))];
    let bias: Option<Tensor<1>> = weights.find(&format!("{name}.bias"));
    if partners.tensor.size() == 1 {
        return ops::project(arithmetic, x, matrix, bias.into_iter().collect(), Some(residual));
    }
    let partial = ops::project(arithmetic, x, matrix, Vec::new(), None);
    leave(partners, partial, bias, Some(residual))
}

/// Computes the LoRA adapters of column-parallel layers: `scale · x·A·B` of each, side by side; `None` if
/// the layers have none. Every rank has all of `A` and columns of `B`. `[b, t, w]` → `[b, t, sum of the
/// columns held]`
fn column_adapters(
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

/// Returns `residual` plus the LoRA adapter of a row-parallel layer: `scale · x·A·B`. Every rank has rows
/// of `A` and all of `B`. `x` is `[b, t, rows held]`, `residual` `[b, t, w]`.
fn row_adapter(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Tensor<3>,
    scale: f64,
) -> Tensor<3> {
    let Some(down) = weights.find_factor(&format!("{name}.lora_a")) else { return residual };
    let partial = ops::project(layers.arithmetic, x, vec![down], Vec::new(), None) * scale;
    let low = if layers.partners.tensor.size() == 1 {
        partial
    } else {
        leave(&layers.partners, partial, None, None)
    };
    let up = weights.factor(&format!("{name}.lora_b"));
    ops::project(layers.arithmetic, low, vec![up], Vec::new(), Some(residual))
}

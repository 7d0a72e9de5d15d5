//! Parallel linear layers, whose matrices are cut by columns or by rows among the tensor-parallel ranks.

use super::lora::{column_adapters, row_adapter};
use super::tensor_parallel::{enter, leave};
use super::{LayerContext, Weights};
use crate::ops;
use burn::tensor::Tensor;

impl LayerContext {
    /// Computes column-parallel linear layers of one input. Those with LoRA adapters add the output of
    /// the adapters, times `scale`. `[b, t, w]` → `[b, t, columns held]`
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

    /// Computes a row-parallel linear layer and adds the residual, if there is one. If it has a LoRA adapter, the output
    /// of the adapter is added too, times `scale`. `[b, t, rows held]` → `[b, t, w]`
    pub(crate) fn row(
        &self,
        weights: &Weights<'_>,
        name: &str,
        x: Tensor<3>,
        residual: Option<Tensor<3>>,
        scale: Option<f64>,
    ) -> Tensor<3> {
        let residual = match scale {
            Some(scale) => row_adapter(self, weights, name, x.clone(), residual, scale),
            None => residual,
        };
        row(self, weights, name, x, residual)
    }
}

/// Computes column-parallel layers of one input and adds `added`.
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

/// Computes a row-parallel layer and adds the residual, if there is one. `[b, t, rows held]` → `[b, t, w]`
fn row(
    layers: &LayerContext,
    weights: &Weights<'_>,
    name: &str,
    x: Tensor<3>,
    residual: Option<Tensor<3>>,
) -> Tensor<3> {
    let (arithmetic, partners) = (layers.arithmetic, &layers.partners);
    let matrix = vec![weights.factor(&format!("{name}.weight"))];
    let bias: Option<Tensor<1>> = weights.find(&format!("{name}.bias"));
    if partners.tensor.size() == 1 {
        return ops::project(arithmetic, x, matrix, bias.into_iter().collect(), residual);
    }
    let partial = ops::project(arithmetic, x, matrix, Vec::new(), None);
    leave(partners, partial, bias, residual)
}

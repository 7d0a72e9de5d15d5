//! Multi-layer perceptrons over the columns of a table.
// Shapes in this file: b samples · w columns

use super::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights};
use crate::network::ModelInput;
use crate::ops;
use burn::tensor::Tensor;
use dtrain_recipes::{Mlp, MlpActivation};

impl NeuralNetwork for Mlp {
    fn blocks(&self) -> u32 {
        u32::try_from(self.hidden.len()).expect("a list in a recipe is short")
    }

    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec> {
        let layer = match part {
            ModelPart::First => return Vec::new(),
            ModelPart::Block(index) => index as usize,
            ModelPart::Head => self.hidden.len(),
        };
        let widths = self.widths();
        let shape = [widths[layer] as usize, widths[layer + 1] as usize];
        // He et al. 2015: keeps the variance through a rectifier.
        let deviation = (2.0 / shape[0] as f64).sqrt();
        let prefix = format!("layers.{layer}.");
        vec![
            ParameterSpec::new(&prefix, "weight", &shape, Initializer::Normal(deviation)),
            ParameterSpec::new(&prefix, "bias", &shape[1..], Initializer::Zeros),
        ]
    }

    /// Returns the rows of samples unchanged. `[b, 1, w]`
    fn first(&self, layers: &LayerContext, _: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3> {
        layers.rows(samples)
    }

    /// Computes one hidden layer. `[b, 1, in]` → `[b, 1, out]`
    fn block(
        &self,
        layers: &LayerContext,
        _: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let x = linear(layers, weights, x);
        let activated = match self.activation {
            MlpActivation::Relu => ops::relu(x),
            MlpActivation::Gelu => ops::gelu(layers.arithmetic, x),
        };
        (activated, None)
    }

    /// Computes the scores of the classes with the last layer. `[b, 1, in]` → `[b, classes]`
    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
        linear(layers, weights, x).flatten(0, 1)
    }
}

pub(super) fn linear(layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<3> {
    ops::project(layers.arithmetic, x, vec![weights.factor("weight")], vec![weights.get("bias")], None)
}

//! Multi-layer perceptrons over the columns of a table.
// Shapes in this file: b samples · w columns

use super::{Initial, Network, Part, Spec, Weights};
use crate::ops;
use crate::stage::Samples;
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_recipes::{Activation, Mlp};

pub(crate) fn specs(mlp: &Mlp, part: Part) -> Vec<Spec> {
    let layer = match part {
        Part::Embedding => return Vec::new(),
        Part::Block(index) => index as usize,
        Part::Head => mlp.hidden.len(),
    };
    let widths = mlp.widths();
    let shape = [widths[layer] as usize, widths[layer + 1] as usize];
    // He et al. 2015: keeps the variance through a rectifier.
    let deviation = (2.0 / shape[0] as f64).sqrt();
    let prefix = format!("layers.{layer}.");
    vec![
        Spec::new(&prefix, "weight", &shape, Initial::Normal(deviation)),
        Spec::new(&prefix, "bias", &shape[1..], Initial::Zeros),
    ]
}

/// The samples as they are. `[b, 1, w]`
pub(crate) fn rows(samples: &Samples<'_>, device: &Device) -> Tensor<3> {
    let Samples::Rows { values, samples, width, .. } = samples else {
        panic!("this model trains on rows, not on tokens");
    };
    Tensor::from_data(TensorData::new(values.to_vec(), [*samples, 1, *width]), device)
}

/// A hidden layer. `[b, 1, in]` → `[b, 1, out]`
pub(crate) fn layer(network: &Network, mlp: &Mlp, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<3> {
    let x = linear(network, weights, x);
    match mlp.activation {
        Activation::Gelu => ops::gelu(network.arithmetic, x),
        Activation::Relu | Activation::Swiglu => ops::relu(x),
    }
}

/// Scores of the classes. `[b, 1, in]` → `[b, classes]`
pub(crate) fn logits(network: &Network, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2> {
    linear(network, weights, x).flatten(0, 1)
}

pub(crate) fn linear(network: &Network, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<3> {
    ops::project(network.arithmetic, x, vec![weights.factor("weight")], vec![weights.get("bias")], None)
}

//! Networks: the parts of a model, their parameters, and a forward pass for each part.
//!
//! A network knows shapes and names. It knows no rank and no axis, no micro-batch and no gradient:
//! [`crate::stage`] runs the parts, and [`LayerContext`] has the layers whose matrices may be cut among
//! ranks. Those of dtrain are in `model/`; [`BurnNetwork`] makes one of any burn modules.

mod burn_modules;
pub(crate) mod context_parallel;
pub(crate) mod initializer;
mod kv_cache;
mod layers;
pub(crate) mod lora;
mod model_input;
mod model_parameter;
mod outline;
mod parallel_linear;
mod parameter_spec;
mod registry;
mod settings;
pub(crate) mod tensor_parallel;
mod weights;

pub use burn_modules::{BurnNetwork, HeadlessNetwork, ModuleInput};
pub(crate) use kv_cache::KvCache;
pub use layers::LayerContext;
pub(crate) use layers::RotaryAngles;
pub use model_input::ModelInput;
pub use model_parameter::ModelParameter;
pub use outline::outline;
pub use parameter_spec::{Initializer, ModelPart, ParameterSpec};
pub(crate) use registry::built;
pub use registry::{BuildFn, ModelBuildError, register, registered};
pub use settings::{ModelSettings, SettingValue};
pub use weights::{ForwardMode, Weights};

use crate::ops::{self, DeferredLossFigures};
use burn::tensor::Tensor;

/// The network of a model, whose parts are the first one, equal blocks, and the head.
pub trait NeuralNetwork: Send {
    /// Returns the number of blocks between the first part and the head.
    fn blocks(&self) -> u32;

    /// Returns the parameters of one part, with their initial values. If the first part and the head
    /// declare the same name, it is one shared parameter.
    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec>;

    /// Computes the first part: the activation before the blocks, `[samples, rows, width]`.
    fn first(&self, layers: &LayerContext, weights: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3>;

    /// Computes block `index`: the activation after it, and the term that it adds to the mean loss, as a
    /// tensor of one element.
    fn block(
        &self,
        layers: &LayerContext,
        index: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>);

    /// Computes the head: the scores before the softmax, one row for each prediction, `[predictions,
    /// classes]`. If the classes are cut among ranks, these are the scores of this rank's classes.
    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2>;

    /// Computes the mean loss from the output of [`NeuralNetwork::scores`], and its figures:
    /// cross-entropy unless a network overrides it.
    fn loss(
        &self,
        layers: &LayerContext,
        weights: &Weights<'_>,
        scores: Tensor<2>,
        targets: &[u32],
    ) -> (Tensor<1>, DeferredLossFigures) {
        let _ = weights;
        ops::cross_entropy(layers.arithmetic, scores, targets, 0.0)
    }

    /// Frees the initial values that were drawn when the network was built; [`NeuralNetwork::parameters`]
    /// is not called after that.
    fn drop_initial_values(&mut self) {}
}

#[cfg(test)]
pub(crate) mod tests;

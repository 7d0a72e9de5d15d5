//! What a model is to the worker: its parts, their parameters, and a forward for each part.
//!
//! A network knows shapes and names. It knows no rank and no axis, no micro-batch and no gradient: [`crate::stage`] runs
//! the parts, and [`LayerContext`] has the layers whose matrices may be cut among ranks. Those of dtrain are in `model/`; [`BurnNetwork`]
//! makes one of any modules of burn.

mod burn_modules;
mod kv_cache;
mod layers;
mod outline;
mod parameter_spec;
mod registry;
mod settings;
mod weights;

pub use burn_modules::{BurnNetwork, HeadlessNetwork, ModuleInput};
pub(crate) use kv_cache::KvCache;
pub use layers::LayerContext;
pub(crate) use layers::RotaryAngles;
pub use outline::outline;
pub use parameter_spec::{Initializer, ModelPart, ParameterSpec};
pub use registry::{BuildFn, ModelBuildError, register, registered};
pub use settings::{ModelSettings, SettingValue};
pub use weights::Weights;

use crate::ops::{self, DeferredLossFigures};
use crate::stage::ModelInput;
use burn::tensor::Tensor;
use dtrain_recipes::Model;

/// A model: its parts are the first, equal blocks, and the head.
pub trait NeuralNetwork: Send {
    /// Number of blocks.
    fn blocks(&self) -> u32;

    /// The parameters of a part, with how they begin. A name of the first part that the head declares too is the same
    /// parameter.
    fn parameters(&self, part: ModelPart) -> Vec<ParameterSpec>;

    /// The first activation. `[samples, rows, width]`
    fn first(&self, layers: &LayerContext, weights: &Weights<'_>, samples: &ModelInput<'_>) -> Tensor<3>;

    /// The activation after block `index`, and what the block adds to the mean loss: a tensor of one element.
    fn block(
        &self,
        layers: &LayerContext,
        index: u32,
        weights: &Weights<'_>,
        x: Tensor<3>,
    ) -> (Tensor<3>, Option<Tensor<1>>);

    /// Scores before the softmax, one row for each prediction; of classes that are cut among ranks those of this rank.
    /// `[predictions, classes]`
    fn scores(&self, layers: &LayerContext, weights: &Weights<'_>, x: Tensor<3>) -> Tensor<2>;

    /// The mean loss of what [`NeuralNetwork::scores`] gave, and its figures: cross-entropy unless a network has another.
    fn loss(
        &self,
        layers: &LayerContext,
        weights: &Weights<'_>,
        scores: Tensor<2>,
        targets: &[u32],
    ) -> (Tensor<1>, DeferredLossFigures) {
        let _ = weights;
        ops::cross_entropy(layers.arithmetic, scores, targets)
    }

    /// Frees initial values that were drawn when the network was built; nobody asks for parameters after that.
    fn drop_initial_values(&mut self) {}
}

/// The network of a model, whose initial values follow from `seed` where it draws them when it is built.
///
/// `Err` when it is a foreign command, or a network that this program has not, or that does not fit the recipe.
pub(crate) fn build(model: &Model, seed: u64) -> Result<Box<dyn NeuralNetwork>, ModelBuildError> {
    match model {
        Model::Decoder(decoder) => Ok(Box::new(decoder.clone())),
        Model::Mlp(mlp) => Ok(Box::new(mlp.clone())),
        Model::Cnn(cnn) => Ok(Box::new(cnn.clone())),
        Model::Custom(own) => registry::built(own, seed),
        Model::Command(_) => Err(ModelBuildError::Foreign),
    }
}

#[cfg(test)]
pub(crate) mod tests;

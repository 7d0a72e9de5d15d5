//! The built-in networks: decoder, mlp and cnn; see [`crate::network`] for the trait that they implement.

pub(crate) mod cnn;
mod decoder;
mod experts;
mod mlp;

use crate::network::{
    self, ForwardMode, Initializer, LayerContext, ModelBuildError, ModelPart, NeuralNetwork, ParameterSpec,
    Weights,
};
use dtrain_recipes::Model;

/// Builds the network of a model; the initial values that it draws while it is built follow from `seed`.
///
/// `Err` for a foreign command, for a network that this program lacks, or if it does not fit the recipe.
pub(crate) fn build(model: &Model, seed: u64) -> Result<Box<dyn NeuralNetwork>, ModelBuildError> {
    match model {
        Model::Decoder(decoder) => Ok(Box::new(decoder.clone())),
        Model::Mlp(mlp) => Ok(Box::new(mlp.clone())),
        Model::Cnn(cnn) => Ok(Box::new(cnn.clone())),
        Model::Custom(own) => network::built(own, seed),
        Model::Command(_) => Err(ModelBuildError::Foreign),
    }
}

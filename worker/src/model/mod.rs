//! The built-in networks; see [`crate::network`] for the trait that they implement.

pub(crate) mod cnn;
mod decoder;
mod experts;
mod mlp;
mod router;

use crate::network::{
    self, Initializer, LayerContext, ModelBuildError, ModelPart, NeuralNetwork, ParameterSpec, Weights,
};
use dtrain_recipes::Model;

/// Builds the network of a model; initial values that it draws when it is built follow from `seed`.
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

//! The built-in networks; see [`crate::network`] for the trait that they implement.

pub(crate) mod cnn;
mod decoder;
mod experts;
pub(crate) mod initializer;
mod mlp;

use crate::network::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights};

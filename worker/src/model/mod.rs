//! The built-in networks; see [`crate::network`] for the trait that they implement.

pub(crate) mod cnn;
mod decoder;
mod experts;
mod mlp;

use crate::network::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights};

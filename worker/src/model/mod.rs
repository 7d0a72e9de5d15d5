//! The networks that dtrain brings along; see [`crate::network`] for what a network is.

pub(crate) mod cnn;
mod decoder;
mod experts;
pub(crate) mod initializer;
mod mlp;

use crate::network::{Initializer, LayerContext, ModelPart, NeuralNetwork, ParameterSpec, Weights};

//! The networks that dtrain brings along; see [`crate::network`] for what a network is.

pub(crate) mod cnn;
mod decoder;
mod experts;
pub(crate) mod initial;
mod mlp;

use crate::network::{Initial, Layers, Network, Part, Spec, Weights};

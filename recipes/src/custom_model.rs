//! Custom networks: their settings in a recipe, and the outline that the program finds by building the
//! network.

use crate::params::ParamValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A network that the program registered under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomModel {
    /// Name under which the network was registered.
    pub network: String,
    /// Settings by name, passed to the function that builds the network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, ParamValue>,
    /// Kind of inputs and predictions of the network.
    pub reads: InputSignature,
    /// Shapes of all parts of the network. Empty in a checked recipe until the program has built the network.
    #[serde(default)]
    pub outline: Outline,
}

/// The kind of inputs and predictions of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSignature {
    /// The network reads sequences of tokens, and predicts the token after each.
    Tokens {
        /// Sequence length in tokens.
        context: u32,
        /// Vocabulary size.
        vocab: u32,
    },
    /// The network reads rows of numbers, and predicts the class of each row.
    Rows {
        /// Number of values per row.
        inputs: u32,
        /// Number of classes that the network distinguishes.
        classes: u32,
    },
}

/// The shapes of a network's parameters and activations, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outline {
    /// Shapes of the part that turns samples into the first activation.
    pub first: PartOutline,
    /// Shapes of the blocks, in order.
    pub blocks: Vec<PartOutline>,
    /// Shapes of the part that turns the last activation into scores.
    pub head: PartOutline,
}

/// The shapes of the parameters and output of one part of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOutline {
    /// Shape of each parameter of the part.
    pub parameters: Vec<Vec<u64>>,
    /// Shape of the part's output for one sample: rows, and values per row.
    pub output: [u64; 2],
}

impl Outline {
    /// Returns the outlines of all parts of the network, first to last.
    pub fn parts(&self) -> impl Iterator<Item = &PartOutline> {
        std::iter::once(&self.first).chain(&self.blocks).chain(std::iter::once(&self.head))
    }
}

impl PartOutline {
    /// Returns the number of trainable values in the part; [`u64::MAX`] on overflow.
    pub fn values(&self) -> u64 {
        let of = |shape: &Vec<u64>| shape.iter().copied().fold(1, u64::saturating_mul);
        self.parameters.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns the numbers of rows and columns of all matrices in the part; a convolution kernel counts as a
    /// matrix with one row per output channel.
    pub fn matrices(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        let matrices = self.parameters.iter().filter(|shape| shape.len() > 1);
        matrices.map(|shape| [shape[0], shape[1..].iter().product()])
    }
}

impl CustomModel {
    /// Returns the number of trainable values of the network, each counted once; 0 until the outline is
    /// known.
    pub fn parameters(&self) -> u64 {
        self.outline.parts().map(PartOutline::values).fold(0, u64::saturating_add)
    }

    /// Returns the shape of one sample's activation before block `boundary`. If `boundary` is the number of
    /// blocks, that is the output of the last block.
    pub fn activation_at(&self, boundary: u32) -> [u64; 2] {
        match boundary.checked_sub(1) {
            None => self.outline.first.output,
            Some(block) => self.outline.blocks[block as usize].output,
        }
    }
}

impl InputSignature {
    /// Returns the sequence length in tokens; `None` if the samples of the network are rows.
    pub fn context(self) -> Option<u32> {
        match self {
            Self::Tokens { context, .. } => Some(context),
            Self::Rows { .. } => None,
        }
    }
}

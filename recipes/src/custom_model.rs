//! Custom networks: the settings in a recipe, and the outline that the program that registered the network
//! finds.

use crate::params::ParamValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A network that the program registered under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomModel {
    /// Name under which the network was registered.
    pub network: String,
    /// Settings for the function that builds the network.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, ParamValue>,
    /// Inputs and predictions of the network.
    pub reads: InputSignature,
    /// Shapes of all parts. Empty in a checked recipe until the program has built the network.
    #[serde(default)]
    pub outline: Outline,
}

/// Inputs and predictions of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSignature {
    /// Sequences of tokens; predicts the token after each.
    Tokens {
        /// Sequence length in tokens.
        context: u32,
        /// Vocabulary size.
        vocab: u32,
    },
    /// Rows of numbers; predicts the class of each.
    Rows {
        /// Numbers per row.
        inputs: u32,
        /// Number of classes.
        classes: u32,
    },
}

/// Shapes of a network, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outline {
    /// The part from samples to the first activation.
    pub first: PartOutline,
    /// The blocks, in order.
    pub blocks: Vec<PartOutline>,
    /// The part from the last activation to the scores.
    pub head: PartOutline,
}

/// Shapes of one part of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOutline {
    /// Shape of each parameter.
    pub parameters: Vec<Vec<u64>>,
    /// Output for one sample: rows, and values per row.
    pub output: [u64; 2],
}

impl Outline {
    /// Returns all parts, first to last.
    pub fn parts(&self) -> impl Iterator<Item = &PartOutline> {
        std::iter::once(&self.first).chain(&self.blocks).chain(std::iter::once(&self.head))
    }
}

impl PartOutline {
    /// Returns the number of trainable values; [`u64::MAX`] on overflow.
    pub fn values(&self) -> u64 {
        let of = |shape: &Vec<u64>| shape.iter().copied().fold(1, u64::saturating_mul);
        self.parameters.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Returns rows and columns of all matrices; a convolution kernel counts as a matrix with one row per
    /// output channel.
    pub fn matrices(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        let matrices = self.parameters.iter().filter(|shape| shape.len() > 1);
        matrices.map(|shape| [shape[0], shape[1..].iter().product()])
    }
}

impl CustomModel {
    /// Returns the number of trainable values, each counted once; 0 until the outline is known.
    pub fn parameters(&self) -> u64 {
        self.outline.parts().map(PartOutline::values).fold(0, u64::saturating_add)
    }

    /// Returns the shape of one sample's activation before block `boundary`; the number of blocks stands for
    /// the output of the last.
    pub fn activation_at(&self, boundary: u32) -> [u64; 2] {
        match boundary.checked_sub(1) {
            None => self.outline.first.output,
            Some(block) => self.outline.blocks[block as usize].output,
        }
    }
}

impl InputSignature {
    /// Returns the sequence length in tokens; `None` if samples are rows.
    pub fn context(self) -> Option<u32> {
        match self {
            Self::Tokens { context, .. } => Some(context),
            Self::Rows { .. } => None,
        }
    }
}

//! Networks that are not dtrain's: what a recipe says of one, and what the program that registered it found out.

use crate::params::ParamValue;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A network that the program registered under a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CustomModel {
    /// The name.
    pub network: String,
    /// Settings for the function that builds it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, ParamValue>,
    /// What it reads.
    pub reads: InputSignature,
    /// What it is made of. Empty in a checked recipe until the program has built the network.
    #[serde(default)]
    pub outline: Outline,
}

/// What a network reads and predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSignature {
    /// Sequences of tokens; predicts the token after each.
    Tokens {
        /// Tokens of a sequence.
        context: u32,
        /// Vocabulary size.
        vocab: u32,
    },
    /// Rows of numbers; predicts the class of each.
    Rows {
        /// Numbers of a row.
        inputs: u32,
        /// Number of classes.
        classes: u32,
    },
}

/// What a network is made of, part by part.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outline {
    /// From samples to the first activation.
    pub first: PartOutline,
    /// The blocks, in order.
    pub blocks: Vec<PartOutline>,
    /// From the last activation to the scores.
    pub head: PartOutline,
}

/// What a part of a network is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartOutline {
    /// Shape of each parameter.
    pub parameters: Vec<Vec<u64>>,
    /// What it gives for one sample: rows and values of a row.
    pub output: [u64; 2],
}

impl Outline {
    /// All parts, first to last.
    pub fn parts(&self) -> impl Iterator<Item = &PartOutline> {
        std::iter::once(&self.first).chain(&self.blocks).chain(std::iter::once(&self.head))
    }
}

impl PartOutline {
    /// Number of its trainable values; of an absurd part [`u64::MAX`].
    pub fn values(&self) -> u64 {
        let of = |shape: &Vec<u64>| shape.iter().copied().fold(1, u64::saturating_mul);
        self.parameters.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Rows and columns of its matrices; a kernel counts as a matrix with one row for each output channel.
    pub fn matrices(&self) -> impl Iterator<Item = [u64; 2]> + '_ {
        let matrices = self.parameters.iter().filter(|shape| shape.len() > 1);
        matrices.map(|shape| [shape[0], shape[1..].iter().product()])
    }
}

impl CustomModel {
    /// Trainable values, each counted once; 0 until the outline is known.
    pub fn parameters(&self) -> u64 {
        self.outline.parts().map(PartOutline::values).fold(0, u64::saturating_add)
    }

    /// What one sample is before block `boundary`; after the last block, where it is their number.
    pub fn activation_at(&self, boundary: u32) -> [u64; 2] {
        match boundary.checked_sub(1) {
            None => self.outline.first.output,
            Some(block) => self.outline.blocks[block as usize].output,
        }
    }
}

impl InputSignature {
    /// Tokens of a sequence; `None` where samples are rows.
    pub fn context(self) -> Option<u32> {
        match self {
            Self::Tokens { context, .. } => Some(context),
            Self::Rows { .. } => None,
        }
    }
}

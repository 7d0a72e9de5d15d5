//! What a network declares.

use std::sync::Arc;

/// A part of a network that is one autodiff graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// From samples to the first activation.
    First,
    /// One of the blocks.
    Block(u32),
    /// From the last activation to the scores.
    Head,
}

/// How a parameter begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// Normal with mean 0 and this standard deviation, drawn from the seed, the name and the place.
    Normal(f64),
    /// All ones.
    Ones,
    /// All zeros.
    Zeros,
    /// These values, row-major: as many as the whole parameter has.
    Values(Arc<[f32]>),
}

/// A parameter as its network declares it.
#[derive(Clone, Debug)]
pub struct ParameterSpec {
    /// Global name, such as `blocks.3.ffn.up.weight`. How it is cut among tensor- and expert-parallel ranks is looked up
    /// by its end in [`dtrain_protocol::sharding`].
    pub(crate) name: String,
    /// Length of the prefix that only tells the part, such as `blocks.3.`.
    prefix: usize,
    /// Dimensions.
    pub(crate) shape: Vec<usize>,
    /// How it begins.
    pub(crate) initial: Initializer,
    /// Whether training leaves it as it begins.
    pub(crate) is_frozen: bool,
}

impl ParameterSpec {
    /// A parameter of `part`, called `short` inside it, such as `mix.weight`.
    pub fn of(part: ModelPart, short: &str, shape: &[usize], initial: Initializer) -> Self {
        Self::new(&part.prefix(), short, shape, initial)
    }

    /// A parameter called `prefix` and `short`, the name inside its part.
    pub(crate) fn new(prefix: &str, short: &str, shape: &[usize], initial: Initializer) -> Self {
        let name = format!("{prefix}{short}");
        Self { name, prefix: prefix.len(), shape: shape.to_vec(), initial, is_frozen: false }
    }

    /// The same parameter, which training leaves as it begins.
    pub fn frozen(self) -> Self {
        Self { is_frozen: true, ..self }
    }

    /// The name inside its part, such as `ffn.up.weight`.
    pub fn short(&self) -> &str {
        &self.name[self.prefix..]
    }
}

impl ModelPart {
    /// What begins the names of its parameters in networks that are not dtrain's. No such name is in the table of cuts, so
    /// every rank holds all of each parameter of its parts.
    pub fn prefix(self) -> String {
        match self {
            Self::First => "own.first.".to_owned(),
            Self::Block(index) => format!("own.blocks.{index}."),
            Self::Head => "own.head.".to_owned(),
        }
    }
}

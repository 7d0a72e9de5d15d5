//! Parameter specifications: a network's declarations of its parameters.

use std::sync::Arc;

/// A part of a network, with its own autodiff graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// The part that computes the first activation from the samples.
    First,
    /// The block with this index.
    Block(u32),
    /// The part that computes the scores from the last activation.
    Head,
}

/// The rule for the initial values of a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Initializer {
    /// Normally distributed values with mean 0 and this standard deviation, drawn from the seed, the name
    /// and the index.
    Normal(f64),
    /// Ones everywhere, such as for the weights of a norm.
    Ones,
    /// Zeros everywhere, such as for biases.
    Zeros,
    /// Given values, row-major: as many as the whole parameter has.
    Values(Arc<[f32]>),
}

/// The declaration of a parameter by its network.
#[derive(Clone, Debug)]
pub struct ParameterSpec {
    /// Global name, such as `blocks.3.ffn.up.weight`. Its end determines how the parameter is cut among
    /// tensor- and expert-parallel ranks, see [`dtrain_protocol::sharding`].
    pub(crate) name: String,
    /// Length of the part's prefix in the name, such as that of `blocks.3.`.
    prefix: usize,
    /// Dimensions of the whole parameter.
    pub(crate) shape: Vec<usize>,
    /// Rule for the initial values.
    pub(crate) initial: Initializer,
    /// True if training does not change the parameter.
    pub(crate) is_frozen: bool,
}

impl ParameterSpec {
    /// Declares a parameter of `part` whose name within the part is `short`, such as `mix.weight`.
    pub fn of(part: ModelPart, short: &str, shape: &[usize], initial: Initializer) -> Self {
        Self::new(&part.prefix(), short, shape, initial)
    }

    /// Declares a parameter whose name is `prefix` followed by `short`, its name within its part.
    pub(crate) fn new(prefix: &str, short: &str, shape: &[usize], initial: Initializer) -> Self {
        let name = format!("{prefix}{short}");
        Self { name, prefix: prefix.len(), shape: shape.to_vec(), initial, is_frozen: false }
    }

    /// Marks the parameter as frozen: training does not change it.
    pub fn frozen(self) -> Self {
        Self { is_frozen: true, ..self }
    }

    /// Returns the name of the parameter within its part, such as `ffn.up.weight`.
    pub fn short(&self) -> &str {
        &self.name[self.prefix..]
    }
}

impl ModelPart {
    /// Returns the prefix that the names of this part's parameters have in networks other than dtrain's
    /// own. No such name is in the sharding table, so every rank holds all of each parameter of its
    /// parts.
    pub fn prefix(self) -> String {
        match self {
            Self::First => "own.first.".to_owned(),
            Self::Block(index) => format!("own.blocks.{index}."),
            Self::Head => "own.head.".to_owned(),
        }
    }
}

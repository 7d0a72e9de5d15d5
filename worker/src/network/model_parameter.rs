//! Model parameters: the regions of a network's parameters that a rank holds.

use dtrain_protocol::Region;
use std::ops::Range;

/// A parameter of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParameter {
    /// Global name, such as `blocks.3.ffn.up.weight`.
    pub name: String,
    /// Dimensions of the region that this rank holds, row-major.
    pub shape: Vec<usize>,
    /// Region of the whole parameter that this rank holds.
    pub region: Region,
    /// True if weight decay applies: to matrices, not to norms and biases.
    pub has_weight_decay: bool,
    /// Index of the unit of this stage that it belongs to; of a tied embedding the first.
    pub unit: usize,
    /// Range in the flat order of all trained parameters of this stage, or of all frozen ones.
    pub range: Range<usize>,
}

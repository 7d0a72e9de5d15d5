//! Model parameters: the regions of a network's parameters that one rank holds.

use dtrain_protocol::Region;
use std::ops::Range;

/// One parameter of a stage, of which this rank holds a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelParameter {
    /// Global name of the parameter, such as `blocks.3.ffn.up.weight`.
    pub name: String,
    /// Dimensions of the region that this rank holds, row-major.
    pub shape: Vec<usize>,
    /// Region of the whole parameter that this rank holds.
    pub region: Region,
    /// True if weight decay applies: it does to matrices, and not to norms and biases.
    pub has_weight_decay: bool,
    /// Index of the unit of this stage that the parameter belongs to; for a tied embedding, the first
    /// one.
    pub unit: usize,
    /// Range of the held values in the flat order of all trained parameters of this stage, or of all
    /// frozen ones.
    pub range: Range<usize>,
}

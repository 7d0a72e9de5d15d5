//! A decision of the planner: a value with the range worth trying and its reason.

use serde::{Deserialize, Serialize};

/// A value chosen by the planner or set in the recipe, with the range worth trying and the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision<T> {
    /// The value that is used.
    pub value: T,
    /// Lowest value worth trying.
    pub low: T,
    /// Highest value worth trying.
    pub high: T,
    /// Reason for the value, as a sentence without its full stop.
    pub reason: String,
}

impl<T: Copy> Decision<T> {
    /// Returns the decision for a value pinned in the recipe.
    pub fn pinned(value: T) -> Self {
        Self { value, low: value, high: value, reason: "pinned by the recipe".into() }
    }
}

//! A decision of the planner: a number with its range and its reason.

use serde::{Deserialize, Serialize};

/// A number chosen by the planner or set in the recipe, with a range worth searching and the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision<T> {
    /// The chosen value.
    pub value: T,
    /// Lowest value worth trying.
    pub low: T,
    /// Highest value worth trying.
    pub high: T,
    /// Reason, as a sentence without its full stop.
    pub reason: String,
}

impl<T: Copy> Decision<T> {
    /// Returns the decision for a value pinned in the recipe.
    pub fn pinned(value: T) -> Self {
        Self { value, low: value, high: value, reason: "pinned by the recipe".into() }
    }
}

//! A value that the user fixes, leaves to the planner, or has searched.

use serde::{Deserialize, Serialize};

/// A fixed value, a search space, or a choice of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tunable<T> {
    /// Chosen by the planner: `"auto"`.
    Auto,
    /// Fixed by the user.
    Pinned(T),
    /// A list of choices: `{ choices = [...] }`. Never empty.
    Among(Vec<T>),
    /// A log-uniform range between two positive bounds: `{ log = [low, high] }`.
    Log {
        /// Smallest value, positive.
        low: T,
        /// Largest value, at least `low`.
        high: T,
    },
}

impl<T> Tunable<T> {
    /// Returns the value if the user fixed it.
    pub fn pinned(&self) -> Option<&T> {
        match self {
            Self::Pinned(value) => Some(value),
            Self::Auto | Self::Among(_) | Self::Log { .. } => None,
        }
    }
}

//! Tunable values, which the user fixes, leaves to the planner, or has searched.

use serde::{Deserialize, Serialize};

/// A value that the user fixed, left to the planner, or wants searched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tunable<T> {
    /// The planner chooses the value: `"auto"`.
    Auto,
    /// The user fixed the value.
    Pinned(T),
    /// The value is searched in a list of choices, never empty: `{ choices = [...] }`.
    Among(Vec<T>),
    /// The value is searched in a log-uniform range between two positive bounds: `{ log = [low, high] }`.
    Log {
        /// Smallest value of the range, positive.
        low: T,
        /// Largest value of the range, at least `low`.
        high: T,
    },
}

impl<T> Tunable<T> {
    /// Returns the value if the user fixed it, otherwise `None`.
    pub fn pinned(&self) -> Option<&T> {
        match self {
            Self::Pinned(value) => Some(value),
            Self::Auto | Self::Among(_) | Self::Log { .. } => None,
        }
    }
}

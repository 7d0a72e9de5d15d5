//! A value the user pinned, left open, or wants searched.

use serde::{Deserialize, Serialize};

/// How a value is to be found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tunable<T> {
    /// The planner decides: `"auto"`.
    Auto,
    /// The user decided.
    Pinned(T),
    /// One of these: `{ choices = [...] }`. Never empty.
    Among(Vec<T>),
    /// Between two positive bounds, uniform in the logarithm: `{ log = [low, high] }`.
    Log {
        /// Smallest value, positive.
        low: T,
        /// Largest value, at least `low`.
        high: T,
    },
}

impl<T> Tunable<T> {
    /// The value, when the user pinned it.
    pub fn pinned(&self) -> Option<&T> {
        match self {
            Self::Pinned(value) => Some(value),
            Self::Auto | Self::Among(_) | Self::Log { .. } => None,
        }
    }
}

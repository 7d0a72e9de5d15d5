//! An alternative to the plan's choice: the best candidate with another value on one axis, and why it is
//! slower.

use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The best candidate with a given value on one axis, where the plan's choice has another value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Name of the axis on which the candidate differs from the choice, such as `ranks`.
    pub axis: String,
    /// The candidate's value on the axis, such as `2 ranks × 1 thread`, or `4` for a micro-batch.
    pub value: String,
    /// Description of the candidate in words.
    pub candidate: String,
    /// Relative speed difference to the choice: −0.31 means 31 % fewer tokens per second.
    pub speed: f64,
    /// True if the candidate ties with the choice: the difference in speed is within the uncertainty.
    pub is_tied: bool,
    /// Largest cause of the difference in speed, in words.
    pub cause: String,
    /// Peak memory of the candidate's heaviest rank; zero in a plan of an older program.
    #[serde(default)]
    pub memory_peak: Bytes,
    /// Extra seconds of a step relative to the choice, by cause; negative for causes that take less time.
    /// Causes of equal time are left out. Empty in a plan of an older program.
    #[serde(default)]
    pub time_delta: Vec<(String, f64)>,
}

/// Returns the part of a step that grows most from `ours` to `theirs`, in words; where the whole step is
/// faster, the part that shrinks most.
pub(crate) fn largest_delta(ours: &[(&str, f64)], theirs: &[(&str, f64)]) -> String {
    let total = |parts: &[(&str, f64)]| parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let slower = total(theirs) >= total(ours);
    let parts = ours.iter().zip(theirs);
    let grown = parts.map(|((name, a), (_, b))| (name, if slower { b - a } else { a - b }));
    let (name, seconds) = grown.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a step has parts");
    let sign = if slower { '+' } else { '−' };
    format!("{name} {sign}{} a step", Seconds(seconds.max(0.0)))
}

//! An alternative: the best candidate of an axis value that was not chosen, and why it is slower.

use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The best candidate with an axis value that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// Name of the axis, such as `ranks`.
    pub axis: String,
    /// Value of the axis, such as `2 ranks × 1 thread`, or `4` for a micro-batch.
    pub value: String,
    /// Description of the candidate.
    pub candidate: String,
    /// Speed relative to the choice minus one: −0.31 trains 31 % fewer tokens per second.
    pub speed: f64,
    /// True if it ties with the choice: the difference is within the uncertainty.
    pub is_tied: bool,
    /// Largest cause of the difference, in words.
    pub cause: String,
    /// Peak memory of its heaviest rank; zero in a plan of an older program.
    #[serde(default)]
    pub memory_peak: Bytes,
    /// Extra seconds of a step relative to the choice, by cause; negative where it is faster, and without
    /// causes that are equal. Empty in a plan of an older program.
    #[serde(default)]
    pub time_delta: Vec<(String, f64)>,
}

/// Returns the part of the step that grows most (or, where the whole is faster, shrinks most), in words.
pub(crate) fn largest_delta(ours: &[(&str, f64)], theirs: &[(&str, f64)]) -> String {
    let total = |parts: &[(&str, f64)]| parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let slower = total(theirs) >= total(ours);
    let parts = ours.iter().zip(theirs);
    let grown = parts.map(|((name, a), (_, b))| (name, if slower { b - a } else { a - b }));
    let (name, seconds) = grown.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a step has parts");
    let sign = if slower { '+' } else { '−' };
    format!("{name} {sign}{} a step", Seconds(seconds.max(0.0)))
}

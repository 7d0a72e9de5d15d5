//! Alternatives: the best candidate of every axis value that was not chosen, and why it is slower.

use crate::planning::plan::RankedCandidate;
use crate::planning::search::Ranking;
use crate::price::estimate::Causes;
use crate::price::estimator::{Estimator, STEP_LEAST};
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

/// Returns the best candidate of every axis value that `chosen` does not have, slowest last within its axis.
pub(crate) fn alternatives(
    estimator: &Estimator<'_>,
    ranking: &Ranking,
    chosen: &RankedCandidate,
) -> Vec<Alternative> {
    let cost_model = estimator.cost_model;
    let Some(home) = cost_model.candidate_id(&chosen.candidate) else { return Vec::new() };
    let (ours, home_time) = (chosen.price().step.0, cost_model.causes(home));
    let mut found = Vec::new();
    for (axis, value, id) in ranking.best_per_axis() {
        let shares_value = ranking.values(home).any(|(a, v)| a == axis && v == value);
        if shares_value || found.iter().any(|(other, _): &(_, Alternative)| *other == id && axis == "data") {
            continue;
        }
        let time = cost_model.causes(id);
        let speed = ours / time.total().max(STEP_LEAST) - 1.0;
        let resolution = cost_model.uncertainty(id).1.max(chosen.price().resolution);
        let alternative = Alternative {
            axis: axis.into(),
            value: value.into(),
            candidate: cost_model.space().candidate(id, chosen.candidate.learning_rate).to_string(),
            speed,
            is_tied: speed.abs() <= resolution,
            cause: largest_delta(&home_time.parts(), &time.parts()),
            memory_peak: cost_model.memory(id).total(),
            time_delta: time_delta(&home_time, &time),
        };
        found.push((id, alternative));
    }
    let mut alternatives: Vec<Alternative> = found.into_iter().map(|(_, alternative)| alternative).collect();
    let rank = |axis: &str| AXES.iter().position(|known| *known == axis);
    alternatives.sort_by(|a, b| {
        rank(&a.axis)
            .cmp(&rank(&b.axis))
            .then(b.speed.total_cmp(&a.speed))
            .then_with(|| a.value.cmp(&b.value))
    });
    alternatives
}

/// Returns the extra seconds of each cause in `theirs`.
fn time_delta(ours: &Causes, theirs: &Causes) -> Vec<(String, f64)> {
    let pairs = ours.parts().into_iter().zip(theirs.parts());
    let grown = pairs.map(|((name, before), (_, after))| (name.to_owned(), after - before));
    grown.filter(|(_, seconds)| *seconds != 0.0).collect()
}

/// Axes in the order of display.
const AXES: [&str; 13] = [
    "ranks",
    "data",
    "tensor",
    "sequence",
    "pipeline",
    "schedule",
    "context",
    "expert",
    "micro-batch",
    "zero",
    "shard",
    "recompute",
    "precision",
];

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

//! What the best candidate of every other axis value would have cost, and why.

use crate::planning::plan::RankedCandidate;
use crate::planning::search::Ranking;
use crate::price::estimate::Causes;
use crate::price::estimator::{Estimator, STEP_LEAST};
use dtrain_recipes::{Bytes, Seconds};
use serde::{Deserialize, Serialize};

/// The best candidate with an axis value that was not chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Alternative {
    /// The axis, such as `ranks`.
    pub axis: String,
    /// The value, such as `2 ranks × 1 thread`, or `4` for a micro-batch.
    pub value: String,
    /// The candidate in words.
    pub candidate: String,
    /// Speed relative to the choice minus one: −0.31 trains 31 % fewer tokens a second.
    pub speed: f64,
    /// Whether the difference is too small to be told.
    pub is_tied: bool,
    /// What costs most, in words.
    pub cause: String,
    /// Bytes of its heaviest rank at its peak; nothing in a plan of an older program.
    #[serde(default)]
    pub memory_peak: Bytes,
    /// By cause, the seconds that a step of it takes more than one of the choice, below 0 where less; of a cause that takes
    /// the same nothing. Empty in a plan of an older program.
    #[serde(default)]
    pub time_delta: Vec<(String, f64)>,
}

/// The best of every axis value that `chosen` does not have, slowest last within its axis.
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

/// What each cause takes more in `theirs`.
fn time_delta(ours: &Causes, theirs: &Causes) -> Vec<(String, f64)> {
    let pairs = ours.parts().into_iter().zip(theirs.parts());
    let grown = pairs.map(|((name, before), (_, after))| (name.to_owned(), after - before));
    grown.filter(|(_, seconds)| *seconds != 0.0).collect()
}

/// Axes in the order they are told.
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

/// The part of the step that grows (or, where the whole is faster, shrinks) most.
pub(crate) fn largest_delta(ours: &[(&str, f64)], theirs: &[(&str, f64)]) -> String {
    let total = |parts: &[(&str, f64)]| parts.iter().map(|(_, seconds)| seconds).sum::<f64>();
    let slower = total(theirs) >= total(ours);
    let parts = ours.iter().zip(theirs);
    let grown = parts.map(|((name, a), (_, b))| (name, if slower { b - a } else { a - b }));
    let (name, seconds) = grown.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a step has parts");
    let sign = if slower { '+' } else { '−' };
    format!("{name} {sign}{} a step", Seconds(seconds.max(0.0)))
}

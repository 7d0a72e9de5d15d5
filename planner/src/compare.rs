//! What the best candidate of every other axis value would have cost, and why.

use crate::estimate::Breakdown;
use crate::plan::Ranked;
use crate::pricing::{Pricing, STEP_LEAST};
use crate::search::Ranking;
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
    pub tie: bool,
    /// What costs most, in words.
    pub cause: String,
}

/// The best of every axis value that `chosen` does not have, slowest last within its axis.
pub(crate) fn alternatives(pricing: &Pricing<'_>, ranking: &Ranking, chosen: &Ranked) -> Vec<Alternative> {
    let judge = pricing.judge;
    let Some(home) = judge.place(&chosen.candidate) else { return Vec::new() };
    let ours = chosen.estimate.step.0;
    let mut found = Vec::new();
    for (axis, value, place) in ranking.champions() {
        let shares_value = ranking.values(home).any(|(a, v)| a == axis && v == value);
        if shares_value || found.iter().any(|(other, _): &(_, Alternative)| *other == place && axis == "data")
        {
            continue;
        }
        let time = judge.time(place);
        let speed = ours / time.total().max(STEP_LEAST) - 1.0;
        let resolution = judge.doubt(place).1.max(chosen.estimate.resolution);
        let alternative = Alternative {
            axis: axis.into(),
            value: value.into(),
            candidate: judge.space().candidate(place, chosen.candidate.learning_rate).to_string(),
            speed,
            tie: speed.abs() <= resolution,
            cause: cause(&chosen.estimate.breakdown, &time),
        };
        found.push((place, alternative));
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

/// The part of the step that grows (or, for a faster one, shrinks) most.
pub(crate) fn cause(ours: &Breakdown, theirs: &Breakdown) -> String {
    let slower = theirs.total() >= ours.total();
    let parts = ours.parts().into_iter().zip(theirs.parts());
    let grown = parts.map(|((name, a), (_, b))| (name, if slower { b - a } else { a - b }));
    let (name, seconds) = grown.max_by(|a, b| a.1.total_cmp(&b.1)).expect("a step has parts");
    let sign = if slower { '+' } else { '−' };
    format!("{name} {sign}{} a step", dtrain_recipes::Seconds(seconds.max(0.0)))
}

//! Alternatives: the best candidate of every axis value that was not chosen, and why it is slower.

use crate::choice::alternative::{Alternative, largest_delta};
use crate::planning::estimator::{Estimator, STEP_LEAST};
use crate::planning::plan::RankedCandidate;
use crate::planning::search::Ranking;
use crate::price::estimate::Causes;

/// Returns the best candidate of every value of every axis that `chosen` does not have, by axis, the slowest
/// last.
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

/// Returns the extra seconds that each cause takes in `theirs` compared with `ours`.
fn time_delta(ours: &Causes, theirs: &Causes) -> Vec<(String, f64)> {
    let pairs = ours.parts().into_iter().zip(theirs.parts());
    let grown = pairs.map(|((name, before), (_, after))| (name.to_owned(), after - before));
    grown.filter(|(_, seconds)| *seconds != 0.0).collect()
}

/// Names of the axes, in the order in which they are shown.
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

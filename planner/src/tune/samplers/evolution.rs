//! Regularized evolution (Real et al. 2019): the best of a few trials of a young population, with one value
//! changed.
//!
//! Only the newest trials may be parents, so that a lucky trial is not copied for ever.

use super::ask_context::AskContext;
use super::sobol;
use crate::tune::event::ProposalSource;
use crate::tune::observations::StudyObservations;
use crate::tune::rng::TrialRng;
use crate::tune::scale::{cell, middle};
use crate::tune::value::TrialValue;

/// Number of the newest trials that form the population.
const POPULATION: usize = 20;

/// Number of trials of the population that compete to be the parent.
const TOURNAMENT: usize = 6;

/// Standard deviation of a mutation, in widths of the unit cube.
const REACH: f64 = 0.1;

/// Highest number of draws of a parent and a mutation.
const TRIES: usize = 64;

/// Returns untried values: those of a parent with one value changed.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let tries = StudyObservations::of(context.study_state).tries;
    if tries.len() < POPULATION / 2 || context.size() == 0 {
        return sobol::next(context);
    }
    let population = &tries[tries.len().saturating_sub(POPULATION)..];
    let mut rng = TrialRng::new(context.seed, context.trial);
    for _ in 0..TRIES {
        let compete = (0..TOURNAMENT).map(|_| &population[rng.below(population.len())]);
        let best = compete.min_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
        let Some((parent, place, _)) = best else { break };
        let active: Vec<usize> = (0..place.len()).filter(|k| place[*k].is_some()).collect();
        let changed = active[rng.below(active.len())];
        // Dimensions activated by the mutation are uniformly random.
        let mut point: Vec<f64> = place.iter().map(|at| at.unwrap_or_else(|| rng.unit())).collect();
        point[changed] = mutate_coordinate(context, changed, point[changed], &mut rng);
        let values = context.space.values(&point);
        if context.is_untried(&values) {
            return Some((values, ProposalSource::Mutated { parent: *parent }));
        }
    }
    sobol::next(context)
}

/// Returns another coordinate for dimension `k`, which is at `at`: another name, an adjacent level, or a
/// nearby point.
fn mutate_coordinate(context: &AskContext, k: usize, at: f64, rng: &mut TrialRng) -> f64 {
    let dimension = &context.space.dimensions()[k];
    match dimension.count() {
        Some(count) if dimension.is_categorical() && count > 1 => {
            let other = rng.below(count - 1);
            middle(if other >= cell(at, count) { other + 1 } else { other }, count)
        }
        Some(count) if !dimension.is_continuous() => {
            let here = cell(at, count);
            let up = here + 1 < count && (here == 0 || rng.below(2) == 0);
            middle(if up { here + 1 } else { here.saturating_sub(1) }, count)
        }
        _ => reflect(at + REACH * rng.normal()),
    }
}

/// Reflects a coordinate at the bounds of the unit interval.
fn reflect(at: f64) -> f64 {
    let at = at.abs();
    (if at > 1.0 { 2.0 - at } else { at }).clamp(0.0, 1.0)
}

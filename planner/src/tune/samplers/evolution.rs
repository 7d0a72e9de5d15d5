//! Regularised evolution (Real et al. 2019): the best of a few trials of a young population, with one value changed.
//!
//! Only the newest trials may have offspring, so that a lucky one does not breed for ever.

use super::sobol;
use crate::tune::chance::Chance;
use crate::tune::event::Source;
use crate::tune::lessons::Lessons;
use crate::tune::sampler::Asked;
use crate::tune::scale::{cell, middle};
use crate::tune::value::Value;

/// The newest trials that make up the population.
const POPULATION: usize = 20;

/// Trials of the population that compete to be the parent.
const TOURNAMENT: usize = 6;

/// Standard deviation of a change, in widths of the cube.
const REACH: f64 = 0.1;

/// How often a parent and a change are drawn.
const TRIES: usize = 64;

/// A parent with one value changed that nobody tried.
pub(in crate::tune) fn next(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let tries = Lessons::of(asked.standing).tries;
    if tries.len() < POPULATION / 2 || asked.size() == 0 {
        return sobol::next(asked);
    }
    let population = &tries[tries.len().saturating_sub(POPULATION)..];
    let mut chance = Chance::new(asked.seed, asked.trial);
    for _ in 0..TRIES {
        let compete = (0..TOURNAMENT).map(|_| &population[chance.below(population.len())]);
        let best = compete.min_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
        let Some((parent, place, _)) = best else { break };
        let active: Vec<usize> = (0..place.len()).filter(|k| place[*k].is_some()).collect();
        let changed = active[chance.below(active.len())];
        // What comes into being by the change is left to chance.
        let mut point: Vec<f64> = place.iter().map(|at| at.unwrap_or_else(|| chance.unit())).collect();
        point[changed] = moved(asked, changed, point[changed], &mut chance);
        let values = asked.space.values(&point);
        if asked.is_fresh(&values) {
            return Some((values, Source::Mutated { parent: *parent }));
        }
    }
    sobol::next(asked)
}

/// Another coordinate of a dimension: another name, a level beside this one, or a place near it.
fn moved(asked: &Asked, k: usize, at: f64, chance: &mut Chance) -> f64 {
    let dimension = &asked.space.dimensions()[k];
    match dimension.count() {
        Some(count) if dimension.is_named() && count > 1 => {
            let other = chance.below(count - 1);
            middle(if other >= cell(at, count) { other + 1 } else { other }, count)
        }
        Some(count) if !dimension.is_continuous() => {
            let here = cell(at, count);
            let up = here + 1 < count && (here == 0 || chance.below(2) == 0);
            middle(if up { here + 1 } else { here.saturating_sub(1) }, count)
        }
        _ => reflected(at + REACH * chance.normal()),
    }
}

/// A coordinate brought back into the unit interval from behind its walls.
fn reflected(at: f64) -> f64 {
    let at = at.abs();
    (if at > 1.0 { 2.0 - at } else { at }).clamp(0.0, 1.0)
}

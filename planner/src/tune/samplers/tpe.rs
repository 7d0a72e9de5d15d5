//! TPE: where good trials are dense and others are not (Bergstra et al. 2011), with one density for all dimensions together.
//!
//! Trials that failed, and those that run and have no cost yet, count with the others: the next one keeps away from them.

use super::parzen::Parzen;
use super::sobol;
use crate::tune::chance::Chance;
use crate::tune::event::Source;
use crate::tune::lessons::Lessons;
use crate::tune::sampler::Asked;
use crate::tune::space::Place;
use crate::tune::value::Value;

/// Trials that are spread evenly before the densities are asked.
const START: usize = 10;

/// Places drawn from the good density, of which the best is tried.
const DRAWN: usize = 48;

/// Good trials, at most.
const GOOD_MOST: usize = 25;

/// The values whose place looks most like the good trials and least like the others.
pub(in crate::tune) fn next(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let lessons = Lessons::of(asked.standing);
    if lessons.tries.len() < START || lessons.costs.is_empty() {
        return sobol::next(asked);
    }
    let (good, other) = split(&lessons);
    let good = Parzen::new(asked.space, &good);
    let other = Parzen::new(asked.space, &other);
    let mut chance = Chance::new(asked.seed, asked.trial);
    let mut best: Option<(f64, Vec<Value>)> = None;
    for _ in 0..DRAWN {
        let values = asked.space.values(&good.draw(&mut chance));
        let Some(place) = asked.space.place(&values).filter(|_| asked.is_fresh(&values)) else { continue };
        let ratio = good.log_density(&place) - other.log_density(&place);
        if best.as_ref().is_none_or(|(most, _)| ratio > *most) {
            best = Some((ratio, values));
        }
    }
    let like_the_good = best.map(|(log_ratio, values)| (values, Source::Tpe { log_ratio }));
    // Where all that was drawn was tried before, the rest of the space is still there.
    like_the_good.or_else(|| sobol::next(asked))
}

/// The places of the best tenth of the trials, and those of all others, the oldest first.
fn split(lessons: &Lessons) -> (Vec<&Place>, Vec<&Place>) {
    let mut tries: Vec<&(u64, Place, f64)> = lessons.tries.iter().collect();
    tries.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    let count = tries.len().div_ceil(10).min(GOOD_MOST).min(lessons.costs.len());
    let (good, other) = tries.split_at_mut(count);
    good.sort_by_key(|(trial, ..)| *trial);
    other.sort_by_key(|(trial, ..)| *trial);
    let good = good.iter().map(|(_, place, _)| place).collect();
    (good, other.iter().map(|(_, place, _)| place).chain(&lessons.pending).collect())
}

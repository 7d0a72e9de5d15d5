//! Particle swarm (Kennedy and Eberhart 1995; constants of the standard swarm of 2011).
//!
//! Trial `k` is where particle `k` modulo the size of the swarm flies, so positions and velocities are read from the log: a velocity is
//! the difference of a particle's last two places. argmin's `ParticleSwarm` cannot do that: it moves all particles at once,
//! wants all their costs before it goes on, and remembers velocities of its own.

use super::sobol;
use crate::tune::chance::Chance;
use crate::tune::event::Source;
use crate::tune::lessons::Lessons;
use crate::tune::sampler::Asked;
use crate::tune::space::{Place, filled};
use crate::tune::value::Value;

/// Particles.
const SWARM: u64 = 10;

/// How much of its velocity a particle keeps: `1/(2·ln 2)`.
const INERTIA: f64 = 0.721;

/// How strongly a particle is drawn to its own best place and to that of all, at most: `½ + ln 2`.
const PULL: f64 = 1.193;

/// How often a name is left to chance.
const ODD: f64 = 0.05;

/// How often the forces are drawn anew when they lead to values that were tried.
const TRIES: usize = 64;

/// Where the particle whose turn it is flies next. One that has not arrived yet flies on from where it is heading.
pub(in crate::tune) fn next(asked: &Asked) -> Option<(Vec<Value>, Source)> {
    let particle = asked.trial % SWARM;
    let places: Vec<&Place> = (particle..asked.trial)
        .step_by(usize::try_from(SWARM).expect("a few"))
        .filter_map(|trial| asked.standing.trial(trial).place.as_ref())
        .collect();
    let tries = Lessons::of(asked.standing).tries;
    let lowest = |own: bool| {
        let tries =
            tries.iter().filter(|(trial, _, cost)| cost.is_finite() && (!own || trial % SWARM == particle));
        tries.min_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0))).map(|(_, place, _)| filled(place))
    };
    let (Some(last), Some(best)) = (places.last(), lowest(false)) else { return sobol::next(asked) };
    let last = filled(last);
    let before = places.len().checked_sub(2).map_or_else(|| last.clone(), |place| filled(places[place]));
    let own = lowest(true).unwrap_or_else(|| last.clone());
    let mut chance = Chance::new(asked.seed, asked.trial);
    for _ in 0..TRIES {
        let mut point = Vec::with_capacity(last.len());
        for (k, dimension) in asked.space.dimensions().iter().enumerate() {
            point.push(if dimension.is_named() {
                let of = [last[k], own[k], best[k]][chance.below(3)];
                if chance.unit() < ODD { chance.unit() } else { of }
            } else {
                let velocity = INERTIA * (last[k] - before[k])
                    + PULL * chance.unit() * (own[k] - last[k])
                    + PULL * chance.unit() * (best[k] - last[k]);
                // A particle stops at a wall.
                (last[k] + velocity).clamp(0.0, 1.0)
            });
        }
        let values = asked.space.values(&point);
        if asked.is_fresh(&values) {
            return Some((values, Source::Swarm { particle }));
        }
    }
    sobol::next(asked)
}

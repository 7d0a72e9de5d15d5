//! Particle swarm optimization (Kennedy and Eberhart 1995; constants of the standard swarm of 2011).
//!
//! Trial `k` is a move of particle `k` modulo the size of the swarm, so positions and velocities are read
//! from the log: a velocity is the difference of a particle's last two positions. argmin's `ParticleSwarm`
//! does not fit: it moves all particles at once, waits for all their costs, and keeps velocities of its own.

use super::ask_context::AskContext;
use super::sobol;
use crate::tune::event::ProposalSource;
use crate::tune::observations::StudyObservations;
use crate::tune::rng::TrialRng;
use crate::tune::space::{Coordinates, fill_inactive};
use crate::tune::value::TrialValue;

/// Number of particles in the swarm.
const SWARM: u64 = 10;

/// Fraction of its velocity that a particle keeps: `1/(2·ln 2)`.
const INERTIA: f64 = 0.721;

/// Largest pull towards a particle's own best point and the best point of all: `½ + ln 2`.
const PULL: f64 = 1.193;

/// Probability that a name is drawn uniformly.
const ODD: f64 = 0.05;

/// Highest number of draws of the forces when they lead to values already tried.
const TRIES: usize = 64;

/// Returns the next position of the particle whose turn it is. A particle whose trial still runs moves on
/// from the position of that trial.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let particle = context.trial % SWARM;
    let places: Vec<&Coordinates> = (particle..context.trial)
        .step_by(usize::try_from(SWARM).expect("a few"))
        .filter_map(|trial| context.study_state.trial(trial).place.as_ref())
        .collect();
    let tries = StudyObservations::of(context.study_state).tries;
    let lowest = |own: bool| {
        let tries =
            tries.iter().filter(|(trial, _, cost)| cost.is_finite() && (!own || trial % SWARM == particle));
        tries.min_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0))).map(|(_, place, _)| fill_inactive(place))
    };
    let (Some(last), Some(best)) = (places.last(), lowest(false)) else { return sobol::next(context) };
    let last = fill_inactive(last);
    let before =
        places.len().checked_sub(2).map_or_else(|| last.clone(), |place| fill_inactive(places[place]));
    let own = lowest(true).unwrap_or_else(|| last.clone());
    let mut rng = TrialRng::new(context.seed, context.trial);
    for _ in 0..TRIES {
        let mut point = Vec::with_capacity(last.len());
        for (k, dimension) in context.space.dimensions().iter().enumerate() {
            point.push(if dimension.is_categorical() {
                let of = [last[k], own[k], best[k]][rng.below(3)];
                if rng.unit() < ODD { rng.unit() } else { of }
            } else {
                let velocity = INERTIA * (last[k] - before[k])
                    + PULL * rng.unit() * (own[k] - last[k])
                    + PULL * rng.unit() * (best[k] - last[k]);
                // A particle stops at a bound.
                (last[k] + velocity).clamp(0.0, 1.0)
            });
        }
        let values = context.space.values(&point);
        if context.is_untried(&values) {
            return Some((values, ProposalSource::Swarm { particle }));
        }
    }
    sobol::next(context)
}

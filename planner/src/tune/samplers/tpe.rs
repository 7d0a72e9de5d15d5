//! TPE (Bergstra et al. 2011): proposes points where good trials are dense and others are not, with one joint
//! density over all dimensions.
//!
//! Failed trials and running ones without a cost count as not good, so the next trial keeps away from them.

use super::ask_context::AskContext;
use super::parzen::ParzenEstimator;
use super::sobol;
use crate::tune::event::ProposalSource;
use crate::tune::observations::StudyObservations;
use crate::tune::rng::TrialRng;
use crate::tune::space::Coordinates;
use crate::tune::value::TrialValue;

/// Number of trials of the initial design, before the densities are used.
const START: usize = 10;

/// Number of points drawn from the good density, of which the best is tried.
const DRAWN: usize = 48;

/// Highest number of trials that count as good.
const GOOD_MOST: usize = 25;

/// Returns the untried values with the largest ratio of the density of good trials to that of the others.
pub(super) fn next(context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
    let observations = StudyObservations::of(context.study_state);
    if observations.tries.len() < START || observations.costs.is_empty() {
        return sobol::next(context);
    }
    let (good, other) = split(&observations);
    let good = ParzenEstimator::new(context.space, &good);
    let other = ParzenEstimator::new(context.space, &other);
    let mut rng = TrialRng::new(context.seed, context.trial);
    let mut best: Option<(f64, Vec<TrialValue>)> = None;
    for _ in 0..DRAWN {
        let values = context.space.values(&good.draw(&mut rng));
        let Some(place) = context.space.coordinates(&values).filter(|_| context.is_untried(&values)) else {
            continue;
        };
        let ratio = good.log_density(&place) - other.log_density(&place);
        if best.as_ref().is_none_or(|(most, _)| ratio > *most) {
            best = Some((ratio, values));
        }
    }
    let like_the_good = best.map(|(log_ratio, values)| (values, ProposalSource::Tpe { log_ratio }));
    // When every drawn point was tried before, use the rest of the space.
    like_the_good.or_else(|| sobol::next(context))
}

/// Splits the observed points into those of the best tenth of the trials and all others, the oldest first.
fn split(observations: &StudyObservations) -> (Vec<&Coordinates>, Vec<&Coordinates>) {
    let mut tries: Vec<&(u64, Coordinates, f64)> = observations.tries.iter().collect();
    tries.sort_by(|a, b| a.2.total_cmp(&b.2).then(a.0.cmp(&b.0)));
    let count = tries.len().div_ceil(10).min(GOOD_MOST).min(observations.costs.len());
    let (good, other) = tries.split_at_mut(count);
    good.sort_by_key(|(trial, ..)| *trial);
    other.sort_by_key(|(trial, ..)| *trial);
    let good = good.iter().map(|(_, place, _)| place).collect();
    (good, other.iter().map(|(_, place, _)| place).chain(&observations.pending).collect())
}

//! Acquisition functions and their maximization: the search for the point that is most worth trying next.
//!
//! Uses the logarithm of the expected improvement (Ament et al. 2023), which still has a gradient where the
//! improvement itself underflows to 0, times the probability that the point can be trained at all (Gardner et
//! al. 2014). The improvement is measured from the lowest *posterior mean* of a point already tried, because
//! the lowest measured cost is partly luck.

use super::gaussian_process::Posterior;
use super::local_search;
use super::sobol::Sobol;
use super::space::SearchSpace;
use super::surrogate::Surrogate;
use super::value::TrialValue;
use crate::normal::log_improvement;

/// Number of points to compare that are spread over the whole unit cube.
const EVERYWHERE: u32 = 1024;

/// Number of points to compare around each of the best points, for each half-width in [`REACHES`].
const NEARBY: u32 = 24;

/// Number of best points whose surroundings are sampled.
const LOOKED_AROUND: usize = 4;

/// Half-widths of the boxes sampled around the best points, in widths of the unit cube.
const REACHES: [f64; 3] = [0.2, 0.05, 0.01];

/// Number of local searches that look for the maximum.
const CLIMBED: usize = 5;

/// Least distance between two starting points of local searches: the root mean squared difference of their
/// coordinates. The five best candidates are often neighbors, and all local searches would end in the same
/// maximum.
const APART: f64 = 0.2;

/// Exponent of the probability that a point can be trained. Above 1 it avoids risky points: a failed trial
/// costs as much as another and teaches less.
const CAUTION: f64 = 2.0;

/// The maximum of an acquisition function.
#[derive(Clone, Debug, PartialEq)]
pub struct AcquisitionMaximum {
    /// Values to try next, one for each dimension.
    pub values: Vec<TrialValue>,
    /// Expected reduction of the best cost, in the units of the trials.
    pub improvement: f64,
}

/// Criterion by which the next point is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquisitionGoal {
    /// The point with the largest expected improvement.
    Improvement,
    /// The point with the lowest posterior mean.
    Lowest,
}

/// Returns the natural logarithm of the expected improvement on the cost `incumbent` at a point with this
/// `posterior`.
pub fn log_expected_improvement(posterior: Posterior, incumbent: f64) -> f64 {
    let deviation = posterior.variance.sqrt();
    deviation.ln() + log_improvement((incumbent - posterior.mean) / deviation)
}

/// Returns the untried values with the highest acquisition; `None` when the search finds no untried values.
pub fn maximize_acquisition(
    space: &SearchSpace,
    model: &Surrogate,
    goal: AcquisitionGoal,
    is_untried: &dyn Fn(&[TrialValue]) -> bool,
    seed: u64,
) -> Option<AcquisitionMaximum> {
    let improvement = |point: &[f64]| {
        let (posterior, incumbent) = model.standardised(point);
        log_expected_improvement(posterior, incumbent)
    };
    let acquisition = |point: &[f64]| match goal {
        AcquisitionGoal::Improvement => improvement(point),
        AcquisitionGoal::Lowest => -model.standardised(point).0.mean,
    };
    let score = |point: &[f64]| acquisition(point) + CAUTION * model.log_feasible(point);
    let mut places = score_points(candidates(space, model, seed), space, &score);
    let climbed = starting_points(&places)
        .into_iter()
        .map(|from| local_search::maximize_locally(space, from, &score))
        .collect();
    places.extend(score_points(climbed, space, &score));
    places.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut values = places.iter().map(|(_, place)| (place, space.values(place)));
    let (place, values) = values.find(|(_, values)| is_untried(values))?;
    let expected = (improvement(place) + model.log_feasible(place)).exp() * model.spread();
    Some(AcquisitionMaximum { values, improvement: expected })
}

/// Returns the points from which local searches start: in the order of their scores, those far enough from
/// all previous ones.
fn starting_points(places: &[(f64, Vec<f64>)]) -> Vec<&Vec<f64>> {
    let is_near = |a: &[f64], b: &[f64]| {
        let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2) - APART * APART);
        squares.sum::<f64>() < 0.0
    };
    let mut starts: Vec<&Vec<f64>> = Vec::with_capacity(CLIMBED);
    for (_, place) in places {
        if starts.len() == CLIMBED {
            break;
        }
        if !starts.iter().any(|other| is_near(other, place)) {
            starts.push(place);
        }
    }
    starts
}

/// Returns points with their scores, the highest first; each point is rounded to the values that a trial
/// would have.
fn score_points(
    places: Vec<Vec<f64>>,
    space: &SearchSpace,
    score: &dyn Fn(&[f64]) -> f64,
) -> Vec<(f64, Vec<f64>)> {
    let settled = places.iter().filter_map(|place| space.point(&space.values(place)));
    let mut scored: Vec<(f64, Vec<f64>)> = settled.map(|place| (score(&place), place)).collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored
}

/// Returns points spread over the whole unit cube, and points around those with the lowest posterior mean.
fn candidates(space: &SearchSpace, model: &Surrogate, seed: u64) -> Vec<Vec<f64>> {
    let sobol = Sobol::new(space.dimensions().len(), seed);
    let mut places: Vec<Vec<f64>> = (0..EVERYWHERE).map(|index| sobol.point(index)).collect();
    let mut index = EVERYWHERE;
    for best in model.best_points().into_iter().take(LOOKED_AROUND) {
        for reach in REACHES {
            places.extend((index..index + NEARBY).map(|index| perturb(best, &sobol.point(index), reach)));
            index += NEARBY;
        }
    }
    places
}

/// Maps `point` of the unit cube into the box of half-width `reach` around `middle`.
fn perturb(middle: &[f64], point: &[f64], reach: f64) -> Vec<f64> {
    let moved = |(middle, point): (&f64, &f64)| (middle + reach * (2.0 * point - 1.0)).clamp(0.0, 1.0);
    middle.iter().zip(point).map(moved).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::observations::StudyObservations;
    use crate::tune::{Dimension, Scale, Study, StudyEvent, StudyState, TrialOutcome, TrialResult};

    #[test]
    fn improvement_is_that_of_the_closed_form() {
        // At the incumbent itself half the bell curve improves: σ/√(2π).
        let posterior = Posterior { mean: 1.0, variance: 4.0 };
        let at = log_expected_improvement(posterior, 1.0).exp();
        assert!((at - 2.0 / std::f64::consts::TAU.sqrt()).abs() < 1e-12);
        // Improves by 10 almost surely.
        let sure = Posterior { mean: -9.0, variance: 1e-6 };
        assert!((log_expected_improvement(sure, 1.0).exp() - 10.0).abs() < 1e-9);
        // Points with no hope of improvement still have an order.
        let hopeless = |mean| log_expected_improvement(Posterior { mean, variance: 1e-4 }, 0.0);
        assert!(hopeless(1.0) > hopeless(2.0) && hopeless(2.0).is_finite());
    }

    fn space() -> SearchSpace {
        let rate = Dimension::new("rate", Scale::Log { low: 1e-5, high: 1e-1 });
        let levels = Scale::Levels([8, 16, 32].map(TrialValue::Whole).to_vec());
        SearchSpace::new(vec![rate, Dimension::new("batch", levels)])
    }

    fn trials() -> Vec<TrialResult> {
        let sobol = Sobol::new(2, 3);
        let trial = |index| {
            let values = space().values(&sobol.point(index));
            let place = space().point(&values).expect("values of the space");
            let cost = 3.0 + 8.0 * (place[0] - 0.6).powi(2) + (place[1] - 0.5).powi(2);
            TrialResult { values, outcome: TrialOutcome::done(cost) }
        };
        (0..10).map(trial).collect()
    }

    #[test]
    fn the_bottom_of_a_bowl_is_promising() {
        let trials = trials();
        let study_state = StudyState::of(&Study::new(space(), 0), &StudyEvent::of(&trials));
        let model = Surrogate::of(&space(), &StudyObservations::of(&study_state)).expect("ten costs");
        let is_untried = |values: &[TrialValue]| !study_state.is_tried(values);
        let best = maximize_acquisition(&space(), &model, AcquisitionGoal::Improvement, &is_untried, 1)
            .expect("a continuum is never exhausted");
        let place = space().point(&best.values).expect("values of the space");
        assert!((place[0] - 0.6).abs() < 0.1, "the first coordinate matters most: {best:?}");
        assert!(best.improvement > 0.0 && best.improvement < 0.5, "{best:?}");
        assert_eq!(
            Some(best.clone()),
            maximize_acquisition(&space(), &model, AcquisitionGoal::Improvement, &is_untried, 1),
            "it is a function"
        );
        let also = |values: &[TrialValue]| is_untried(values) && *values != best.values;
        let next = maximize_acquisition(&space(), &model, AcquisitionGoal::Improvement, &also, 1)
            .expect("a continuum is never exhausted");
        assert!(next.values != best.values, "what is settled is not tried again");
        let lowest = maximize_acquisition(&space(), &model, AcquisitionGoal::Lowest, &is_untried, 1)
            .expect("a continuum");
        let mean =
            |values: &[TrialValue]| model.cost(&space().point(values).expect("values of the space")).mean;
        assert!(mean(&lowest.values) <= mean(&best.values), "{lowest:?}");
    }

    #[test]
    fn local_searches_begin_apart() {
        let place = |x: f64, y: f64| (-x, vec![x, y]);
        let places = [place(0.0, 0.5), place(0.1, 0.5), place(0.2, 0.6), place(0.3, 0.5), place(0.3, 0.9)];
        assert_eq!(starting_points(&places), [&places[0].1, &places[3].1, &places[4].1]);
        assert!(starting_points(&[]).is_empty());
    }
}

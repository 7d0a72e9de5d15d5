//! The surrogate model of a study: predicts the cost of untried points, and the probability that they can be
//! trained.

use super::gaussian_process::{GaussianProcess, PLACES_MOST, Posterior};
use super::observations::StudyObservations;
use super::outcome::median;
use super::space::{Coordinates, SearchSpace, fill_inactive};
use crate::normal::log_cumulative;

/// Surrogate model of the costs over a search space, after some trials.
#[derive(Clone, Debug)]
pub struct Surrogate {
    /// Gaussian process of the standardized costs.
    cost: GaussianProcess,
    /// Gaussian process of feasibility, if any trial failed: [`CAN`] where a point can be trained, and far
    /// from all trials.
    feasible: Option<GaussianProcess>,
    units: Standardization,
    /// Lowest standardized posterior mean at any tried point.
    incumbent: f64,
}

/// Standardization of costs: `(cost − middle)/spread`.
#[derive(Clone, Copy, Debug)]
struct Standardization {
    middle: f64,
    spread: f64,
}

/// Value of a feasible point for the feasibility process; an infeasible point has the negative of it.
const CAN: f64 = 1.0;

/// Clipping limit of high costs: at most this many times as far above the median as the best is below it. The
/// size of a bad cost says nothing about good points.
const WORST: f64 = 3.0;

/// Noise variance, of standardized costs, below which measured costs are compared as they are.
const EXACT: f64 = 1e-4;

/// Noise variance, of standardized costs, above which the sampler measures again near the best trials.
const NOISY: f64 = 1e-2;

impl Surrogate {
    /// Fits the surrogate model to observations; `None` with fewer than two costs.
    ///
    /// Running trials count with their expected cost (Ginsbourger et al. 2010), so that the next trial does
    /// not go to the same point.
    pub fn of(space: &SearchSpace, observations: &StudyObservations) -> Option<Self> {
        let costs = observations.costs.iter().map(|(place, cost)| (fill_inactive(place), *cost)).collect();
        let (points, costs): (Vec<_>, Vec<_>) = best_and_newest(clip_outliers(costs)).into_iter().unzip();
        let units = Standardization::of(&costs)?;
        let costs: Vec<f64> = costs.iter().map(|cost| units.standardize(*cost)).collect();
        let cost = GaussianProcess::fit(points, &costs, space.categorical());
        let lowest =
            cost.points().iter().map(|point| cost.posterior(point).mean).fold(f64::INFINITY, f64::min);
        let feasible =
            observations.feasible.iter().map(|(place, can)| (fill_inactive(place), *can)).collect();
        let feasible = fit_feasibility(feasible, space.categorical());
        Some(Self {
            feasible,
            units,
            incumbent: lowest,
            cost: condition_on_pending(cost, costs, &observations.pending),
        })
    }

    /// Returns the predicted cost at a point, in the units of the objective.
    pub fn cost(&self, point: &[f64]) -> Posterior {
        let Posterior { mean, variance } = self.cost.posterior(point);
        let Standardization { middle, spread } = self.units;
        Posterior { mean: middle + spread * mean, variance: spread * spread * variance }
    }

    /// Returns the natural logarithm of the probability that a point can be trained.
    pub fn log_feasible(&self, point: &[f64]) -> f64 {
        self.feasible.as_ref().map_or(0.0, |process| {
            let Posterior { mean, variance } = process.posterior(point);
            log_cumulative((CAN + mean) / (variance + process.kernel().noise).sqrt())
        })
    }

    /// Returns the standardized prediction of the cost at a point, and the lowest posterior mean at any tried
    /// point.
    pub fn standardised(&self, point: &[f64]) -> (Posterior, f64) {
        (self.cost.posterior(point), self.incumbent)
    }

    /// Returns `true` if measurements have almost no noise, so that the lowest measured cost is not luck.
    pub fn is_exact(&self) -> bool {
        self.cost.kernel().noise < EXACT
    }

    /// Returns `true` if noise explains a sizable part of the differences between costs.
    pub fn is_noisy(&self) -> bool {
        self.cost.kernel().noise > NOISY
    }

    /// Returns the spread of costs: one standardized unit, in the units of the objective.
    pub fn spread(&self) -> f64 {
        self.units.spread
    }

    /// Returns the points that have a cost, those with the lowest posterior mean first.
    pub fn best_points(&self) -> Vec<&Vec<f64>> {
        let mut places: Vec<(f64, &Vec<f64>)> =
            self.cost.points().iter().map(|point| (self.cost.posterior(point).mean, point)).collect();
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        places.into_iter().map(|(_, point)| point).collect()
    }
}

impl Standardization {
    /// Returns the standardization in which `costs` have mean 0 and variance 1; `None` if there are fewer
    /// than two.
    fn of(costs: &[f64]) -> Option<Self> {
        if costs.len() < 2 {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "at most a few hundred trials")]
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        let middle = mean(costs);
        let squares: Vec<f64> = costs.iter().map(|cost| (cost - middle).powi(2)).collect();
        let spread = mean(&squares).sqrt();
        // Equal costs are all at the middle, in any unit.
        Some(Self { middle, spread: if spread > 1e-12 * middle.abs() { spread } else { 1.0 } })
    }

    fn standardize(self, cost: f64) -> f64 {
        (cost - self.middle) / self.spread
    }
}

/// Returns the process conditioned also on the points of running trials, each with its expected value.
fn condition_on_pending(
    process: GaussianProcess,
    mut values: Vec<f64>,
    pending: &[Coordinates],
) -> GaussianProcess {
    if pending.is_empty() {
        return process;
    }
    let pending: Vec<Vec<f64>> = pending.iter().map(|place| fill_inactive(place)).collect();
    values.extend(pending.iter().map(|point| process.posterior(point).mean));
    process.with_more(pending, &values)
}

/// Lowers costs that are far above the median to the limit of [`WORST`].
fn clip_outliers(mut costs: Vec<(Vec<f64>, f64)>) -> Vec<(Vec<f64>, f64)> {
    let all: Vec<f64> = costs.iter().map(|(_, cost)| *cost).collect();
    let lowest = all.iter().copied().fold(f64::INFINITY, f64::min);
    let Some(middle) = median(all) else { return costs };
    let most = middle + WORST * (middle - lowest);
    // Where most costs equal the lowest, there is no scale for what is far.
    if middle > lowest {
        costs.iter_mut().for_each(|(_, cost)| *cost = cost.min(most));
    }
    costs
}

/// Returns at most [`PLACES_MOST`] points, half of them the best and the rest the newest, in their original
/// order.
fn best_and_newest(costs: Vec<(Vec<f64>, f64)>) -> Vec<(Vec<f64>, f64)> {
    if costs.len() <= PLACES_MOST {
        return costs;
    }
    let mut ranks: Vec<usize> = (0..costs.len()).collect();
    ranks.sort_by(|a, b| costs[*a].1.total_cmp(&costs[*b].1).then(a.cmp(b)));
    let (best, rest) = ranks.split_at(PLACES_MOST / 2);
    let mut rest = rest.to_vec();
    rest.sort_unstable();
    let newest = &rest[rest.len() - (PLACES_MOST - best.len())..];
    let is_kept = |place: &usize| best.contains(place) || newest.contains(place);
    costs.into_iter().enumerate().filter(|(place, _)| is_kept(place)).map(|(_, cost)| cost).collect()
}

/// Fits the process of feasibility (by least squares in place of a likelihood: Rasmussen and Williams 2006,
/// section 6.5); `None` while no trial failed. It uses the newest trials of both kinds, half of each where
/// both are many.
fn fit_feasibility(places: Vec<(Vec<f64>, bool)>, named: Vec<bool>) -> Option<GaussianProcess> {
    let (failed, other): (Vec<_>, Vec<_>) =
        places.into_iter().rev().partition(|(_, is_feasible)| !is_feasible);
    if failed.is_empty() {
        return None;
    }
    let failures = failed.len().min((PLACES_MOST / 2).max(PLACES_MOST.saturating_sub(other.len())));
    let others = PLACES_MOST - failures;
    let told = failed.into_iter().take(failures).chain(other.into_iter().take(others));
    let (points, can): (Vec<_>, Vec<_>) = told.unzip();
    let values: Vec<f64> = can.into_iter().map(|can| if can { 0.0 } else { -2.0 * CAN }).collect();
    Some(GaussianProcess::fit(points, &values, named))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::{
        Dimension, Scale, Study, StudyEvent, StudyState, TrialFailure, TrialOutcome, TrialResult,
    };

    fn space() -> SearchSpace {
        SearchSpace::new(vec![Dimension::new("rate", Scale::Log { low: 1e-5, high: 1e-1 })])
    }

    fn model(ended: &[TrialResult]) -> Option<Surrogate> {
        let study = Study::new(space(), 0);
        let log = StudyEvent::of(ended);
        Surrogate::of(&study.space, &StudyObservations::of(&StudyState::of(&study, &log)))
    }

    fn ended(coordinate: f64, outcome: TrialOutcome) -> TrialResult {
        TrialResult { values: space().values(&[coordinate]), outcome }
    }

    fn failed(coordinate: f64) -> TrialResult {
        ended(coordinate, TrialOutcome::Failed { reason: TrialFailure::Diverged })
    }

    fn bowl(count: u32) -> Vec<TrialResult> {
        let at = |k| (f64::from(k) + 0.5) / f64::from(count);
        (0..count).map(|k| ended(at(k), TrialOutcome::done(5.0 + 40.0 * (at(k) - 0.3f64).powi(2)))).collect()
    }

    #[test]
    fn nothing_is_believed_of_fewer_than_two_costs() {
        assert!(model(&[]).is_none());
        assert!(model(&bowl(1)).is_none());
        assert!(model(&[bowl(1), vec![failed(0.9), failed(0.8)]].concat()).is_none());
        assert!(model(&bowl(2)).is_some());
    }

    #[test]
    fn costs_are_believed_in_their_own_units() {
        let model = model(&bowl(9)).expect("nine costs");
        let Posterior { mean, variance } = model.cost(&[0.3]);
        assert!((mean - 5.0).abs() < 0.2, "{mean}");
        assert!(variance.sqrt() < 0.5, "{variance}");
        assert!((model.best_points()[0][0] - 0.3).abs() < 0.06);
    }

    #[test]
    fn costs_that_are_all_alike_are_believed() {
        let same: Vec<TrialResult> =
            (0..5).map(|k| ended(f64::from(k) / 5.0, TrialOutcome::done(2.5))).collect();
        let model = model(&same).expect("five costs");
        assert!((model.cost(&[0.5]).mean - 2.5).abs() < 1e-9);
    }

    #[test]
    fn a_catastrophe_does_not_flatten_everything_else() {
        let mut trials = bowl(9);
        trials.push(ended(0.99, TrialOutcome::done(1e9)));
        let model = model(&trials).expect("ten costs");
        assert!((model.cost(&[0.3]).mean - 5.0).abs() < 0.5, "{:?}", model.cost(&[0.3]));
        assert!(model.cost(&[0.3]).mean < model.cost(&[0.6]).mean);
    }

    #[test]
    fn failures_are_believed_near_where_they_were_and_nowhere_else() {
        let mut trials = bowl(6);
        assert!(model(&trials).expect("six").log_feasible(&[0.99]).abs() < 1e-12, "nothing failed");
        trials.truncate(4);
        trials.extend([failed(0.8), failed(0.9), failed(1.0)]);
        let model = model(&trials).expect("four costs");
        assert!(model.log_feasible(&[0.95]).exp() < 0.2, "{}", model.log_feasible(&[0.95]).exp());
        assert!(model.log_feasible(&[0.3]).exp() > 0.8, "{}", model.log_feasible(&[0.3]).exp());
    }

    #[test]
    fn many_trials_keep_the_best_and_the_newest() {
        let costs: Vec<(Vec<f64>, f64)> =
            (0..400u32).map(|k| (vec![f64::from(k)], f64::from(k % 100))).collect();
        let kept = best_and_newest(costs.clone());
        assert_eq!(kept.len(), PLACES_MOST);
        assert!(costs.iter().filter(|(_, cost)| *cost < 18.0).all(|cost| kept.contains(cost)), "the best");
        assert!(costs[330..].iter().all(|cost| kept.contains(cost)), "the newest");
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0), "in their order");
    }

    #[test]
    fn many_failures_leave_room_for_what_can_be_trained() {
        let places = |failed: u32, other: u32| -> Vec<(Vec<f64>, bool)> {
            (0..failed + other).map(|k| (vec![f64::from(k) / 500.0], k >= failed)).collect()
        };
        for (failed, other, seen) in [(2, 3, 5), (300, 3, 150), (3, 300, 150), (300, 300, 150)] {
            let process = fit_feasibility(places(failed, other), vec![false]).expect("some failed");
            assert_eq!(process.points().len(), seen, "{failed} of {}", failed + other);
            let is_other = |point: &&Vec<f64>| point[0] >= f64::from(failed) / 500.0;
            let others = process.points().iter().filter(is_other).count();
            assert!(others >= 3 && seen - others >= 2, "{others} of {seen}");
        }
    }
}

//! The best learning rate at each batch size of a study.

use super::gaussian_process::Posterior;
use super::observations::StudyObservations;
use super::outcome::TrialOutcome;
use super::recipe_space::{BATCH, LEARNING_RATE};
use super::space::{Coordinates, SearchSpace, fill_inactive};
use super::study_state::StudyState;
use super::study_trial::{StudyTrial, TrialPhase};
use super::surrogate::Surrogate;
use super::value::TrialValue;
use crate::normal::NINETY_PERCENT;
use serde::{Deserialize, Serialize};

/// The best learning rate at one batch size, by the trials of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimum {
    /// Number of samples per optimizer step.
    pub batch: u64,
    /// Learning rate with the lowest expected cost.
    pub rate: f64,
    /// Number of trials at this batch size that have a cost.
    pub trials: usize,
    /// True if the rate beats the planner's rule for this batch size: the 90 % interval of its expected cost
    /// lies below the expected cost at the rule's learning rate, or at the nearest one tried.
    pub is_better: bool,
    /// True if both lower and higher rates were tried and were worse. At the edge of the range the optimum
    /// may lie beyond.
    pub is_inside: bool,
}

/// Lowest number of trials at a batch size for which an optimum is reported.
const TRIALS_LEAST: usize = 3;

/// Number of learning rates to compare between the lowest and the highest that was tried.
const RATES: u32 = 64;

/// Returns the best learning rate at each batch size of a study that searches the learning rate, in the order
/// of batch sizes. `rule` gives the planner's learning rate for a batch size; `batch` is that of all trials
/// where it is not searched.
///
/// The expected cost is that of the study's Gaussian process along the learning rate, through the best trial
/// at the batch.
pub fn optima(
    space: &SearchSpace,
    study_state: &StudyState,
    batch: u64,
    rule: &dyn Fn(u64) -> f64,
) -> Vec<Optimum> {
    let named = |name: &str| space.dimensions().iter().position(|dimension| dimension.name == name);
    let Some(rate) = named(LEARNING_RATE) else { return Vec::new() };
    let Some(model) = Surrogate::of(space, &StudyObservations::of(study_state)) else { return Vec::new() };
    let batches = named(BATCH);
    let batch_of = |seen: &StudyTrial| match batches.map(|k| &seen.values[k]) {
        Some(TrialValue::Whole(samples)) => u64::try_from(*samples).ok(),
        Some(_) => None,
        None => Some(batch),
    };
    let placed = study_state.trials().iter().filter(|seen| seen.place.is_some());
    let mut sizes: Vec<u64> = placed.clone().filter_map(batch_of).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let at = |size: u64| -> Option<Optimum> {
        let seen: Vec<&StudyTrial> = placed.clone().filter(|seen| batch_of(seen) == Some(size)).collect();
        optimum(space, &model, rate, (size, rule(size)), &seen)
    };
    sizes.into_iter().filter_map(at).collect()
}

fn optimum(
    space: &SearchSpace,
    model: &Surrogate,
    rate: usize,
    (batch, rule): (u64, f64),
    seen: &[&StudyTrial],
) -> Option<Optimum> {
    let coordinate = |place: &Coordinates| place[rate];
    let done: Vec<&Coordinates> =
        seen.iter().filter(|seen| is_done(seen)).filter_map(|seen| seen.place.as_ref()).collect();
    if done.len() < TRIALS_LEAST {
        return None;
    }
    let cost = |point: &[f64]| model.cost(point).mean;
    let best = done.iter().map(|place| fill_inactive(place)).min_by(|a, b| cost(a).total_cmp(&cost(b)))?;
    let tried = || done.iter().filter_map(|place| coordinate(place));
    let (low, high) = (tried().fold(f64::INFINITY, f64::min), tried().fold(0.0, f64::max));
    let along = |at: f64| {
        let mut point = best.clone();
        point[rate] = at;
        point
    };
    let steps = (0..=RATES).map(|step| low + (high - low) * f64::from(step) / f64::from(RATES));
    let lowest = steps.min_by(|a, b| cost(&along(*a)).total_cmp(&cost(&along(*b))))?;
    // A trial that diverged at a higher rate bounds the optimum, too.
    let beside = |is_beyond: &dyn Fn(f64) -> bool| {
        seen.iter().filter_map(|seen| seen.place.as_ref().and_then(coordinate)).any(is_beyond)
    };
    let is_inside = beside(&|at| at < lowest - NEAR) && beside(&|at| at > lowest + NEAR);
    let value = space.dimensions()[rate].value(lowest);
    let ruled =
        space.dimensions()[rate].nearest(rule).and_then(|rule| space.dimensions()[rate].coordinate(&rule));
    let Posterior { mean, variance } = model.cost(&along(lowest));
    let is_better =
        ruled.is_some_and(|at| mean + NINETY_PERCENT * variance.sqrt() < cost(&along(at.clamp(low, high))));
    Some(Optimum { batch, rate: value.number()?, trials: done.len(), is_better, is_inside })
}

/// Difference of two coordinates below which they count as equal.
const NEAR: f64 = 1e-3;

fn is_done(seen: &StudyTrial) -> bool {
    matches!(&seen.status, TrialPhase::Ended(TrialOutcome::Done { value }) if value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tune::sobol::Sobol;
    use crate::tune::{Dimension, Scale, Study, StudyEvent, TrialFailure, TrialResult};

    fn space() -> SearchSpace {
        SearchSpace::new(vec![
            Dimension::new(LEARNING_RATE, Scale::Log { low: 1e-4, high: 1e-1 }),
            Dimension::new(BATCH, Scale::Levels([16, 64].map(TrialValue::Whole).to_vec())),
        ])
    }

    /// Returns a result that is best at rate 1e-3 with batch 16 and at 4e-3 with 64; diverges above 5e-2.
    fn outcome(values: &[TrialValue]) -> TrialOutcome {
        let (rate, batch) = (values[0].number().expect("a rate"), values[1].number().expect("a batch"));
        if rate > 5e-2 {
            return TrialOutcome::Failed { reason: TrialFailure::Diverged };
        }
        TrialOutcome::done(3.0 + (rate / (1e-3 * batch / 16.0)).log10().powi(2))
    }

    fn study_state(
        space: &SearchSpace,
        trials: u32,
        outcome: fn(&[TrialValue]) -> TrialOutcome,
    ) -> StudyState {
        let sobol = Sobol::new(space.dimensions().len(), 5);
        let ended: Vec<TrialResult> = (0..trials)
            .map(|index| space.values(&sobol.point(index)))
            .map(|values| TrialResult { outcome: outcome(&values), values })
            .collect();
        StudyState::of(&Study::new(space.clone(), 1), &StudyEvent::of(&ended))
    }

    #[test]
    fn each_batch_has_its_own_optimum() {
        let space = space();
        let found = optima(&space, &study_state(&space, 24, outcome), 0, &|_| 1e-3);
        assert_eq!(found.iter().map(|one| one.batch).collect::<Vec<_>>(), [16, 64]);
        for (one, wanted) in found.iter().zip([1e-3, 4e-3]) {
            assert!((one.rate / wanted).log10().abs() < 0.1 && one.is_inside, "{one:?}");
        }
        assert!(
            !found[0].is_better && found[1].is_better,
            "the rule is right for 16 and wrong for 64: {found:?}"
        );
    }

    #[test]
    fn an_optimum_at_the_end_of_what_was_tried_is_no_inner_one() {
        let space =
            SearchSpace::new(vec![Dimension::new(LEARNING_RATE, Scale::Log { low: 1e-4, high: 1e-1 })]);
        let falling =
            |values: &[TrialValue]| TrialOutcome::done(-values[0].number().expect("a rate").log10());
        let found = optima(&space, &study_state(&space, 6, falling), 32, &|_| 1e-3);
        assert_eq!((found.len(), found[0].batch, found[0].is_inside), (1, 32, false));
        assert!(
            optima(&space, &study_state(&space, 2, falling), 32, &|_| 1e-3).is_empty(),
            "two trials are too few"
        );
    }
}

//! The recommended trial of a study: the one with the lowest expected cost, so that luck is discounted.

use super::event::StudyEvent;
use super::gaussian_process::Posterior;
use super::observations::StudyObservations;
use super::outcome::TrialOutcome;
use super::space::fill_inactive;
use super::study::Study;
use super::study_state::StudyState;
use super::study_trial::{StudyTrial, TrialPhase};
use super::surrogate::Surrogate;
use super::value::TrialValue;
use crate::normal::NINETY_PERCENT;
use serde::{Deserialize, Serialize};

/// The trial that a study recommends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Number of the trial in the study.
    pub trial: u64,
    /// Values of the trial.
    pub values: Vec<TrialValue>,
    /// Measured objective value of the trial.
    pub measured: f64,
    /// Expected objective value of the trial under the surrogate model: the posterior mean, in which luck is
    /// discounted.
    pub mean: f64,
    /// Lower end of the 90 % interval of the expected value, for a trial picked in advance. Somewhat too
    /// narrow for the best of many, which luck has favored.
    pub low: f64,
    /// Upper end of the 90 % interval of the expected value, for a trial picked in advance.
    pub high: f64,
}

/// Number of completed trials beyond which the measured values are taken as they are: the best of so many is
/// more than luck, and a Gaussian process would see only some of them.
const BELIEVED_MOST: usize = 300;

impl Study {
    /// Returns the trial with the lowest expected cost; `None` while no trial has completed. Uses the
    /// measured cost with fewer than two or more than 300 completed trials, and for trials outside this
    /// space.
    pub fn recommend(&self, log: &[StudyEvent]) -> Option<Recommendation> {
        self.recommend_from(&StudyState::of(self, log))
    }

    /// Returns the trial with the lowest expected cost as [`Study::recommend`] does, from the state of the
    /// study in place of its log.
    pub fn recommend_from(&self, study_state: &StudyState) -> Option<Recommendation> {
        self.ranked(study_state).into_iter().next()
    }

    /// Returns the completed trials, the recommended one first.
    pub fn ranked(&self, study_state: &StudyState) -> Vec<Recommendation> {
        let numbered = (0..).zip(study_state.trials());
        let done: Vec<(u64, &StudyTrial, f64)> =
            numbered.filter_map(|(trial, seen)| Some((trial, seen, final_value(seen)?))).collect();
        let is_modelled = done.len() <= BELIEVED_MOST;
        let model =
            is_modelled.then(|| Surrogate::of(&self.space, &StudyObservations::of(study_state))).flatten();
        let judged = done.into_iter().map(|(trial, seen, measured)| {
            let place = model.as_ref().zip(seen.place.as_ref());
            let posterior = place.map(|(model, place)| model.cost(&fill_inactive(place)));
            let Posterior { mean, variance } =
                posterior.unwrap_or(Posterior { mean: measured, variance: 0.0 });
            let reach = NINETY_PERCENT * variance.sqrt();
            let values = seen.values.clone();
            Recommendation { trial, values, measured, mean, low: mean - reach, high: mean + reach }
        });
        // Without noise, the measured values are exact, and the process would only blur them.
        let is_exact = model.as_ref().is_some_and(Surrogate::is_exact);
        let cost = |one: &Recommendation| if is_exact { one.measured } else { one.mean };
        let mut judged: Vec<Recommendation> = judged.collect();
        judged.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        judged
    }
}

/// Returns the measured value of a trial if it has completed.
fn final_value(seen: &StudyTrial) -> Option<f64> {
    match seen.status {
        TrialPhase::Ended(TrialOutcome::Done { value }) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}

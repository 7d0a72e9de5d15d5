//! The definition of a study, and the pure function from its event log to the next action.

use super::event::{Proposal, ProposalSource, PruneDecision, SlotAction, StudyEvent};
use super::gaussian_process::Posterior;
use super::observations::StudyObservations;
use super::outcome::TrialOutcome;
use super::pruner::Pruner;
use super::sampler::{AskContext, Sampler};
use super::solver::FinishReason;
use super::space::{SearchSpace, fill_inactive};
use super::study_state::{StudyState, StudyTrial, TrialPhase};
use super::surrogate::Surrogate;
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// Definition of a study: search space, sampler, pruner and limits. With the event log it determines every
/// proposal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Dimensions of the search.
    pub space: SearchSpace,
    /// Method that chooses the values of the next trial.
    pub sampler: Sampler,
    /// Rule that stops or pauses trials early.
    #[serde(default)]
    pub pruner: Pruner,
    /// Seed of all random numbers of the study.
    pub seed: u64,
    /// Values tried before the sampler is used, such as those that the plan recommends.
    pub first: Vec<Vec<TrialValue>>,
    /// Number of trials, without lost ones; `None`: until everything has been tried. It may be raised later.
    #[serde(default)]
    pub trials: Option<u64>,
}

/// The recommended trial of a study.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// Number of the trial.
    pub trial: u64,
    /// Values of the trial.
    pub values: Vec<TrialValue>,
    /// Measured objective value.
    pub measured: f64,
    /// Expected objective value under the surrogate model: the posterior mean, with luck discounted.
    pub mean: f64,
    /// Low end of the 90 % interval of a point picked in advance. Somewhat too narrow for the best of many,
    /// which luck has favored.
    pub low: f64,
    /// High end of the same interval.
    pub high: f64,
}

/// Standard deviations on either side of the mean that contain 90 % of a normal distribution.
pub(super) const NINETY_PERCENT: f64 = 1.645;

/// Number of completed trials beyond which the measured values are taken as they are: the best of so many is
/// more than luck, and a Gaussian process would see only some of them.
const BELIEVED_MOST: usize = 300;

impl Study {
    /// Creates a study with the default sampler, no pruner and no limit.
    pub fn new(space: SearchSpace, seed: u64) -> Self {
        let (sampler, pruner) = (Sampler::Auto, Pruner::None);
        Self { space, sampler, pruner, seed, first: Vec::new(), trials: None }
    }

    /// Returns the action for a free slot after the events of the log.
    ///
    /// A pure function: the same log gives exactly the same answer, whether or not the study was interrupted.
    pub fn next(&self, log: &[StudyEvent]) -> SlotAction {
        self.next_allowed(log, &|_| true)
    }

    /// Like [`Study::next`], but proposes only `allowed` values. A sampler gives up after a bounded number of
    /// draws that are not allowed; the study is then exhausted.
    pub fn next_allowed(&self, log: &[StudyEvent], allowed: &dyn Fn(&[TrialValue]) -> bool) -> SlotAction {
        self.next_from(&StudyState::of(self, log), allowed)
    }

    /// Like [`Study::next_allowed`], with the state of the study in place of its log.
    pub fn next_from(&self, study_state: &StudyState, allowed: &dyn Fn(&[TrialValue]) -> bool) -> SlotAction {
        if let Some((trial, until)) = study_state.promotable(&self.pruner) {
            return SlotAction::Resume { trial, until };
        }
        let launched = u64::try_from(study_state.trials().len()).expect("trials are counted in 64 bits");
        let over =
            |finish| if study_state.running() == 0 { SlotAction::Finished(finish) } else { SlotAction::Wait };
        if self.trials.is_some_and(|most| launched - study_state.lost() >= most) {
            return over(FinishReason::Budget);
        }
        match self.propose(study_state, launched, allowed) {
            Some((values, source)) => SlotAction::Launch(Proposal { trial: launched, values, source }),
            None => over(FinishReason::Exhausted),
        }
    }

    /// Returns the decision on a trial after its newest report.
    pub fn prune_decision(&self, log: &[StudyEvent], trial: u64) -> PruneDecision {
        StudyState::of(self, log).trial(trial).decision
    }

    fn propose(
        &self,
        study_state: &StudyState,
        trial: u64,
        allowed: &dyn Fn(&[TrialValue]) -> bool,
    ) -> Option<(Vec<TrialValue>, ProposalSource)> {
        let given = self.first.iter().find(|values| !study_state.is_tried(values) && allowed(values));
        if let Some(values) = given {
            return Some((values.clone(), ProposalSource::Given));
        }
        let is_open = |seen: &&StudyTrial| !study_state.is_tried(&seen.values) && allowed(&seen.values);
        if let Some(lost) = study_state.trials().iter().filter(|seen| seen.is_lost()).find(is_open) {
            return Some((lost.values.clone(), lost.source));
        }
        let context = AskContext { space: &self.space, seed: self.seed, trial, study_state, allowed };
        self.sampler.next(&context)
    }

    /// Returns the trial of lowest expected cost; `None` while no trial has completed. Uses the measured cost
    /// with fewer than two or more than 300 completed trials, and for trials outside this space.
    pub fn recommend(&self, log: &[StudyEvent]) -> Option<Recommendation> {
        self.recommend_from(&StudyState::of(self, log))
    }

    /// Like [`Study::recommend`], with the state of the study in place of its log.
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

/// Returns the measured value of a completed trial.
fn final_value(seen: &StudyTrial) -> Option<f64> {
    match seen.status {
        TrialPhase::Ended(TrialOutcome::Done { value }) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}

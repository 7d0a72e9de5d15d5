//! A search over trials, as a function: what happened goes in, what to do next comes out.

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

/// What is searched and how. Everything a proposal depends on is here and in the log of what happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// The dimensions.
    pub space: SearchSpace,
    /// How the next trial is chosen.
    pub sampler: Sampler,
    /// Which trials go on when they report.
    #[serde(default)]
    pub pruner: Pruner,
    /// Of everything that is left to chance.
    pub seed: u64,
    /// What is tried before the sampler is asked, such as what the plan recommends.
    pub first: Vec<Vec<TrialValue>>,
    /// Trials in all, without those that were lost; `None`: until everything has been tried. It may be raised later.
    #[serde(default)]
    pub trials: Option<u64>,
}

/// What a study found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The number of the trial.
    pub trial: u64,
    /// What it tried.
    pub values: Vec<TrialValue>,
    /// What it measured.
    pub measured: f64,
    /// What is believed of its cost once luck is discounted: the middle.
    pub mean: f64,
    /// End of the interval that would hold the cost of a place picked beforehand with 90 %: the low one. It is
    /// somewhat too narrow for the best of many, which luck has favoured.
    pub low: f64,
    /// The high one.
    pub high: f64,
}

/// Standard deviations on either side of the middle that hold 90 % of a bell curve.
pub(super) const NINETY_PERCENT: f64 = 1.645;

/// Trials that ran to their end beyond which what was measured is believed: the best of so many is more than luck, and a
/// Gaussian process would see only some of them.
const BELIEVED_MOST: usize = 300;

impl Study {
    /// A study of a space with the usual sampler, no pruner and no limit.
    pub fn new(space: SearchSpace, seed: u64) -> Self {
        let (sampler, pruner) = (Sampler::Auto, Pruner::None);
        Self { space, sampler, pruner, seed, first: Vec::new(), trials: None }
    }

    /// What to do with a free slot after everything in the log.
    ///
    /// A function: the same log gives the same answer to the last bit, whether or not the study was interrupted.
    pub fn next(&self, log: &[StudyEvent]) -> SlotAction {
        self.next_allowed(log, &|_| true)
    }

    /// As [`Study::next`], but nothing is proposed that is not `allowed`. A sampler gives up after a bounded number of draws that
    /// are not; the study is then exhausted.
    pub fn next_allowed(&self, log: &[StudyEvent], allowed: &dyn Fn(&[TrialValue]) -> bool) -> SlotAction {
        self.next_from(&StudyState::of(self, log), allowed)
    }

    /// As [`Study::next_allowed`], of a log that was folded before.
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

    /// What to do with a trial after its newest report.
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

    /// The trial whose cost is believed lowest; `None` while none ran to its end. What was measured is believed where fewer than
    /// two trials ran to their end, or more than 300, and of trials that are not in this space.
    pub fn recommend(&self, log: &[StudyEvent]) -> Option<Recommendation> {
        self.recommend_from(&StudyState::of(self, log))
    }

    /// As [`Study::recommend`], of a log that was folded before.
    pub fn recommend_from(&self, study_state: &StudyState) -> Option<Recommendation> {
        self.ranked(study_state).into_iter().next()
    }

    /// The trials that ran to their end, the one first that is recommended.
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
        // Without noise, what was measured tells apart what the process would blur.
        let is_exact = model.as_ref().is_some_and(Surrogate::is_exact);
        let cost = |one: &Recommendation| if is_exact { one.measured } else { one.mean };
        let mut judged: Vec<Recommendation> = judged.collect();
        judged.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        judged
    }
}

/// What a trial that ran to its end measured.
fn final_value(seen: &StudyTrial) -> Option<f64> {
    match seen.status {
        TrialPhase::Ended(TrialOutcome::Done { value }) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}

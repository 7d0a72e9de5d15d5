//! The next action of a study, as a pure function of its event log.

use super::event::{Proposal, ProposalSource, PruneDecision, StudyEvent};
use super::samplers::AskContext;
use super::study::Study;
use super::study_state::StudyState;
use super::study_trial::StudyTrial;
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// The action that a study asks for when a slot is free.
#[derive(Clone, Debug, PartialEq)]
pub enum SlotAction {
    /// Start a trial.
    Launch(Proposal),
    /// Resume a paused trial.
    Resume {
        /// Number of the trial to resume.
        trial: u64,
        /// Units of training after which the pruner decides next; `None` if the trial runs to its end.
        until: Option<u64>,
    },
    /// Wait until another trial reports or ends.
    Wait,
    /// End the study. Trials that are still paused are pruned.
    Finished(FinishReason),
}

/// Reason why a study has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The budget of trials is used up.
    Budget,
    /// Every allowed combination of values has been tried, as far as a bounded number of draws can tell.
    Exhausted,
    /// The runner of the trials stopped the study.
    Stopped,
}

impl Study {
    /// Returns the action for a free slot after the events of `log`.
    ///
    /// A pure function: the same log gives exactly the same answer, whether or not the study was interrupted.
    pub fn next(&self, log: &[StudyEvent]) -> SlotAction {
        self.next_allowed(log, &|_| true)
    }

    /// Returns the action for a free slot as [`Study::next`] does, but proposes only `allowed` values. A
    /// sampler gives up after a bounded number of draws that are not allowed; the study is then exhausted.
    pub fn next_allowed(&self, log: &[StudyEvent], allowed: &dyn Fn(&[TrialValue]) -> bool) -> SlotAction {
        self.next_from(&StudyState::of(self, log), allowed)
    }

    /// Returns the action for a free slot as [`Study::next_allowed`] does, from the state of the study in
    /// place of its log.
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

    /// Returns the pruner's decision on a trial after its newest report.
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
}

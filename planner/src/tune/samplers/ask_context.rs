//! Inputs from which a sampler proposes the next trial.

use crate::tune::space::SearchSpace;
use crate::tune::study_state::StudyState;
use crate::tune::value::TrialValue;

/// Inputs from which a sampler proposes the next trial.
pub(in crate::tune) struct AskContext<'a> {
    /// Search space of the study.
    pub(in crate::tune) space: &'a SearchSpace,
    /// Seed of all random numbers of the study.
    pub(in crate::tune) seed: u64,
    /// Number of the trial to propose values for.
    pub(in crate::tune) trial: u64,
    /// State of the study so far.
    pub(in crate::tune) study_state: &'a StudyState,
    /// Predicate on values that may be proposed.
    pub(in crate::tune) allowed: &'a dyn Fn(&[TrialValue]) -> bool,
}

/// Highest number of draws in which a stateless sampler looks for untried values.
const TRIES: u32 = 256;

impl AskContext<'_> {
    /// Returns `true` if `values` are allowed and no trial has them yet.
    pub(in crate::tune) fn is_untried(&self, values: &[TrialValue]) -> bool {
        !self.study_state.is_tried(values) && (self.allowed)(values)
    }

    /// Returns the values of the first untried point; when draws run out in a small space, any untried
    /// values.
    pub(in crate::tune) fn first_untried(
        &self,
        mut point: impl FnMut(u32) -> Vec<f64>,
    ) -> Option<Vec<TrialValue>> {
        let mut tried = (0..TRIES).map(|k| self.space.values(&point(k)));
        tried.find(|values| self.is_untried(values)).or_else(|| self.first_remaining())
    }

    /// Returns the first untried values of a small space; `None` if the space is large or exhausted.
    pub(in crate::tune) fn first_remaining(&self) -> Option<Vec<TrialValue>> {
        self.space.all()?.find(|values| self.is_untried(values))
    }

    /// Returns the number of dimensions of the search space.
    pub(in crate::tune) fn size(&self) -> usize {
        self.space.dimensions().len()
    }
}

//! Samplers: methods to choose the values of the next trial.

use super::event::ProposalSource;
use super::samplers::{auto, cma_es, evolution, gaussian, grid, random, sobol, swarm, tpe};
use super::space::SearchSpace;
use super::study_state::StudyState;
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// Method that chooses the values of the next trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// A Gaussian process, with every fourth proposal by TPE where costs are noisy or rough. TPE alone beyond
    /// 300 trials or 20 dimensions, or where most dimensions are conditional.
    #[default]
    Auto,
    /// All combinations of values, in order.
    Grid {
        /// Number of values tried of a dimension with too many, at least 2.
        levels: u32,
    },
    /// Uniform random search: the baseline of the others.
    Random,
    /// A Sobol sequence, which covers the space evenly.
    Sobol,
    /// Expected improvement under a Gaussian process.
    Gaussian {
        /// Number of trials of the initial design.
        start: u32,
    },
    /// Tree-structured Parzen estimator. Handles names and conditional dimensions well.
    Tpe,
    /// A normal distribution that adapts (CMA-ES). Names are taken from the best trials.
    CmaEs,
    /// Particle swarm: particles move towards their own best point and that of all.
    Swarm,
    /// Evolution: a recent good trial with one value changed.
    Evolution,
}

/// Inputs of a sampler.
pub(super) struct AskContext<'a> {
    /// Dimensions of the search.
    pub(super) space: &'a SearchSpace,
    /// Seed of the study.
    pub(super) seed: u64,
    /// Number of the next trial.
    pub(super) trial: u64,
    /// State of the study so far.
    pub(super) study_state: &'a StudyState,
    /// Predicate on values that may be proposed.
    pub(super) allowed: &'a dyn Fn(&[TrialValue]) -> bool,
}

/// Most draws of a stateless sampler for values not tried yet.
const TRIES: u32 = 256;

impl AskContext<'_> {
    /// Returns `true` if the values are allowed and no trial has them yet.
    pub(super) fn is_untried(&self, values: &[TrialValue]) -> bool {
        !self.study_state.is_tried(values) && (self.allowed)(values)
    }

    /// Returns the values of the first untried point; when draws run out in a small space, any untried
    /// values.
    pub(super) fn first_untried(&self, mut point: impl FnMut(u32) -> Vec<f64>) -> Option<Vec<TrialValue>> {
        let mut tried = (0..TRIES).map(|k| self.space.values(&point(k)));
        tried.find(|values| self.is_untried(values)).or_else(|| self.first_remaining())
    }

    /// Returns the first untried values of a small space.
    pub(super) fn first_remaining(&self) -> Option<Vec<TrialValue>> {
        self.space.all()?.find(|values| self.is_untried(values))
    }

    /// Returns the number of dimensions.
    pub(super) fn size(&self) -> usize {
        self.space.dimensions().len()
    }
}

impl Sampler {
    /// Returns the Gaussian process sampler with an initial design that suits the number of dimensions.
    pub fn gaussian(space: &SearchSpace) -> Self {
        Self::Gaussian { start: gaussian::initial_trials(space) }
    }

    /// Returns the next values and their origin; `None` when everything has been tried. Deterministic.
    pub(super) fn next(self, context: &AskContext) -> Option<(Vec<TrialValue>, ProposalSource)> {
        match self {
            Self::Random => random::next(context),
            Self::Sobol => sobol::next(context),
            Self::Gaussian { start } => gaussian::next(context, start),
            Self::Auto => auto::next(context),
            Self::Grid { levels } => grid::next(context, levels),
            Self::Tpe => tpe::next(context),
            Self::CmaEs => cma_es::next(context),
            Self::Swarm => swarm::next(context),
            Self::Evolution => evolution::next(context),
        }
    }
}

//! Ways to choose what is tried next.

use super::event::ProposalSource;
use super::samplers::{auto, cma_es, evolution, gaussian, grid, random, sobol, swarm, tpe};
use super::space::SearchSpace;
use super::study_state::StudyState;
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// How the next trial is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// A Gaussian process, with every fourth proposal by TPE where costs are noisy or rough; TPE alone beyond 300 trials or 20 dimensions, or where most dimensions exist only beside some
    /// values of others.
    #[default]
    Auto,
    /// All combinations.
    Grid {
        /// Values of a dimension that has too many, at least 2.
        levels: u32,
    },
    /// By chance alone: what the others are measured against.
    Random,
    /// Evenly over the space.
    Sobol,
    /// Where a Gaussian process expects the largest improvement.
    Gaussian {
        /// Trials that are spread evenly before.
        start: u32,
    },
    /// Where good trials are dense and others are not; at home with names and dimensions that do not always exist.
    Tpe,
    /// A normal distribution that adapts. Names are taken from the best trials.
    CmaEs,
    /// Particles drawn to their own best place and to that of all.
    Swarm,
    /// The newest good trials with one value changed.
    Evolution,
}

/// What a sampler is asked.
pub(super) struct AskContext<'a> {
    /// The dimensions.
    pub(super) space: &'a SearchSpace,
    /// Of the study.
    pub(super) seed: u64,
    /// Number of the trial that is asked for.
    pub(super) trial: u64,
    /// What happened before.
    pub(super) study_state: &'a StudyState,
    /// What may be proposed.
    pub(super) allowed: &'a dyn Fn(&[TrialValue]) -> bool,
}

/// How often a sampler without a memory tries to come up with something new.
const TRIES: u32 = 256;

impl AskContext<'_> {
    /// Whether values may be proposed that nobody tried.
    pub(super) fn is_untried(&self, values: &[TrialValue]) -> bool {
        !self.study_state.is_tried(values) && (self.allowed)(values)
    }

    /// The values at the first of the points that is fresh; in a space of few values, any that are left.
    pub(super) fn first_untried(&self, mut point: impl FnMut(u32) -> Vec<f64>) -> Option<Vec<TrialValue>> {
        let mut tried = (0..TRIES).map(|k| self.space.values(&point(k)));
        tried.find(|values| self.is_untried(values)).or_else(|| self.first_remaining())
    }

    /// Of a space of few values, the first that are left.
    pub(super) fn first_remaining(&self) -> Option<Vec<TrialValue>> {
        self.space.all()?.find(|values| self.is_untried(values))
    }

    /// How many dimensions there are.
    pub(super) fn size(&self) -> usize {
        self.space.dimensions().len()
    }
}

impl Sampler {
    /// A Gaussian process with as many trials before it as its dimensions ask for.
    pub fn gaussian(space: &SearchSpace) -> Self {
        Self::Gaussian { start: gaussian::initial_trials(space) }
    }

    /// What to try, and why; `None` when everything has been tried. The same question gives the same answer.
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

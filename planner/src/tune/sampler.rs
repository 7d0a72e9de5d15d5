//! Ways to choose what is tried next.

use super::event::Source;
use super::samplers::{auto, cma_es, evolution, gaussian, grid, random, sobol, swarm, tpe};
use super::space::Space;
use super::standing::Standing;
use super::value::Value;
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
pub(super) struct Asked<'a> {
    /// The dimensions.
    pub(super) space: &'a Space,
    /// Of the study.
    pub(super) seed: u64,
    /// Number of the trial that is asked for.
    pub(super) trial: u64,
    /// What happened before.
    pub(super) standing: &'a Standing,
    /// What may be proposed.
    pub(super) allowed: &'a dyn Fn(&[Value]) -> bool,
}

/// How often a sampler without a memory tries to come up with something new.
const TRIES: u32 = 256;

impl Asked<'_> {
    /// Whether values may be proposed that nobody tried.
    pub(super) fn is_fresh(&self, values: &[Value]) -> bool {
        !self.standing.is_tried(values) && (self.allowed)(values)
    }

    /// The values at the first of the points that is fresh; in a space of few values, any that are left.
    pub(super) fn first_fresh(&self, mut point: impl FnMut(u32) -> Vec<f64>) -> Option<Vec<Value>> {
        let mut tried = (0..TRIES).map(|k| self.space.values(&point(k)));
        tried.find(|values| self.is_fresh(values)).or_else(|| self.first_left())
    }

    /// Of a space of few values, the first that are left.
    pub(super) fn first_left(&self) -> Option<Vec<Value>> {
        self.space.all()?.find(|values| self.is_fresh(values))
    }

    /// How many dimensions there are.
    pub(super) fn size(&self) -> usize {
        self.space.dimensions().len()
    }
}

impl Sampler {
    /// A Gaussian process with as many trials before it as its dimensions ask for.
    pub fn gaussian(space: &Space) -> Self {
        Self::Gaussian { start: gaussian::start(space) }
    }

    /// What to try, and why; `None` when everything has been tried. The same question gives the same answer.
    pub(super) fn next(self, asked: &Asked) -> Option<(Vec<Value>, Source)> {
        match self {
            Self::Random => random::next(asked),
            Self::Sobol => sobol::next(asked),
            Self::Gaussian { start } => gaussian::next(asked, start),
            Self::Auto => auto::next(asked),
            Self::Grid { levels } => grid::next(asked, levels),
            Self::Tpe => tpe::next(asked),
            Self::CmaEs => cma_es::next(asked),
            Self::Swarm => swarm::next(asked),
            Self::Evolution => evolution::next(asked),
        }
    }
}

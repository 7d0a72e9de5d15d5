//! Ways to choose what is tried next.

use super::event::Source;
use super::samplers::{gaussian, random, sobol};
use super::space::Space;
use super::standing::Standing;
use super::value::Value;
use serde::{Deserialize, Serialize};

/// How the next trial is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// What is best for the space and the number of trials.
    #[default]
    Auto,
    /// By chance alone: what the others are measured against.
    Random,
    /// Evenly over the space.
    Sobol,
    /// Where a Gaussian process expects the largest improvement.
    Gaussian {
        /// Trials that are spread evenly before.
        start: u32,
    },
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
            Self::Auto => gaussian::next(asked, gaussian::start(asked.space)),
        }
    }
}

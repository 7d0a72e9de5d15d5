//! The samplers that a study can choose from.

use super::space::SearchSpace;
use serde::{Deserialize, Serialize};

/// Method that chooses the values of the next trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sampler {
    /// A Gaussian process, with every fourth proposal by TPE where costs are noisy or rough. TPE alone beyond
    /// 300 trials or 20 dimensions, or where most dimensions are conditional.
    #[default]
    Auto,
    /// Grid search: all combinations of values, in order.
    Grid {
        /// Number of values to try of a dimension that has too many, at least 2.
        levels: u32,
    },
    /// Uniform random search, the baseline for the other samplers.
    Random,
    /// A Sobol sequence, which covers the space evenly.
    Sobol,
    /// Expected improvement under a Gaussian process.
    Gaussian {
        /// Number of trials of the initial design.
        start: u32,
    },
    /// Tree-structured Parzen estimator, which handles names and conditional dimensions well.
    Tpe,
    /// CMA-ES: a normal distribution that adapts. Names are taken from the best trials.
    CmaEs,
    /// Particle swarm: particles move towards their own best point and the best point of all.
    Swarm,
    /// Evolution: a recent good trial with one value changed.
    Evolution,
}

impl Sampler {
    /// Returns the Gaussian process sampler with an initial design that suits the number of dimensions.
    pub fn gaussian(space: &SearchSpace) -> Self {
        Self::Gaussian { start: initial_trials(space) }
    }
}

/// Returns the number of trials of the initial design: with more of them in six dimensions, a study of 30
/// trials has too few left.
pub(super) fn initial_trials(space: &SearchSpace) -> u32 {
    let dimensions = u32::try_from(space.dimensions().len()).expect("a few dimensions");
    1 + dimensions
}

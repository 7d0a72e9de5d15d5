//! The definition of a hyperparameter study.

use super::pruner::Pruner;
use super::sampler::Sampler;
use super::space::SearchSpace;
use super::value::TrialValue;
use serde::{Deserialize, Serialize};

/// Definition of a study: search space, sampler, pruner and limits. With the event log it determines every
/// proposal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// Dimensions over which the study searches.
    pub space: SearchSpace,
    /// Method that chooses the values of the next trial.
    pub sampler: Sampler,
    /// Rule that stops or pauses trials early.
    #[serde(default)]
    pub pruner: Pruner,
    /// Seed of all random numbers that the study draws.
    pub seed: u64,
    /// Values tried before the sampler is used, such as those that the plan recommends.
    pub first: Vec<Vec<TrialValue>>,
    /// Number of trials, without lost ones; `None` to go on until everything has been tried. It may be raised
    /// later.
    #[serde(default)]
    pub trials: Option<u64>,
}

impl Study {
    /// Creates a study with the default sampler, no pruner and no limit.
    pub fn new(space: SearchSpace, seed: u64) -> Self {
        let (sampler, pruner) = (Sampler::Auto, Pruner::None);
        Self { space, sampler, pruner, seed, first: Vec::new(), trials: None }
    }
}

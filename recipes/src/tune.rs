//! Settings of a study: sampler, pruner and budget of `dtrain tune`.

use crate::keyword_enum::keyword_enum;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// The settings of `[tune]`, which flags of `dtrain tune` can override.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tune {
    /// Sampler, the method that proposes values for trials.
    pub sampler: SamplerKind,
    /// Pruner, the rule that ends trials early.
    pub pruner: PrunerKind,
    /// Number of trials of the study.
    pub trials: u64,
    /// Time after which no new trial starts; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Seconds>,
    /// Number of steps before which no trial is pruned: the first rung of ASHA and Hyperband.
    pub min_steps: u64,
    /// Reduction factor of ASHA and Hyperband: one trial in this many passes a rung.
    pub eta: u32,
    /// Metric value of the threshold pruner, which ends trials with a worse one; `None` for other pruners.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Number of seeds with which the best setting and the baseline are trained again for comparison.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub confirm: u32,
}

keyword_enum! {
    /// The method that proposes values for trials.
    pub enum SamplerKind {
        /// dtrain chooses the method by the search space and the number of trials.
        Auto = "auto",
        /// Grid search: every combination of values.
        Grid = "grid",
        /// Random search: independent random values.
        Random = "random",
        /// A scrambled Sobol sequence, which covers the space evenly.
        Sobol = "sobol",
        /// Tree-structured Parzen estimators (TPE).
        Tpe = "tpe",
        /// Bayesian optimization: a Gaussian process with expected improvement.
        Gaussian = "gaussian",
        /// CMA-ES, an evolution strategy.
        CmaEs = "cma_es",
        /// Particle swarm optimization.
        Swarm = "swarm",
        /// Regularized evolution.
        Evolution = "evolution",
    }
}

keyword_enum! {
    /// The rule that ends trials early.
    pub enum PrunerKind {
        /// Trials are not ended early.
        None = "none",
        /// Ends trials that are worse than the median of the other trials after the same number of steps.
        Median = "median",
        /// Asynchronous successive halving: pauses all but the best trials of a rung.
        Asha = "asha",
        /// Hyperband: ASHA in several brackets.
        Hyperband = "hyperband",
        /// Ends trials whose metric is worse than a threshold.
        Threshold = "threshold",
    }
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            sampler: SamplerKind::Auto,
            pruner: PrunerKind::None,
            trials: 12,
            time: None,
            min_steps: 1,
            eta: 3,
            threshold: None,
            confirm: 0,
        }
    }
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Tune {
    pub(crate) fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

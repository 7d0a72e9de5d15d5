//! How a study searches: what `dtrain tune` reads of a recipe.

use crate::keyword_enum::keyword_enum;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// How a study searches. All of it may be said otherwise by flags of `dtrain tune`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tune {
    /// How values are proposed.
    pub sampler: SamplerKind,
    /// Which trials are ended early.
    pub pruner: PrunerKind,
    /// Trials in all.
    pub trials: u64,
    /// No trial begins after so long.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Seconds>,
    /// Steps before which no trial is ended early: the first rung of ASHA and Hyperband.
    pub min_steps: u64,
    /// ASHA and Hyperband: one trial in so many passes a rung.
    pub eta: u32,
    /// The pruner "threshold": a trial ends whose metric is worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Seeds with which the best setting is trained again beside another one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub confirm: u32,
}

keyword_enum! {
    /// How values are proposed.
    pub enum SamplerKind {
        /// What suits the space and the number of trials.
        Auto = "auto",
        /// Every combination of values.
        Grid = "grid",
        /// By chance.
        Random = "random",
        /// Evenly: a scrambled Sobol sequence.
        Sobol = "sobol",
        /// Tree-structured Parzen estimators.
        Tpe = "tpe",
        /// A Gaussian process, by expected improvement.
        Gaussian = "gaussian",
        /// CMA-ES.
        CmaEs = "cma_es",
        /// A particle swarm.
        Swarm = "swarm",
        /// Regularised evolution.
        Evolution = "evolution",
    }
}

keyword_enum! {
    /// Which trials are ended early.
    pub enum PrunerKind {
        /// None.
        None = "none",
        /// Those worse than the middle of the others after as many steps.
        Median = "median",
        /// All but the best of a rung pause: asynchronous successive halving.
        Asha = "asha",
        /// ASHA in several brackets.
        Hyperband = "hyperband",
        /// Those whose metric is worse than a value.
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

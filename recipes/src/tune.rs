//! How a study searches: what `dtrain tune` reads of a recipe.

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
    pub least: u64,
    /// ASHA and Hyperband: one trial in so many passes a rung.
    pub eta: u32,
    /// The pruner "threshold": a trial ends whose metric is worse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<f64>,
    /// Seeds with which the best setting is trained again beside another one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub confirm: u32,
}

/// How values are proposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SamplerKind {
    /// What suits the space and the number of trials.
    Auto,
    /// Every combination of values.
    Grid,
    /// By chance.
    Random,
    /// Evenly: a scrambled Sobol sequence.
    Sobol,
    /// Tree-structured Parzen estimators.
    Tpe,
    /// A Gaussian process, by expected improvement.
    Gaussian,
    /// CMA-ES.
    CmaEs,
    /// A particle swarm.
    Swarm,
    /// Regularised evolution.
    Evolution,
}

/// Which trials are ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PrunerKind {
    /// None.
    None,
    /// Those worse than the middle of the others after as many steps.
    Median,
    /// All but the best of a rung pause: asynchronous successive halving.
    Asha,
    /// ASHA in several brackets.
    Hyperband,
    /// Those whose metric is worse than a value.
    Threshold,
}

impl SamplerKind {
    /// All, as a recipe spells them.
    pub const NAMES: [&'static str; 9] =
        ["auto", "grid", "random", "sobol", "tpe", "gaussian", "cma_es", "swarm", "evolution"];

    /// The sampler of a name; `None` when there is none.
    pub fn named(name: &str) -> Option<Self> {
        use SamplerKind::{Auto, CmaEs, Evolution, Gaussian, Grid, Random, Sobol, Swarm, Tpe};
        let all = [Auto, Grid, Random, Sobol, Tpe, Gaussian, CmaEs, Swarm, Evolution];
        Self::NAMES.iter().zip(all).find(|(known, _)| **known == name).map(|(_, kind)| kind)
    }
}

impl PrunerKind {
    /// All, as a recipe spells them.
    pub const NAMES: [&'static str; 5] = ["none", "median", "asha", "hyperband", "threshold"];

    /// The pruner of a name; `None` when there is none.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::None, Self::Median, Self::Asha, Self::Hyperband, Self::Threshold];
        Self::NAMES.iter().zip(all).find(|(known, _)| **known == name).map(|(_, kind)| kind)
    }
}

impl Default for Tune {
    fn default() -> Self {
        Self {
            sampler: SamplerKind::Auto,
            pruner: PrunerKind::None,
            trials: 12,
            time: None,
            least: 1,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_json() {
        let json = |value: serde_json::Value| value.as_str().expect("a word").to_owned();
        for name in SamplerKind::NAMES {
            let kind = SamplerKind::named(name).expect(name);
            assert_eq!(json(serde_json::to_value(kind).expect("a word")), name);
        }
        for name in PrunerKind::NAMES {
            let kind = PrunerKind::named(name).expect(name);
            assert_eq!(json(serde_json::to_value(kind).expect("a word")), name);
        }
        assert_eq!((SamplerKind::named("x"), PrunerKind::named("x")), (None, None));
    }
}

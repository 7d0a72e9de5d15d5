//! The checked recipe: a value that exists is valid.

use crate::keyword_enum::keyword_enum;
use crate::{
    Cluster, Data, Model, Objective, ParamRange, ParamValue, Samples, Seconds, Synchronisation, Train, Tune,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What to train and what may vary. Made by checking a document; nobody validates it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Letters, digits, `-`, `_` and `.`, at most 128.
    pub name: String,
    /// Kind of model.
    pub model: Model,
    /// Where samples come from; `None` only for a foreign command.
    pub data: Option<Data>,
    /// The params of a foreign command by name, each with the value of this run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, ParamValue>,
    /// The ranges of those params that have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, ParamRange>,
    /// What is to be reached.
    pub objective: Objective,
    /// How the weights are moved.
    pub train: Train,
    /// Axes the user decided.
    pub layout: LayoutPins,
    /// How replicas are kept alike.
    #[serde(default, skip_serializing_if = "Synchronisation::is_exact")]
    pub sync: Synchronisation,
    /// When state is saved.
    pub checkpoint: CheckpointSchedule,
    /// When it is validated.
    #[serde(default, skip_serializing_if = "ValidationSchedule::is_auto")]
    pub validation: ValidationSchedule,
    /// How a study searches.
    #[serde(default, skip_serializing_if = "Tune::is_usual")]
    pub tune: Tune,
    /// Where training happens.
    pub cluster: Cluster,
}

/// Axes and memory choices the user decided; `None` leaves them to the planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPins {
    /// Data-parallel replicas.
    pub data: Option<u32>,
    /// Tensor-parallel ranks.
    pub tensor: Option<u32>,
    /// Pipeline stages.
    pub pipeline: Option<u32>,
    /// Context-parallel ranks.
    pub context: Option<u32>,
    /// Expert-parallel ranks.
    pub expert: Option<u32>,
    /// What the replicas shard among them.
    pub zero: Option<ZeroStage>,
    /// Samples of one forward pass on one rank.
    pub micro_batch: Option<u32>,
    /// Which activations are computed again in backward.
    pub recompute: Option<Recompute>,
    /// Of how many blocks one is computed again.
    #[serde(default)]
    pub recompute_every: Option<u32>,
    /// Order of the passes in a pipeline.
    #[serde(default)]
    pub schedule: Option<PipelineSchedule>,
    /// Runs of blocks of one pipeline stage.
    #[serde(default)]
    pub chunks: Option<u32>,
    /// Whether tensor-parallel ranks also hold parts of the sequence.
    #[serde(default)]
    pub sequence: Option<bool>,
    /// Replicas among which state is sharded.
    #[serde(default)]
    pub shard: Option<u32>,
    /// How much of a step each data replica does, relative to the others.
    #[serde(default)]
    pub shares: Option<Vec<u32>>,
}

keyword_enum! {
    /// In which order a pipeline does the passes of a step.
    pub enum PipelineSchedule {
        /// All forwards, then all backwards (Huang et al. 2019).
        Gpipe = "gpipe",
        /// One forward, one backward: as few activations alive as there are stages (Narayanan et al. 2019).
        OneForwardOneBackward = "1f1b",
        /// One forward, one backward over several chunks a stage: a shorter bubble (Narayanan et al. 2021).
        Interleaved = "interleaved",
        /// Gradients of weights fill the bubble, ZB-H1 (Qi et al. 2024).
        ZeroBubble = "zero_bubble",
    }
}

/// What the data-parallel replicas shard among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ZeroStage {
    /// Nothing.
    #[serde(rename = "0")]
    Zero0,
    /// Optimizer state.
    #[serde(rename = "1")]
    Zero1,
    /// Optimizer state and gradients.
    #[serde(rename = "2")]
    Zero2,
    /// Optimizer state, gradients and parameters.
    #[serde(rename = "3")]
    Zero3,
}

impl ZeroStage {
    /// The stage of a number; `None` when there is none.
    pub fn of(stage: u64) -> Option<Self> {
        [Self::Zero0, Self::Zero1, Self::Zero2, Self::Zero3].into_iter().nth(usize::try_from(stage).ok()?)
    }
}

keyword_enum! {
    /// Which activations are computed again in backward in place of being kept.
    pub enum Recompute {
        /// None: all are kept.
        None = "none",
        /// The attention core only.
        Selective = "selective",
        /// Everything inside a block; only its input is kept.
        Full = "full",
    }
}

/// When state is saved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSchedule {
    /// How often.
    pub every: Interval,
    /// How many of the newest checkpoints are kept, at least 2.
    pub keep: u32,
}

/// When a run is validated, and on how much.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationSchedule {
    /// How often; it always is at its end.
    pub every: Interval,
    /// The most samples of one validation; `None` leaves it to the planner.
    pub samples: Option<Samples>,
}

impl ValidationSchedule {
    /// As the planner decides.
    pub const AUTO: Self = Self { every: Interval::Auto, samples: None };

    /// Whether the planner decides all of it.
    pub fn is_auto(&self) -> bool {
        *self == Self::AUTO
    }
}

impl Default for ValidationSchedule {
    fn default() -> Self {
        Self::AUTO
    }
}

/// How often something is done beside training.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// The planner decides from the predicted step time.
    Auto,
    /// After this many optimizer steps.
    Steps(u64),
    /// After about this long, rounded to whole steps by the predicted step time.
    Time(Seconds),
}

//! The checked recipe. Every value of type [`Recipe`] is valid.

use crate::keyword_enum::keyword_enum;
use crate::{
    Cluster, Data, Model, Objective, ParamRange, ParamValue, Samples, Seconds, Synchronisation, Train,
    TrainingEngine, Tune,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A checked recipe: a model, its data and training, and the choices left open. Only the checker creates it,
/// so it needs no further checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Name of the recipe: letters, digits, `-`, `_` and `.`, at most 128.
    pub name: String,
    /// Program that trains the model.
    #[serde(default, skip_serializing_if = "TrainingEngine::is_dtrain")]
    pub engine: TrainingEngine,
    /// The model to train.
    pub model: Model,
    /// Training and validation data; `None` only for a foreign command.
    pub data: Option<Data>,
    /// Params of a foreign command by name, each with the value of this run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, ParamValue>,
    /// Range of each param that has one, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, ParamRange>,
    /// Metric and stop conditions.
    pub objective: Objective,
    /// Batch size, optimizer, learning rate and precision.
    pub train: Train,
    /// Layout choices fixed by the user.
    pub layout: LayoutPins,
    /// Synchronization of the replicas.
    #[serde(default, skip_serializing_if = "Synchronisation::is_exact")]
    pub sync: Synchronisation,
    /// Schedule and retention of checkpoints.
    pub checkpoint: CheckpointSchedule,
    /// Schedule of validations.
    #[serde(default, skip_serializing_if = "ValidationSchedule::is_auto")]
    pub validation: ValidationSchedule,
    /// Settings of a study, such as its sampler and pruner.
    #[serde(default, skip_serializing_if = "Tune::is_usual")]
    pub tune: Tune,
    /// Hosts and devices that train.
    pub cluster: Cluster,
}

impl Recipe {
    /// Returns `true` if a foreign program trains: a command, or a training engine other than dtrain's own
    /// worker. It saves its own checkpoints.
    pub fn runs_foreign_program(&self) -> bool {
        matches!(self.model, Model::Command(_)) || self.engine.is_foreign()
    }
}

/// The layout and memory choices that the user fixed; a choice that is `None` is left to the planner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutPins {
    /// Number of data-parallel replicas; `None` leaves it to the planner.
    pub data: Option<u32>,
    /// Degree of tensor parallelism; `None` leaves it to the planner.
    pub tensor: Option<u32>,
    /// Number of pipeline stages; `None` leaves it to the planner.
    pub pipeline: Option<u32>,
    /// Degree of context parallelism; `None` leaves it to the planner.
    pub context: Option<u32>,
    /// Degree of expert parallelism; `None` leaves it to the planner.
    pub expert: Option<u32>,
    /// ZeRO stage, the state that is sharded among the replicas; `None` leaves it to the planner.
    pub zero: Option<ZeroStage>,
    /// Samples per forward pass of one rank; `None` leaves it to the planner.
    pub micro_batch: Option<u32>,
    /// Activations that backward recomputes; `None` leaves it to the planner.
    pub recompute: Option<Recompute>,
    /// Recomputation interval: one of this many blocks is recomputed; `None` leaves it to the planner.
    #[serde(default)]
    pub recompute_every: Option<u32>,
    /// Pipeline schedule, the order of forward and backward passes; `None` leaves it to the planner.
    #[serde(default)]
    pub schedule: Option<PipelineSchedule>,
    /// Number of model chunks per pipeline stage (interleaving); `None` leaves it to the planner.
    #[serde(default)]
    pub chunks: Option<u32>,
    /// Sequence parallelism: `true` if tensor-parallel ranks also split the sequence; `None` leaves it to the
    /// planner.
    #[serde(default)]
    pub sequence: Option<bool>,
    /// Size of shard groups: the number of replicas among which state is sharded; `None` leaves it to the
    /// planner.
    #[serde(default)]
    pub shard: Option<u32>,
    /// Share of the batch that each data-parallel replica gets, relative to the others; `None` for equal or
    /// planned shares.
    #[serde(default)]
    pub shares: Option<Vec<u32>>,
}

keyword_enum! {
    /// The order in which a pipeline runs the passes of a step.
    pub enum PipelineSchedule {
        /// GPipe: all forward passes, then all backward passes (Huang et al. 2019).
        Gpipe = "gpipe",
        /// One forward, one backward: at most as many micro-batches in flight as there are stages (Narayanan
        /// et al. 2019).
        OneForwardOneBackward = "1f1b",
        /// 1F1B over several chunks per stage: a shorter bubble (Narayanan et al. 2021).
        Interleaved = "interleaved",
        /// ZB-H1: weight gradients fill the pipeline bubble (Qi et al. 2024).
        ZeroBubble = "zero_bubble",
    }
}

/// The state that data-parallel replicas shard among themselves (ZeRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ZeroStage {
    /// Replicas shard no state.
    #[serde(rename = "0")]
    Zero0,
    /// Replicas shard the optimizer state.
    #[serde(rename = "1")]
    Zero1,
    /// Replicas shard the optimizer state and the gradients.
    #[serde(rename = "2")]
    Zero2,
    /// Replicas shard the optimizer state, the gradients and the parameters.
    #[serde(rename = "3")]
    Zero3,
}

impl ZeroStage {
    /// Returns the ZeRO stage with this number; `None` above 3.
    pub fn of(stage: u64) -> Option<Self> {
        [Self::Zero0, Self::Zero1, Self::Zero2, Self::Zero3].into_iter().nth(usize::try_from(stage).ok()?)
    }
}

keyword_enum! {
    /// The activations that backward recomputes instead of keeping them (activation checkpointing).
    pub enum Recompute {
        /// No recomputation: all activations are kept.
        None = "none",
        /// Only the attention core is recomputed.
        Selective = "selective",
        /// All activations inside a block are recomputed from its input.
        Full = "full",
    }
}

/// The interval and retention of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSchedule {
    /// Interval between checkpoints.
    pub every: Interval,
    /// Number of newest checkpoints to keep, at least 2.
    pub keep: u32,
}

/// The interval and sample limit of validations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationSchedule {
    /// Interval between validations; one always runs at the end of training.
    pub every: Interval,
    /// Maximum number of samples per validation; `None` leaves it to the planner.
    pub samples: Option<Samples>,
}

impl ValidationSchedule {
    /// The schedule that leaves interval and sample limit to the planner.
    pub const AUTO: Self = Self { every: Interval::Auto, samples: None };

    /// Returns `true` if interval and sample limit are both left to the planner.
    pub fn is_auto(&self) -> bool {
        *self == Self::AUTO
    }
}

impl Default for ValidationSchedule {
    fn default() -> Self {
        Self::AUTO
    }
}

/// The interval of a recurring task, such as checkpoints or validations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// The planner chooses the interval from the predicted step time.
    Auto,
    /// The task recurs after this many optimizer steps.
    Steps(u64),
    /// The task recurs after about this time, rounded to whole steps by the predicted step time.
    Time(Seconds),
}

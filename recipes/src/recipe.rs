//! The checked recipe. Every value of type [`Recipe`] is valid.

use crate::keyword_enum::keyword_enum;
use crate::{
    Cluster, Data, Model, Objective, ParamRange, ParamValue, Samples, Seconds, Synchronisation, Train, Tune,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A model, its data and training, and the choices left open. Only the checker makes it, so it needs no
/// further checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    /// Name of the recipe: letters, digits, `-`, `_` and `.`, at most 128.
    pub name: String,
    /// The model to train.
    pub model: Model,
    /// Training and validation data; `None` only for a foreign command.
    pub data: Option<Data>,
    /// Params of a foreign command by name, each with the value of this run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub params: BTreeMap<String, ParamValue>,
    /// Ranges of those params that have one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ranges: BTreeMap<String, ParamRange>,
    /// Metric and stop conditions.
    pub objective: Objective,
    /// Batch size, optimizer, learning rate and precision.
    pub train: Train,
    /// Layout choices fixed by the user.
    pub layout: LayoutPins,
    /// Synchronisation of the replicas.
    #[serde(default, skip_serializing_if = "Synchronisation::is_exact")]
    pub sync: Synchronisation,
    /// Schedule and retention of checkpoints.
    pub checkpoint: CheckpointSchedule,
    /// Schedule of validations.
    #[serde(default, skip_serializing_if = "ValidationSchedule::is_auto")]
    pub validation: ValidationSchedule,
    /// Search settings of a study.
    #[serde(default, skip_serializing_if = "Tune::is_usual")]
    pub tune: Tune,
    /// Hosts and devices that train.
    pub cluster: Cluster,
}

/// Layout and memory choices fixed by the user; `None` leaves one to the planner.
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
    /// ZeRO stage: state that is sharded among the replicas.
    pub zero: Option<ZeroStage>,
    /// Samples per forward pass of one rank.
    pub micro_batch: Option<u32>,
    /// Activations that backward recomputes.
    pub recompute: Option<Recompute>,
    /// One of this many blocks is recomputed.
    #[serde(default)]
    pub recompute_every: Option<u32>,
    /// Pipeline schedule: the order of forward and backward passes.
    #[serde(default)]
    pub schedule: Option<PipelineSchedule>,
    /// Model chunks per pipeline stage (interleaving).
    #[serde(default)]
    pub chunks: Option<u32>,
    /// Sequence parallelism: `true` if tensor-parallel ranks also split the sequence.
    #[serde(default)]
    pub sequence: Option<bool>,
    /// Number of replicas among which state is sharded.
    #[serde(default)]
    pub shard: Option<u32>,
    /// Share of a batch that each data replica gets, relative to the others.
    #[serde(default)]
    pub shares: Option<Vec<u32>>,
}

keyword_enum! {
    /// The order in which a pipeline runs the passes of a step.
    pub enum PipelineSchedule {
        /// All forwards, then all backwards (Huang et al. 2019).
        Gpipe = "gpipe",
        /// One forward, one backward: at most as many micro-batches alive as there are stages (Narayanan et
        /// al. 2019).
        OneForwardOneBackward = "1f1b",
        /// 1F1B over several chunks per stage: a shorter bubble (Narayanan et al. 2021).
        Interleaved = "interleaved",
        /// Weight gradients fill the bubble, ZB-H1 (Qi et al. 2024).
        ZeroBubble = "zero_bubble",
    }
}

/// The state that data-parallel replicas shard among themselves (ZeRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ZeroStage {
    /// No sharding.
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
    /// Returns the stage of a number; `None` above 3.
    pub fn of(stage: u64) -> Option<Self> {
        [Self::Zero0, Self::Zero1, Self::Zero2, Self::Zero3].into_iter().nth(usize::try_from(stage).ok()?)
    }
}

keyword_enum! {
    /// The activations that backward recomputes instead of keeping them (activation checkpointing).
    pub enum Recompute {
        /// No recomputation: all activations are kept.
        None = "none",
        /// The attention core only.
        Selective = "selective",
        /// Everything inside a block; only its input is kept.
        Full = "full",
    }
}

/// Interval and retention of checkpoints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckpointSchedule {
    /// Interval between checkpoints.
    pub every: Interval,
    /// Number of newest checkpoints that are kept, at least 2.
    pub keep: u32,
}

/// Interval and sample limit of validations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ValidationSchedule {
    /// Interval between validations; one always runs at the end of training.
    pub every: Interval,
    /// Most samples per validation; `None` leaves it to the planner.
    pub samples: Option<Samples>,
}

impl ValidationSchedule {
    /// All left to the planner.
    pub const AUTO: Self = Self { every: Interval::Auto, samples: None };

    /// Returns `true` if the planner decides all of it.
    pub fn is_auto(&self) -> bool {
        *self == Self::AUTO
    }
}

impl Default for ValidationSchedule {
    fn default() -> Self {
        Self::AUTO
    }
}

/// The interval of a task beside training, such as checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interval {
    /// Chosen by the planner from the predicted step time.
    Auto,
    /// This many optimizer steps.
    Steps(u64),
    /// About this long, rounded to whole steps by the predicted step time.
    Time(Seconds),
}

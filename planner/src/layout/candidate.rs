//! One complete way to train, and why a way cannot be used.

use crate::BatchSplit;
use dtrain_protocol::{Arrangement, DeviceKind, Layout};
use dtrain_recipes::{Bytes, PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One complete way to train.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// How the work is arranged among the ranks.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// How the batch is split.
    pub split: BatchSplit,
    /// Compute threads of every rank.
    pub threads: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
}

impl fmt::Display for Candidate {
    /// Such as `data 2, 1 thread each, 2 micro-batches of 4`; what is left at its default is not said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arrangement { layout, zero, shard, sequence, recompute, recompute_every, .. } = self.arrangement;
        let Arrangement { schedule, chunks, sync, precision, device, .. } = self.arrangement;
        f.write_str(&layout_with_devices(&layout, device, self.threads))?;
        let n = self.split.micro_batches().get();
        // Replicas that do not do alike are told one by one.
        let each = self.split.shares(layout.expert);
        let each = if each.is_empty() { vec![n] } else { each };
        let each: Vec<String> = each.iter().map(ToString::to_string).collect();
        write!(f, ", {}", each.join(" + "))?;
        write!(f, " micro-batch{} of {}", if n == 1 { "" } else { "es" }, self.split.micro())?;
        if zero != ZeroStage::Zero0 {
            write!(f, ", zero {}", zero_name(zero))?;
            if shard < self.arrangement.replicas() {
                write!(f, " over {shard}")?;
            }
        }
        if sequence {
            f.write_str(", sequence parallel")?;
        }
        if schedule != PipelineSchedule::OneForwardOneBackward {
            write!(f, ", {}", schedule.name())?;
        }
        if chunks > 1 {
            write!(f, " over {chunks} chunks")?;
        }
        if recompute != Recompute::None {
            write!(f, ", {} recompute", recompute.name())?;
        }
        if recompute_every > 1 {
            write!(f, " of every {recompute_every} blocks")?;
        }
        if precision != Precision::F32 {
            write!(f, ", {}", precision.name())?;
        }
        if !sync.is_exact() {
            write!(f, ", approximate: {sync}")?;
        }
        Ok(())
    }
}

/// The layout with its devices, such as `data 2, 1 thread each`.
pub fn layout_with_devices(layout: &Layout, device: DeviceKind, threads: u32) -> String {
    let s = if threads == 1 { "" } else { "s" };
    match (device, layout.world()) {
        (DeviceKind::Cpu, 1) => format!("one rank of {threads} thread{s}"),
        (DeviceKind::Cpu, _) => format!("{layout}, {threads} thread{s} each"),
        (DeviceKind::Cuda | DeviceKind::Wgpu, 1) => "one GPU".into(),
        (DeviceKind::Cuda | DeviceKind::Wgpu, _) => format!("{layout}, a GPU each"),
    }
}

/// The stage as it is written in a recipe.
pub fn zero_name(zero: ZeroStage) -> &'static str {
    match zero {
        ZeroStage::Zero0 => "0",
        ZeroStage::Zero1 => "1",
        ZeroStage::Zero2 => "2",
        ZeroStage::Zero3 => "3",
    }
}

/// Why a candidate cannot be used, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum Rejection {
    /// The batch does not split evenly.
    #[error("a batch of {batch} cannot be split into micro-batches of {micro} on {replicas} replicas")]
    BatchDoesNotDivide {
        /// Samples of one step.
        batch: u64,
        /// Samples of one forward pass.
        micro: u32,
        /// Replicas.
        replicas: u32,
    },
    /// It needs more memory than a rank has.
    #[error("it needs {needed} on each rank; {available} are available")]
    TooMuchMemory {
        /// Peak of one rank.
        needed: Bytes,
        /// What one rank may use.
        available: Bytes,
    },
    /// One tensor is larger than a device gives to one, whatever is free.
    #[error("{tensor} would be one tensor of {needed}; a GPU here gives at most {limit} to one")]
    TooLargeTensor {
        /// The tensor, in words.
        tensor: String,
        /// Its size.
        needed: Bytes,
        /// What a device gives to one tensor.
        limit: Bytes,
    },
    /// A dimension of the model cannot be cut that many ways.
    #[error("{dimension} = {size} cannot be split {degree} ways")]
    DoesNotDivide {
        /// The dimension, as its key in the recipe.
        dimension: String,
        /// Its size.
        size: u32,
        /// The ways.
        degree: u32,
    },
    /// The worker has no such way of working yet.
    #[error("{0}")]
    CannotRun(String),
    /// The engine that the choice will be written for cannot run it.
    #[error("{0}")]
    EngineCannot(String),
}

impl Rejection {
    /// What rejections of one kind have in common: the heading they are counted under.
    pub fn heading(&self) -> String {
        match self {
            Self::BatchDoesNotDivide { batch, .. } => {
                format!("a batch of {batch} does not split evenly over the replicas")
            }
            Self::TooMuchMemory { available, .. } => {
                format!("more memory than the {available} a rank may use")
            }
            Self::TooLargeTensor { limit, .. } => {
                format!("more memory than a rank may use, or one tensor of more than {limit}")
            }
            Self::DoesNotDivide { dimension, size, .. } => format!("{dimension} = {size} does not divide"),
            Self::EngineCannot(reason) => reason.clone(),
            // `… not tensor 2` and `… not tensor 4` are one reason.
            Self::CannotRun(reason) => {
                reason.trim_end_matches(|c: char| c.is_ascii_digit() || c == ' ').to_string()
            }
        }
    }
}

/// Candidates that were left out for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedGroup {
    /// The reason they share.
    pub heading: String,
    /// How many there are.
    pub count: u64,
    /// The one that came nearest, in words.
    pub nearest: String,
    /// Why that one was left out.
    pub rejection: Rejection,
}

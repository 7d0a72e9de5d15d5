//! A candidate, one complete way to train, and the rejections of unusable ones.

use crate::BatchSplit;
use dtrain_protocol::{Arrangement, DeviceKind, Layout};
use dtrain_recipes::{Bytes, PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One complete way to train: arrangement, batch split, threads and learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Layout, schedule, sharding, recompute and precision.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// Split of the global batch.
    pub split: BatchSplit,
    /// Compute threads of every rank.
    pub threads: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
}

impl fmt::Display for Candidate {
    /// Writes it like `data 2, 1 thread each, 2 micro-batches of 4`; defaults are left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Arrangement { layout, zero, shard, sequence, recompute, recompute_every, .. } = self.arrangement;
        let Arrangement { schedule, chunks, sync, precision, device, .. } = self.arrangement;
        f.write_str(&layout_with_devices(&layout, device, self.threads))?;
        let n = self.split.micro_batches().get();
        // Replicas with unequal shares are listed one by one.
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

/// Returns the layout with its devices, such as `data 2, 1 thread each`.
pub fn layout_with_devices(layout: &Layout, device: DeviceKind, threads: u32) -> String {
    let s = if threads == 1 { "" } else { "s" };
    match (device, layout.world()) {
        (DeviceKind::Cpu, 1) => format!("one rank of {threads} thread{s}"),
        (DeviceKind::Cpu, _) => format!("{layout}, {threads} thread{s} each"),
        (DeviceKind::Cuda | DeviceKind::Wgpu, 1) => "one GPU".into(),
        (DeviceKind::Cuda | DeviceKind::Wgpu, _) => format!("{layout}, a GPU each"),
    }
}

/// Returns the ZeRO stage as it is written in a recipe.
pub fn zero_name(zero: ZeroStage) -> &'static str {
    match zero {
        ZeroStage::Zero0 => "0",
        ZeroStage::Zero1 => "1",
        ZeroStage::Zero2 => "2",
        ZeroStage::Zero3 => "3",
    }
}

/// Reason why a candidate cannot be used, with its numbers.
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
        /// Number of replicas.
        replicas: u32,
    },
    /// It needs more memory than a rank has.
    #[error("it needs {needed} on each rank; {available} are available")]
    TooMuchMemory {
        /// Peak memory of one rank.
        needed: Bytes,
        /// Memory that one rank may use.
        available: Bytes,
    },
    /// One tensor is larger than a device allows, even with enough free memory.
    #[error("{tensor} would be one tensor of {needed}; a GPU here gives at most {limit} to one")]
    TooLargeTensor {
        /// Description of the tensor.
        tensor: String,
        /// Size of the tensor.
        needed: Bytes,
        /// Largest tensor that the device allows.
        limit: Bytes,
    },
    /// A dimension of the model is not divisible by a degree of the layout.
    #[error("{dimension} = {size} cannot be split {degree} ways")]
    DoesNotDivide {
        /// Key of the dimension in the recipe.
        dimension: String,
        /// Size of the dimension.
        size: u32,
        /// Degree of parallelism that splits it.
        degree: u32,
    },
    /// The worker does not support it; the text says why.
    #[error("{0}")]
    CannotRun(String),
    /// The engine for which the plan is emitted does not support it; the text says why.
    #[error("{0}")]
    EngineCannot(String),
}

impl Rejection {
    /// Returns the heading under which rejections of this kind are counted.
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

/// Candidates rejected for one reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RejectedGroup {
    /// Heading of the reason.
    pub heading: String,
    /// Number of candidates.
    pub count: u64,
    /// Description of the candidate that came nearest to fitting.
    pub nearest: String,
    /// Rejection of that candidate.
    pub rejection: Rejection,
}

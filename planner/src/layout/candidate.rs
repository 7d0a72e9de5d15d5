//! A candidate of the planner: one complete way to train.

use super::batch_split::BatchSplit;
use dtrain_protocol::{Arrangement, DeviceKind, Layout};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};
use serde::{Deserialize, Serialize};
use std::fmt;

/// One complete way to train: arrangement, batch split, threads and learning rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Layout, schedule, sharding, recompute and precision of the training.
    #[serde(flatten)]
    pub arrangement: Arrangement,
    /// Split of the global batch into micro-batches.
    pub split: BatchSplit,
    /// Compute threads of every rank.
    pub threads: u32,
    /// Peak learning rate.
    pub learning_rate: f64,
}

impl fmt::Display for Candidate {
    /// Formats the candidate like `data 2, 1 thread each, 2 micro-batches of 4`; defaults are left out.
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

/// Formats a layout with its devices, such as `data 2, 1 thread each`.
pub fn layout_with_devices(layout: &Layout, device: DeviceKind, threads: u32) -> String {
    let s = if threads == 1 { "" } else { "s" };
    match (device, layout.world()) {
        (DeviceKind::Cpu, 1) => format!("one rank of {threads} thread{s}"),
        (DeviceKind::Cpu, _) => format!("{layout}, {threads} thread{s} each"),
        (DeviceKind::Cuda | DeviceKind::Wgpu, 1) => "one GPU".into(),
        (DeviceKind::Cuda | DeviceKind::Wgpu, _) => format!("{layout}, a GPU each"),
    }
}

/// Returns the number of a ZeRO stage as it is written in a recipe, such as `"3"`.
pub fn zero_name(zero: ZeroStage) -> &'static str {
    match zero {
        ZeroStage::Zero0 => "0",
        ZeroStage::Zero1 => "1",
        ZeroStage::Zero2 => "2",
        ZeroStage::Zero3 => "3",
    }
}

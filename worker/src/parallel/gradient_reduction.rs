//! Gradient reduction over the replicas, by the method that the arrangement prescribes.

use super::reduce_scatter::ReduceScatter;
use super::sync::PowerSgdCompressor;
use super::{DeviceGradientBuckets, GradientBuckets};
use crate::gradient_accumulation::Gradients;
use crate::mesh::Mesh;
use crate::stage::Stage;
use dtrain_protocol::sharding::is_sharded;
use dtrain_protocol::{Arrangement, Axis, Failure};
use dtrain_recipes::{Compression, ZeroStage};

/// The method that sums the gradients of one step over the replicas, and its state.
#[derive(Debug)]
pub enum GradientReduction {
    /// All-reduce in buckets: every replica gets all sums.
    Buckets {
        /// Buckets of the parameters that all replicas hold.
        common: GradientBuckets,
        /// Buckets of distributed experts, which only some replicas hold.
        experts: GradientBuckets,
    },
    /// All-reduce in buckets of gradients that are tensors of a device.
    DeviceBuckets {
        /// Buckets of the parameters that all replicas hold.
        common: DeviceGradientBuckets,
        /// Buckets of distributed experts, which only some replicas hold.
        experts: DeviceGradientBuckets,
    },
    /// Approximate all-reduce by low-rank factors (PowerSGD).
    LowRank(PowerSgdCompressor),
    /// Reduce-scatter: every replica gets the sums of its shards.
    ReduceScatter(ReduceScatter),
}

impl GradientReduction {
    /// Creates the reduction for the gradients of `stage`.
    pub fn of(stage: &Stage, arrangement: &Arrangement) -> Self {
        let (parameters, are_tensors) = (stage.parameters(), stage.has_gradient_tensors());
        match arrangement.zero {
            ZeroStage::Zero0 => {
                if let Compression::PowerSgd { rank } = arrangement.sync.compress {
                    return Self::LowRank(PowerSgdCompressor::new(parameters, rank));
                }
                let is_spread = arrangement.layout.degree(Axis::Expert) > 1;
                let is_own = |name: &str| is_spread && is_sharded(name, Axis::Expert);
                if are_tensors && arrangement.sync.is_exact() {
                    return Self::DeviceBuckets {
                        common: DeviceGradientBuckets::new(parameters, |name| !is_own(name)),
                        experts: DeviceGradientBuckets::new(parameters, is_own),
                    };
                }
                let compress = arrangement.sync.compress;
                Self::Buckets {
                    common: GradientBuckets::new(parameters, compress, |name| !is_own(name)),
                    experts: GradientBuckets::new(parameters, compress, is_own),
                }
            }
            ZeroStage::Zero1 => Self::ReduceScatter(ReduceScatter::once(stage.shards())),
            ZeroStage::Zero2 | ZeroStage::Zero3 => Self::ReduceScatter(ReduceScatter::always(stage.shards())),
        }
    }

    /// Returns `true` if the gradients are tensors of a device, which is not synchronized while a batch is
    /// computed.
    pub fn is_of_device(&self) -> bool {
        matches!(self, Self::DeviceBuckets { .. })
    }

    /// Records that a backward has added the gradients of `unit`; `is_final` for the last one of a step.
    /// Sends complete buckets.
    pub fn finish(&mut self, unit: usize, gradients: &mut Gradients, mesh: &Mesh, is_final: bool) {
        match self {
            Self::Buckets { common, experts } if is_final => {
                if mesh.replicas().ranks() > 1 {
                    common.finish(unit, gradients, mesh.replicas());
                }
                if let Some(queue) = mesh.experts() {
                    experts.finish(unit, gradients, queue);
                }
            }
            Self::DeviceBuckets { common, experts } if is_final => {
                if mesh.replicas().ranks() > 1 {
                    common.finish(unit, gradients, mesh.replicas());
                }
                if let Some(queue) = mesh.experts() {
                    experts.finish(unit, gradients, queue);
                }
            }
            // Factors are computed from whole matrices, at the end.
            Self::Buckets { .. } | Self::DeviceBuckets { .. } | Self::LowRank(_) => {}
            Self::ReduceScatter(scatter) => scatter.finish(unit, gradients, mesh, is_final),
        }
    }

    /// Sends the remaining buckets after the last backward of a step. With all-reduce in buckets, the
    /// gradients of further steps may follow before these are collected.
    pub fn start_remaining(&mut self, gradients: &Gradients, mesh: &Mesh) {
        let replicas = Some(mesh.replicas()).filter(|queue| queue.ranks() > 1);
        match self {
            Self::Buckets { common, experts } => {
                replicas.into_iter().for_each(|queue| common.start_remaining(gradients.values(), queue));
                mesh.experts()
                    .into_iter()
                    .for_each(|queue| experts.start_remaining(gradients.values(), queue));
            }
            Self::DeviceBuckets { common, experts } => {
                replicas.into_iter().for_each(|queue| common.start_remaining(gradients, queue));
                mesh.experts().into_iter().for_each(|queue| experts.start_remaining(gradients, queue));
            }
            Self::LowRank(_) | Self::ReduceScatter(_) => {}
        }
    }

    /// Waits for the sums of the oldest step in flight, and stores them in `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, mesh: &Mesh) -> Result<(), Failure> {
        match self {
            Self::Buckets { common, experts } => {
                if mesh.replicas().ranks() > 1 {
                    common.collect(gradients, mesh.replicas())?;
                }
                mesh.experts().map_or(Ok(()), |queue| experts.collect(gradients, queue))
            }
            Self::DeviceBuckets { common, experts } => {
                if mesh.replicas().ranks() > 1 {
                    common.collect(gradients, mesh.replicas())?;
                }
                mesh.experts().map_or(Ok(()), |queue| experts.collect(gradients, queue))
            }
            Self::LowRank(low_rank) if mesh.replicas().ranks() > 1 => {
                let all = 0..low_rank.parameters();
                gradients.to_host(all.clone());
                low_rank.sum(gradients.values_mut(), mesh.replicas())?;
                gradients.from_host(all);
                Ok(())
            }
            Self::LowRank(_) => Ok(()),
            Self::ReduceScatter(scatter) => scatter.collect(gradients, mesh),
        }
    }

    /// Replaces `values`, one for each gradient, by their sum over the replicas.
    pub fn sum(&mut self, values: &mut [f32], mesh: &Mesh) -> Result<(), Failure> {
        match self {
            Self::Buckets { common, .. } => {
                common.start_remaining(values, mesh.replicas());
                common.collect_flat(values, mesh.replicas())
            }
            Self::LowRank(low_rank) => low_rank.sum(values, mesh.replicas()),
            Self::DeviceBuckets { .. } => unreachable!("replicas that move apart sum vectors of the host"),
            Self::ReduceScatter(_) => unreachable!("replicas that shard their state have no whole vectors"),
        }
    }

    /// Returns the residual of error feedback, in flat order: the values that were not sent yet. `None`
    /// without error feedback.
    pub fn residual(&self) -> Option<&[f32]> {
        match self {
            Self::Buckets { common, .. } => common.wire().largest().map(|largest| largest.residual()),
            Self::LowRank(low_rank) => Some(low_rank.residual()),
            Self::DeviceBuckets { .. } | Self::ReduceScatter(_) => None,
        }
    }

    /// Returns the residual of error feedback, to be replaced by that of a checkpoint; `None` without error
    /// feedback.
    pub fn residual_mut(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::Buckets { common, .. } => {
                common.wire_mut().largest_mut().map(|largest| largest.residual_mut())
            }
            Self::LowRank(low_rank) => Some(low_rank.residual_mut()),
            Self::DeviceBuckets { .. } | Self::ReduceScatter(_) => None,
        }
    }

    /// Returns the low-rank compressor for modification, if it is used.
    pub fn low_rank_mut(&mut self) -> Option<&mut PowerSgdCompressor> {
        if let Self::LowRank(low_rank) = self { Some(low_rank) } else { None }
    }

    /// Returns the low-rank compressor, if it is used.
    pub fn low_rank(&self) -> Option<&PowerSgdCompressor> {
        if let Self::LowRank(low_rank) = self { Some(low_rank) } else { None }
    }

    /// Returns the bytes that the reduction stores from step to step.
    pub fn bytes(&self) -> u64 {
        match self {
            Self::LowRank(low_rank) => low_rank.bytes(),
            Self::Buckets { common, experts } => common.bytes() + experts.bytes(),
            Self::DeviceBuckets { common, experts } => common.bytes() + experts.bytes(),
            Self::ReduceScatter(_) => 0,
        }
    }

    /// Records the start of a batch whose gradients are multiplied by `scale`, a power of two.
    pub fn begin_batch(&mut self, scale: f32) {
        match self {
            Self::LowRank(low_rank) => low_rank.begin(scale),
            Self::Buckets { common, experts } => {
                let largest =
                    [common, experts].into_iter().filter_map(|buckets| buckets.wire_mut().largest_mut());
                largest.for_each(|largest| largest.begin(scale));
            }
            Self::DeviceBuckets { .. } | Self::ReduceScatter(_) => {}
        }
    }

    /// Settles the oldest batch in flight. Unless its sums are `finite`, error feedback is restored to its
    /// state without that batch. Does nothing if no batch is in flight.
    pub fn resolve_batch(&mut self, finite: bool) {
        match self {
            Self::LowRank(low_rank) => low_rank.resolve(finite),
            Self::Buckets { common, experts } => {
                let largest =
                    [common, experts].into_iter().filter_map(|buckets| buckets.wire_mut().largest_mut());
                largest.for_each(|largest| largest.resolve(finite));
            }
            Self::DeviceBuckets { .. } | Self::ReduceScatter(_) => {}
        }
    }

    /// Divides the residual of error feedback by `scale`: older versions stored it in checkpoints multiplied
    /// by the loss scale. Values that are not finite, left by an overflow, become zero.
    pub fn unscale_residual(&mut self, scale: f32) {
        for value in self.residual_mut().into_iter().flatten() {
            *value = if value.is_finite() { *value / scale } else { 0.0 };
        }
        if let Some(low_rank) = self.low_rank_mut() {
            low_rank.replace_lost_factors();
        }
    }
}

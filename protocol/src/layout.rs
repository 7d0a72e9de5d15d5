//! Layouts: the degree of parallelism along each axis, and the coordinates of ranks.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;

/// An axis of parallelism. In the order of rank numbers: tensor varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Tensor parallelism: matrices are split.
    Tensor,
    /// Context parallelism: sequences are split.
    Context,
    /// Expert parallelism: experts are spread over ranks.
    Expert,
    /// Data parallelism: samples are spread over replicas.
    Data,
    /// Pipeline parallelism: layers are split into stages.
    Pipeline,
}

impl Axis {
    /// All axes, fastest-varying first.
    pub const ALL: [Self; 5] = [Self::Tensor, Self::Context, Self::Expert, Self::Data, Self::Pipeline];

    /// Returns the name, as in a recipe.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tensor => "tensor",
            Self::Context => "context",
            Self::Expert => "expert",
            Self::Data => "data",
            Self::Pipeline => "pipeline",
        }
    }
}

/// The purpose of a group of ranks. Collectives of different channels may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// All ranks: losses, stop decisions, norms.
    World,
    /// Ranks that hold parts of the same matrices.
    Tensor,
    /// Ranks that hold parts of the same sequences.
    Context,
    /// Ranks that hold different experts of the same blocks.
    Expert,
    /// The stages of one pipeline.
    Pipeline,
    /// Ranks that hold the same weights, experts aside; their gradients are summed.
    Replicas,
    /// Ranks that hold the same experts.
    ExpertReplicas,
    /// Replicas among which state is sharded.
    Shard,
    /// Replicas that hold the same shard.
    AcrossShards,
    /// The ranks of [`Channel::Shard`] again, for the all-gather of weights beside the reduction of
    /// gradients.
    Weights,
    /// The ranks of [`Channel::Shard`] that hold the same experts, among which the experts' state is sharded.
    ExpertShard,
    /// Ranks that hold the same shard of the same experts.
    AcrossExpertShards,
    /// The ranks of [`Channel::ExpertShard`] again, like [`Channel::Weights`].
    ExpertWeights,
}

impl Channel {
    /// All channels; a channel's index is its index here.
    pub const ALL: [Self; 13] = [
        Self::World,
        Self::Tensor,
        Self::Context,
        Self::Expert,
        Self::Pipeline,
        Self::Replicas,
        Self::ExpertReplicas,
        Self::Shard,
        Self::AcrossShards,
        Self::Weights,
        Self::ExpertShard,
        Self::AcrossExpertShards,
        Self::ExpertWeights,
    ];

    /// Returns the axes along which the members differ. [`Channel::Shard`] and later channels are subsets of
    /// the replicas, which differ along these axes.
    pub fn axes(self) -> &'static [Axis] {
        match self {
            Self::World => &Axis::ALL,
            Self::Tensor => &[Axis::Tensor],
            Self::Context => &[Axis::Context],
            Self::Expert => &[Axis::Expert],
            Self::Pipeline => &[Axis::Pipeline],
            Self::Replicas | Self::Shard | Self::AcrossShards | Self::Weights => {
                &[Axis::Context, Axis::Expert, Axis::Data]
            }
            Self::ExpertReplicas | Self::ExpertShard | Self::AcrossExpertShards | Self::ExpertWeights => {
                &[Axis::Context, Axis::Data]
            }
        }
    }
}

/// The degree of parallelism along each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// Tensor-parallel ranks.
    pub tensor: NonZeroU32,
    /// Context-parallel ranks.
    pub context: NonZeroU32,
    /// Expert-parallel ranks.
    pub expert: NonZeroU32,
    /// Data-parallel replicas.
    pub data: NonZeroU32,
    /// Pipeline stages.
    pub pipeline: NonZeroU32,
}

/// The coordinates of a rank: its index along each axis, in the order of [`Axis::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Coord(pub [u32; 5]);

impl Coord {
    /// Returns the index along `axis`.
    pub fn along(&self, axis: Axis) -> u32 {
        self.0[axis as usize]
    }
}

impl Layout {
    /// A single rank.
    pub const SINGLE: Self = Self {
        tensor: NonZeroU32::MIN,
        context: NonZeroU32::MIN,
        expert: NonZeroU32::MIN,
        data: NonZeroU32::MIN,
        pipeline: NonZeroU32::MIN,
    };

    /// Returns a layout of data parallelism alone.
    pub fn replicas(data: NonZeroU32) -> Self {
        Self { data, ..Self::SINGLE }
    }

    /// Returns the degree along `axis`.
    pub fn degree(&self, axis: Axis) -> u32 {
        match axis {
            Axis::Tensor => self.tensor,
            Axis::Context => self.context,
            Axis::Expert => self.expert,
            Axis::Data => self.data,
            Axis::Pipeline => self.pipeline,
        }
        .get()
    }

    /// Returns the number of ranks: the product of the degrees.
    pub fn world(&self) -> u32 {
        Axis::ALL.iter().map(|axis| self.degree(*axis)).product()
    }

    /// Returns the coordinates of `rank`. Panics if the layout has fewer ranks.
    pub fn coord(&self, rank: Rank) -> Coord {
        assert!(rank.0 < self.world(), "rank {rank} is outside a layout of {} ranks", self.world());
        let mut rest = rank.0;
        Coord(Axis::ALL.map(|axis| {
            let index = rest % self.degree(axis);
            rest /= self.degree(axis);
            index
        }))
    }

    /// Returns the rank at `coord`.
    pub fn rank(&self, coord: Coord) -> Rank {
        Rank(Axis::ALL.iter().rev().fold(0, |rank, axis| rank * self.degree(*axis) + coord.along(*axis)))
    }

    /// Returns the ranks that differ from `rank` only along `axes`, itself included, ascending.
    pub fn group(&self, rank: Rank, axes: &[Axis]) -> Vec<Rank> {
        let mut coords = vec![self.coord(rank)];
        for axis in axes {
            let along = |coord: Coord| {
                (0..self.degree(*axis)).map(move |index| {
                    let mut other = coord;
                    other.0[*axis as usize] = index;
                    other
                })
            };
            coords = coords.into_iter().flat_map(along).collect();
        }
        let mut ranks: Vec<_> = coords.into_iter().map(|coord| self.rank(coord)).collect();
        ranks.sort_unstable();
        ranks
    }

    /// Returns the number of ranks that read different samples: those along the data and expert axes.
    pub fn readers(&self) -> u32 {
        self.data.get() * self.expert.get()
    }

    /// Returns the index of `rank` among the [`Layout::readers`].
    pub fn reader(&self, rank: Rank) -> u32 {
        let coord = self.coord(rank);
        coord.along(Axis::Data) * self.expert.get() + coord.along(Axis::Expert)
    }
}

impl fmt::Display for Layout {
    /// Formats the axes with a degree above 1, such as `data 2 × tensor 4`, or `one rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for axis in [Axis::Data, Axis::Pipeline, Axis::Tensor, Axis::Context, Axis::Expert] {
            if self.degree(axis) > 1 {
                let joint = if first { "" } else { " × " };
                write!(f, "{joint}{} {}", axis.word(), self.degree(axis))?;
                first = false;
            }
        }
        if first { f.write_str("one rank") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_along_an_axis_partition_the_ranks(degrees in prop::array::uniform5(1u32..4)) {
            let n = |i: usize| NonZeroU32::new(degrees[i]).expect("degrees start at one");
            let layout = Layout { tensor: n(0), context: n(1), expert: n(2), data: n(3), pipeline: n(4) };
            for rank in (0..layout.world()).map(Rank) {
                prop_assert_eq!(layout.rank(layout.coord(rank)), rank);
            }
            for channel in Channel::ALL {
                let group = |rank| layout.group(Rank(rank), channel.axes());
                let mut all: Vec<_> = (0..layout.world()).map(group).collect();
                all.sort();
                all.dedup();
                let mut ranks = all.concat();
                ranks.sort();
                prop_assert_eq!(ranks, (0..layout.world()).map(Rank).collect::<Vec<_>>());
            }
        }
    }
}

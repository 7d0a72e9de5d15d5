//! Layouts: the degree of parallelism along each axis, and the coordinates of ranks.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;

/// An axis of parallelism. Variants are in the order of rank numbers: tensor varies fastest.
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
    /// All axes, from the fastest-varying to the slowest in rank numbers.
    pub const ALL: [Self; 5] = [Self::Tensor, Self::Context, Self::Expert, Self::Data, Self::Pipeline];

    /// Returns the name of the axis, as in a recipe.
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

/// A channel: the purpose of a group of ranks. Collectives of different channels may run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// All ranks, which exchange losses, stop decisions and norms.
    World,
    /// Ranks that hold parts of the same matrices.
    Tensor,
    /// Ranks that hold parts of the same sequences.
    Context,
    /// Ranks that hold different experts of the same blocks.
    Expert,
    /// The stages of one pipeline.
    Pipeline,
    /// Ranks that hold the same weights, experts aside, and sum their gradients.
    Replicas,
    /// Ranks that hold the same experts, and sum the gradients of these.
    ExpertReplicas,
    /// Neighboring replicas among which state is sharded.
    Shard,
    /// Replicas that hold the same shard of the state.
    AcrossShards,
    /// The same ranks as [`Channel::Shard`], for the all-gather of weights that overlaps with the reduction
    /// of gradients.
    Weights,
    /// The ranks of [`Channel::Shard`] that hold the same experts, among which the experts' state is sharded.
    ExpertShard,
    /// Ranks that hold the same shard of the same experts.
    AcrossExpertShards,
    /// The same ranks as [`Channel::ExpertShard`], for the all-gather of the experts' weights.
    ExpertWeights,
}

impl Channel {
    /// All channels, in the order of their indices.
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

    /// Returns the axes along which the members of a group differ. [`Channel::Shard`] and later channels are
    /// subsets of the replicas, which differ along these axes.
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
    /// Degree of tensor parallelism.
    pub tensor: NonZeroU32,
    /// Degree of context parallelism.
    pub context: NonZeroU32,
    /// Degree of expert parallelism.
    pub expert: NonZeroU32,
    /// Number of data-parallel replicas.
    pub data: NonZeroU32,
    /// Number of pipeline stages.
    pub pipeline: NonZeroU32,
}

/// The coordinates of a rank: its index along each axis, in the order of [`Axis::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Coord(pub [u32; 5]);

impl Coord {
    /// Returns the rank's index along `axis`.
    pub fn along(&self, axis: Axis) -> u32 {
        self.0[axis as usize]
    }
}

impl Layout {
    /// The layout of a single rank.
    pub const SINGLE: Self = Self {
        tensor: NonZeroU32::MIN,
        context: NonZeroU32::MIN,
        expert: NonZeroU32::MIN,
        data: NonZeroU32::MIN,
        pipeline: NonZeroU32::MIN,
    };

    /// Returns the layout of `data` replicas without any other parallelism.
    pub fn replicas(data: NonZeroU32) -> Self {
        Self { data, ..Self::SINGLE }
    }

    /// Returns the degree of parallelism along `axis`.
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

    /// Returns the number of ranks, the product of the degrees; other programs call it the world size
    /// (`WORLD_SIZE`).
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

    /// Returns the rank at the coordinates `coord`.
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

    /// Returns the index of `rank` among the [`Layout::readers`], which selects the samples that it reads.
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

//! How many ways work is cut along each axis, and where a rank sits.

use crate::Rank;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::num::NonZeroU32;

/// A direction in which work is cut. In the order of rank numbers: tensor varies fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Matrices are cut.
    Tensor,
    /// Sequences are cut.
    Context,
    /// Experts are spread.
    Expert,
    /// Samples are spread over replicas.
    Data,
    /// Layers are cut into stages.
    Pipeline,
}

impl Axis {
    /// All axes, fastest-varying first.
    pub const ALL: [Self; 5] = [Self::Tensor, Self::Context, Self::Expert, Self::Data, Self::Pipeline];
}

/// The degree along each axis.
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

/// Where a rank sits: its index along each axis, in the order of [`Axis::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Coord(pub [u32; 5]);

impl Coord {
    /// Index along `axis`.
    pub fn along(&self, axis: Axis) -> u32 {
        self.0[axis as usize]
    }
}

impl Layout {
    /// One rank.
    pub const SINGLE: Self = Self {
        tensor: NonZeroU32::MIN,
        context: NonZeroU32::MIN,
        expert: NonZeroU32::MIN,
        data: NonZeroU32::MIN,
        pipeline: NonZeroU32::MIN,
    };

    /// Data parallelism alone.
    pub fn replicas(data: NonZeroU32) -> Self {
        Self { data, ..Self::SINGLE }
    }

    /// The degree along `axis`.
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

    /// Number of ranks: the product of the degrees.
    pub fn world(&self) -> u32 {
        Axis::ALL.iter().map(|axis| self.degree(*axis)).product()
    }

    /// Where `rank` sits. Panics when the rank is not of this layout.
    pub fn coord(&self, rank: Rank) -> Coord {
        assert!(rank.0 < self.world(), "rank {rank} is outside a layout of {} ranks", self.world());
        let mut rest = rank.0;
        Coord(Axis::ALL.map(|axis| {
            let index = rest % self.degree(axis);
            rest /= self.degree(axis);
            index
        }))
    }

    /// The rank that sits at `coord`.
    pub fn rank(&self, coord: Coord) -> Rank {
        Rank(Axis::ALL.iter().rev().fold(0, |rank, axis| rank * self.degree(*axis) + coord.along(*axis)))
    }

    /// The ranks that differ from `rank` only along `axis`, itself included, in order.
    pub fn group(&self, rank: Rank, axis: Axis) -> Vec<Rank> {
        let coord = self.coord(rank);
        (0..self.degree(axis))
            .map(|index| {
                let mut other = coord;
                other.0[axis as usize] = index;
                self.rank(other)
            })
            .collect()
    }
}

impl fmt::Display for Layout {
    /// The axes that are cut, such as `data 2 × tensor 4`, or `one rank`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (axis, name) in [
            (Axis::Data, "data"),
            (Axis::Pipeline, "pipeline"),
            (Axis::Tensor, "tensor"),
            (Axis::Context, "context"),
            (Axis::Expert, "expert"),
        ] {
            if self.degree(axis) > 1 {
                let joint = if first { "" } else { " × " };
                write!(f, "{joint}{name} {}", self.degree(axis))?;
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
            for axis in Axis::ALL {
                let mut all: Vec<_> = (0..layout.world()).map(|r| layout.group(Rank(r), axis)).collect();
                all.sort();
                all.dedup();
                let mut ranks = all.concat();
                ranks.sort();
                prop_assert_eq!(ranks, (0..layout.world()).map(Rank).collect::<Vec<_>>());
            }
        }
    }
}

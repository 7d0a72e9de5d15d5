//! The sharding table: the dimensions of each parameter that are split, and the axis that splits each.
//!
//! Used three times: the worker splits parameters by it, the checkpoint names regions by it, the planner
//! counts bytes by it. A rank's region is a contiguous range of each dimension of the whole tensor. So a
//! checkpoint can be read under any layout: a reader requests the ranges that it needs.

use crate::{Axis, Coord, Layout, Rank};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The split dimensions of a parameter, each with the axis that splits it. Empty: every rank holds all of it.
pub type ShardedDims = &'static [(usize, Axis)];

/// Column sharding: a weight `[in, out]` is split along its outputs.
const COLUMN: ShardedDims = &[(1, Axis::Tensor)];
/// Row sharding: a weight `[in, out]` is split along its inputs, so that results are partial sums.
const ROW: ShardedDims = &[(0, Axis::Tensor)];
/// Sharding of a bias `[out]`, which is split along the outputs.
const COLUMN_BIAS: ShardedDims = &[(0, Axis::Tensor)];
/// Sharding of an embedding `[vocab, hidden]`, which is split along the vocabulary.
const VOCABULARY: ShardedDims = &[(0, Axis::Tensor)];
/// Sharding of expert weights `[experts, in, out]`: experts are spread over ranks, and each is split along
/// its outputs.
const EXPERT_COLUMN: ShardedDims = &[(0, Axis::Expert), (2, Axis::Tensor)];
/// Sharding of expert weights `[experts, in, out]`: experts are spread over ranks, and each is split along
/// its inputs.
const EXPERT_ROW: ShardedDims = &[(0, Axis::Expert), (1, Axis::Tensor)];

/// The table of split parameters, by the end of their names; all others are whole on every rank.
const TABLE: &[(&str, ShardedDims)] = &[
    ("attention.q.lora_b", COLUMN),
    ("attention.k.lora_b", COLUMN),
    ("attention.v.lora_b", COLUMN),
    ("attention.out.lora_a", ROW),
    ("ffn.gate.lora_b", COLUMN),
    ("ffn.up.lora_b", COLUMN),
    ("ffn.down.lora_a", ROW),
    ("embedding.weight", VOCABULARY),
    ("attention.q.weight", COLUMN),
    ("attention.k.weight", COLUMN),
    ("attention.v.weight", COLUMN),
    ("attention.q.bias", COLUMN_BIAS),
    ("attention.k.bias", COLUMN_BIAS),
    ("attention.v.bias", COLUMN_BIAS),
    ("attention.q_up.weight", COLUMN),
    ("attention.kv_up.weight", COLUMN),
    ("attention.out.weight", ROW),
    ("ffn.gate.weight", COLUMN),
    ("ffn.gate.bias", COLUMN_BIAS),
    ("ffn.up.weight", COLUMN),
    ("ffn.up.bias", COLUMN_BIAS),
    ("ffn.down.weight", ROW),
    ("shared.gate.weight", COLUMN),
    ("shared.up.weight", COLUMN),
    ("shared.down.weight", ROW),
    ("experts.gate.weight", EXPERT_COLUMN),
    ("experts.up.weight", EXPERT_COLUMN),
    ("experts.down.weight", EXPERT_ROW),
    ("head.weight", COLUMN),
];

/// Prefix of the parameter names of custom networks.
const OWN: &str = "own.";

/// Returns the split dimensions of the parameter `name` (such as `blocks.3.ffn.up.weight`). Parameters of
/// custom networks are never split.
pub fn sharded_dims(name: &str) -> ShardedDims {
    if name.starts_with(OWN) {
        return &[];
    }
    let ends_in = |suffix: &str| {
        name.strip_suffix(suffix).is_some_and(|before| before.is_empty() || before.ends_with('.'))
    };
    TABLE.iter().find(|(suffix, _)| ends_in(suffix)).map_or(&[], |(_, cuts)| cuts)
}

/// Returns `true` if the parameter `name` belongs to a low-rank adapter. In a model with adapters, all other
/// parameters are frozen.
pub fn is_adapter(name: &str) -> bool {
    name.ends_with(".lora_a") || name.ends_with(".lora_b")
}

/// Returns `true` if the ranks along `axis` hold different parts of the parameter `name`.
pub fn is_sharded(name: &str, axis: Axis) -> bool {
    sharded_dims(name).iter().any(|(_, by)| *by == axis)
}

/// Returns the ranks that hold the same part of the parameter `name` as `rank` does, itself included,
/// ascending.
///
/// All are in one pipeline stage: if two stages hold a parameter, each has ranks of its own.
pub fn ranks_holding(name: &str, layout: &Layout, rank: Rank) -> Vec<Rank> {
    let axes = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Pipeline && !is_sharded(name, *axis));
    layout.group(rank, &axes.collect::<Vec<_>>())
}

/// Returns the range of `0..size` that part `index` of `parts` holds: contiguous, in order, with sizes that
/// differ by at most one.
pub fn shard_range(size: u64, index: u32, parts: u32) -> Range<u64> {
    let cut = |index: u32| match size.checked_mul(u64::from(index)) {
        Some(product) => product / u64::from(parts),
        None => {
            u64::try_from(u128::from(size) * u128::from(index) / u128::from(parts)).expect("at most the size")
        }
    };
    cut(index)..cut(index + 1)
}

/// Returns the range of `0..length` that part `index` of `parts` holds; the first parts are longer by at most
/// one.
///
/// Used for vectors sharded among ranks; [`shard_range`] splits dimensions.
pub fn vector_shard_range(length: u64, index: u64, parts: u64) -> Range<u64> {
    let (each, longer) = (length / parts, length % parts);
    let begin = index * each + index.min(longer);
    begin..begin + each + u64::from(index < longer)
}

/// Returns the region of the parameter `name`, of global `shape`, that the rank at `coord` holds.
pub fn region(name: &str, shape: &[u64], layout: &Layout, coord: Coord) -> Region {
    let mut region = Region::whole(shape);
    for (dimension, axis) in sharded_dims(name) {
        region.sides[*dimension] = shard_range(shape[*dimension], coord.along(*axis), layout.degree(*axis));
    }
    region
}

/// A region: a box inside a global tensor, whose elements are in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Region {
    /// Shape of the global tensor.
    pub shape: Vec<u64>,
    /// Range of the region along each dimension.
    pub sides: Vec<Range<u64>>,
}

/// A run of elements that are contiguous both in a region and in the global tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContiguousRun {
    /// Offset of the run's first element in the global tensor.
    pub global: u64,
    /// Offset of the run's first element in the region.
    pub local: u64,
    /// Number of elements in the run.
    pub length: u64,
}

impl Region {
    /// Returns the region of a whole tensor.
    pub fn whole(shape: &[u64]) -> Self {
        Self { shape: shape.to_vec(), sides: shape.iter().map(|side| 0..*side).collect() }
    }

    /// Returns `true` if the region is the whole tensor.
    pub fn is_whole(&self) -> bool {
        self.sides.iter().zip(&self.shape).all(|(side, all)| *side == (0..*all))
    }

    /// Returns the lengths of the sides: the shape of the region as a tensor of its own.
    pub fn local_shape(&self) -> Vec<u64> {
        self.sides.iter().map(|side| side.end - side.start).collect()
    }

    /// Returns the number of elements in the region.
    pub fn elements(&self) -> u64 {
        self.local_shape().iter().product()
    }

    /// Returns the contiguous runs of the region, in order, each as long as possible.
    pub fn runs(&self) -> impl Iterator<Item = ContiguousRun> + '_ {
        let local = self.local_shape();
        // Runs extend over trailing dimensions that are whole, and over the one before them.
        let whole = |d: &usize| local[*d] == self.shape[*d];
        let trailing = (0..local.len()).rev().take_while(whole).count();
        let split = (local.len() - trailing).saturating_sub(1);
        let length: u64 = local[split..].iter().product();
        let count = if length == 0 { 0 } else { local[..split].iter().product() };
        (0..count).map(move |index| {
            let mut rest = index;
            let mut at = vec![0; local.len()];
            for d in (0..split).rev() {
                at[d] = rest % local[d];
                rest /= local[d];
            }
            let position = |d: usize| self.sides[d].start + at[d];
            let global = (0..local.len()).fold(0, |global, d| global * self.shape[d] + position(d));
            ContiguousRun { global, local: index * length, length }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    #[test]
    fn a_name_is_matched_by_whole_words() {
        assert_eq!(sharded_dims("blocks.3.ffn.up.weight"), COLUMN);
        assert_eq!(sharded_dims("blocks.0.ffn.down.weight"), ROW);
        assert_eq!(sharded_dims("embedding.weight"), VOCABULARY);
        assert!(sharded_dims("blocks.0.ffn_norm.weight").is_empty());
        assert!(sharded_dims("old_head.weight").is_empty(), "the end of another word is no match");
        assert!(sharded_dims("own.blocks.0.ffn.up.weight").is_empty(), "it is another network's");
        assert!(
            is_sharded("blocks.1.experts.up.weight", Axis::Expert)
                && !is_sharded("head.weight", Axis::Expert)
        );
    }

    proptest! {
        #[test]
        fn the_regions_of_all_ranks_cover_the_tensor_once(
            tensor in 1u32..5, expert in 1u32..4, shape in prop::array::uniform3(1u64..7),
        ) {
            let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
            let layout = Layout { tensor: n(tensor), expert: n(expert), ..Layout::SINGLE };
            let mut seen = vec![0; shape.iter().product::<u64>() as usize];
            for rank in (0..layout.world()).map(crate::Rank) {
                let region = region("experts.up.weight", &shape, &layout, layout.coord(rank));
                let mut next = 0;
                for run in region.runs() {
                    prop_assert_eq!(run.local, next);
                    next += run.length;
                    (run.global..run.global + run.length).for_each(|at| seen[at as usize] += 1);
                }
                prop_assert_eq!(next, region.elements());
            }
            prop_assert!(seen.iter().all(|times| *times == 1));
        }
    }

    #[test]
    fn runs_are_as_long_as_they_can_be() {
        let rows = Region { shape: vec![4, 6], sides: vec![1..3, 0..6] };
        assert_eq!(rows.runs().collect::<Vec<_>>(), [ContiguousRun { global: 6, local: 0, length: 12 }]);
        let columns = Region { shape: vec![2, 6], sides: vec![0..2, 2..4] };
        let expected = [
            ContiguousRun { global: 2, local: 0, length: 2 },
            ContiguousRun { global: 8, local: 2, length: 2 },
        ];
        assert_eq!(columns.runs().collect::<Vec<_>>(), expected);
        let scalar = Region::whole(&[]);
        assert_eq!(scalar.runs().collect::<Vec<_>>(), [ContiguousRun { global: 0, local: 0, length: 1 }]);
        assert!(Region { shape: vec![3, 1], sides: vec![1..1, 0..1] }.runs().next().is_none());
    }
}

//! ZeRO sharding: the part of each parameter whose state a rank stores, and the buckets in which the parts
//! of a unit are sent.
//!
//! Every parameter is cut by itself, into as many contiguous parts as its shard group has ranks, by
//! [`crate::comm::rank_range`]. So ranks that hold the same parameter cut it in the same way beside any
//! others: a tied embedding on the first and the last stage, a norm beside matrices that tensor-parallel
//! ranks cut unevenly.
//!
//! The parameters of a unit are sent in one collective, as a *bucket*: one block for each rank of the
//! group, in which its parts of all parameters are side by side. Blocks are equally long, so a shorter part
//! is padded by one zero.
//!
//! ```text
//! block of rank 0: a a a · b b    block of rank 1: a a 0 · b b    a: 5 values, b: 4 values
//! ```

use crate::comm::rank_range;
use crate::network::ModelParameter;
use dtrain_protocol::{Arrangement, Channel, Rank};
use dtrain_recipes::ZeroStage;
use std::ops::Range;

/// The shards of one stage's parameters, seen from one rank of the shard group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroShards {
    packs: Vec<ParameterBucket>,
    /// Index of each parameter's bucket, and of the parameter in that bucket.
    homes: Vec<(usize, usize)>,
}

/// The parameters of one unit that are sharded among the same ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterBucket {
    unit: usize,
    replication: Channel,
    /// Index of this rank in the shard group.
    place: u32,
    ranks: u32,
    items: Vec<BucketEntry>,
    /// Number of values in one block.
    block: usize,
    /// Range of this rank's block in a vector of its blocks of all buckets.
    kept: Range<usize>,
}

/// A parameter in a bucket, and the place of its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BucketEntry {
    parameter: usize,
    length: usize,
    /// Offset of the parameter's part in each block.
    offset: usize,
}

impl ZeroShards {
    /// Creates the shards of `parameters`, as `rank` holds them; one shard with everything if `arrangement`
    /// shards nothing.
    pub fn of(arrangement: &Arrangement, rank: Rank, parameters: &[ModelParameter]) -> Self {
        let shard = if arrangement.zero == ZeroStage::Zero0 { 1 } else { arrangement.shard };
        let arrangement = Arrangement { shard, ..*arrangement };
        let group = |replication| {
            let members = arrangement.shard_group(rank, replication);
            let place = members.iter().take_while(|member| **member != rank).count();
            let number = |n| u32::try_from(n).expect("a group has at most all ranks");
            (replication, number(place), number(members.len()))
        };
        let groups = [Channel::Replicas, Channel::ExpertReplicas].map(group);
        let (mut packs, mut homes) = (Vec::<ParameterBucket>::new(), Vec::new());
        for (parameter, ModelParameter { unit, range, name, .. }) in parameters.iter().enumerate() {
            let own = Arrangement::replication(name);
            let known = packs.iter().position(|pack| pack.unit == *unit && pack.replication == own);
            let home = known.unwrap_or_else(|| {
                let found = groups.iter().find(|(replication, ..)| *replication == own);
                let (replication, place, ranks) = *found.expect("both replications are there");
                packs.push(ParameterBucket {
                    unit: *unit,
                    replication,
                    place,
                    ranks,
                    items: Vec::new(),
                    block: 0,
                    kept: 0..0,
                });
                packs.len() - 1
            });
            let pack = &mut packs[home];
            homes.push((home, pack.items.len()));
            pack.items.push(BucketEntry { parameter, length: range.len(), offset: pack.block });
            pack.block += rank_range(range.len(), 0, pack.ranks).len();
        }
        let mut begin = 0;
        for pack in &mut packs {
            pack.kept = begin..begin + pack.block;
            begin = pack.kept.end;
        }
        Self { packs, homes }
    }

    /// Returns all buckets of the stage, in the order of units.
    pub fn packs(&self) -> &[ParameterBucket] {
        &self.packs
    }

    /// Returns the indices of the buckets of unit `unit`.
    pub fn packs_of(&self, unit: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.packs.len()).filter(move |pack| self.packs[*pack].unit == unit)
    }

    /// Returns the index of the bucket that parameter `index` is in.
    pub fn pack_of(&self, index: usize) -> usize {
        self.homes[index].0
    }

    /// Returns the part of parameter `index` whose state this rank stores, counted from the parameter's
    /// first value.
    pub fn owned(&self, index: usize) -> Range<usize> {
        let (pack, item) = self.homes[index];
        let pack = &self.packs[pack];
        rank_range(pack.items[item].length, pack.place, pack.ranks)
    }

    /// Returns the range of the owned part of parameter `index` in a vector of this rank's blocks of all
    /// buckets.
    pub fn kept(&self, index: usize) -> Range<usize> {
        let (pack, item) = self.homes[index];
        let pack = &self.packs[pack];
        let begin = pack.kept.start + pack.items[item].offset;
        begin..begin + self.owned(index).len()
    }

    /// Returns the number of values in this rank's blocks of all buckets.
    pub fn kept_length(&self) -> usize {
        self.packs.last().map_or(0, |pack| pack.kept.end)
    }
}

impl ParameterBucket {
    /// Returns the channel of the replicas that have the bucket's parameters.
    pub fn replication(&self) -> Channel {
        self.replication
    }

    /// Returns the number of values in all blocks of the bucket.
    pub fn length(&self) -> usize {
        self.block * self.ranks as usize
    }

    /// Returns the range of this rank's block in the bucket.
    pub fn own(&self) -> Range<usize> {
        let begin = self.block * self.place as usize;
        begin..begin + self.block
    }

    /// Returns the range of this rank's block in a vector of its blocks of all buckets.
    pub fn kept(&self) -> Range<usize> {
        self.kept.clone()
    }

    /// Returns the indices of the bucket's parameters.
    pub fn parameters(&self) -> impl Iterator<Item = usize> + '_ {
        self.items.iter().map(|item| item.parameter)
    }

    /// Returns the parts of parameter `index`, which must be in this bucket: the range of each part in the
    /// parameter, and in the bucket.
    pub fn parts(&self, index: usize) -> impl Iterator<Item = (Range<usize>, Range<usize>)> + '_ {
        let item = self.items.iter().find(|item| item.parameter == index);
        let item = item.unwrap_or_else(|| panic!("parameter {index} travels in another pack"));
        (0..self.ranks).map(move |rank| {
            let inside = rank_range(item.length, rank, self.ranks);
            let begin = self.block * rank as usize + item.offset;
            (inside.clone(), begin..begin + inside.len())
        })
    }

    /// Copies all values of parameter `index` into `packed`, a buffer of the bucket.
    pub fn put(&self, index: usize, values: &[f32], packed: &mut [f32]) {
        for (inside, at) in self.parts(index) {
            packed[at].copy_from_slice(&values[inside]);
        }
    }

    /// Copies all values of parameter `index` out of `packed`, a buffer of the bucket, into `values`.
    pub fn take(&self, index: usize, packed: &[f32], values: &mut [f32]) {
        for (inside, at) in self.parts(index) {
            values[inside].copy_from_slice(&packed[at]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::{Layout, Region};
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    fn parameters(sizes: &[(usize, usize)]) -> Vec<ModelParameter> {
        let mut begin = 0;
        let parameter = |(unit, length): &(usize, usize)| {
            let range = begin..begin + length;
            begin = range.end;
            let region = Region::whole(&[*length as u64]);
            ModelParameter {
                name: format!("{range:?}"),
                shape: vec![*length],
                region,
                has_weight_decay: true,
                unit: *unit,
                range,
            }
        };
        sizes.iter().map(parameter).collect()
    }

    fn shards(ranks: u32, rank: u32, parameters: &[ModelParameter]) -> ZeroShards {
        let layout = Layout::replicas(NonZeroU32::new(ranks).expect("not zero"));
        let arrangement = Arrangement { layout, zero: ZeroStage::Zero1, shard: ranks, ..Arrangement::SINGLE };
        ZeroShards::of(&arrangement, Rank(rank), parameters)
    }

    #[test]
    fn parts_of_a_unit_lie_side_by_side_and_shorter_ones_are_padded() {
        let parameters = parameters(&[(0, 5), (0, 4), (2, 3)]);
        let second = shards(2, 1, &parameters);
        assert_eq!(second.packs().len(), 2, "a unit without parameters does not travel");
        let pack = &second.packs()[0];
        assert_eq!((pack.length(), pack.own(), second.owned(0), second.owned(1)), (10, 5..10, 3..5, 2..4));
        assert_eq!(pack.parts(0).collect::<Vec<_>>(), [(0..3, 0..3), (3..5, 5..7)]);
        assert_eq!(pack.parts(1).collect::<Vec<_>>(), [(0..2, 3..5), (2..4, 8..10)]);
        assert_eq!(
            (second.kept(0), second.kept(1), second.kept(2), second.kept_length()),
            (0..2, 3..5, 5..6, 7)
        );
    }

    proptest! {
        #[test]
        fn the_ranks_own_every_value_once_and_packs_give_back_what_was_put(
            ranks in 1u32..6, sizes in prop::collection::vec((0usize..3, 1usize..20), 1..8),
        ) {
            let mut sizes = sizes;
            sizes.sort_by_key(|(unit, _)| *unit);
            let parameters = parameters(&sizes);
            let tables: Vec<_> = (0..ranks).map(|rank| shards(ranks, rank, &parameters)).collect();
            for (index, parameter) in parameters.iter().enumerate() {
                let values: Vec<f32> = (0..parameter.range.len()).map(|i| i as f32 + 1.0).collect();
                let owned: Vec<_> = tables.iter().flat_map(|table| table.owned(index)).collect();
                prop_assert_eq!(owned, (0..values.len()).collect::<Vec<_>>());
                for table in &tables {
                    let pack = &table.packs()[table.pack_of(index)];
                    let mut packed = vec![0.0; pack.length()];
                    pack.put(index, &values, &mut packed);
                    let mut back = vec![0.0; values.len()];
                    pack.take(index, &packed, &mut back);
                    prop_assert_eq!(&back, &values);
                    let inside = table.kept(index).start - pack.kept().start;
                    let own = &packed[pack.own()][inside..][..table.owned(index).len()];
                    prop_assert_eq!(own, &values[table.owned(index)]);
                }
            }
        }
    }
}

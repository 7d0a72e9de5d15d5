//! The parts that each rank holds in one layout.

use super::*;
use crate::comm::rank_range;
use dtrain_protocol::Channel;
use dtrain_protocol::sharding::{self, ranks_holding};

const KINDS: [TensorKind; 3] = [TensorKind::Parameter, TensorKind::FirstMoment, TensorKind::SecondMoment];

/// A distribution of a model over ranks.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) arrangement: Arrangement,
    /// Stage of each block, in any order.
    pub(super) stages: Vec<u32>,
}

impl Way {
    pub(super) fn ranks(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.arrangement.layout.world()).map(Rank)
    }

    /// Returns the parts of `model` that `rank` holds.
    pub(super) fn parts<'a>(&self, model: &'a [Parameter], rank: Rank) -> Vec<Part<'a>> {
        let Arrangement { layout, zero, .. } = self.arrangement;
        let coord = layout.coord(rank);
        let stage = coord.along(Axis::Pipeline);
        let (is_first, is_last) = (stage == 0, stage + 1 == layout.pipeline.get());
        let mut parts = Vec::new();
        for Parameter { name, shape, block } in model {
            let is_here = match block {
                Place::First => is_first,
                Place::Block(block) => self.stages[*block as usize] == stage,
                Place::Last => is_last,
                Place::FirstAndLast => is_first || is_last,
            };
            for kind in KINDS.into_iter().filter(|_| is_here) {
                let region = sharding::region(name, shape, &layout, coord);
                let is_sharded = match kind {
                    TensorKind::Parameter => zero == ZeroStage::Zero3,
                    TensorKind::FirstMoment | TensorKind::SecondMoment => zero != ZeroStage::Zero0,
                    other => unreachable!("{other:?} is of replicas that shard nothing"),
                };
                let held = self.held(name, region.elements(), rank, is_sharded);
                let is_copy = matches!(block, Place::FirstAndLast) && !is_first;
                parts.push(Part { name, kind, region, held, is_copy });
            }
        }
        parts
    }

    fn held(&self, name: &str, elements: u64, rank: Rank, is_sharded: bool) -> TensorShard {
        let same = ranks_holding(name, &self.arrangement.layout, rank);
        if !is_sharded {
            return TensorShard { range: 0..elements, holders: same };
        }
        let (index, ranks) = place(&self.arrangement, name, rank);
        let range = rank_range(elements as usize, index, ranks);
        let has_it = |other: &Rank| place(&self.arrangement, name, *other) == (index, ranks);
        TensorShard {
            range: range.start as u64..range.end as u64,
            holders: same.into_iter().filter(has_it).collect(),
        }
    }
}

/// Returns the index of `rank` in its shard group for a parameter, and the size of that group: of
/// neighbouring replicas those that hold the same.
fn place(arrangement: &Arrangement, name: &str, rank: Rank) -> (u32, u32) {
    let layout = &arrangement.layout;
    let replicas = layout.group(rank, Channel::Replicas.axes());
    let neighbours = replicas.chunks(arrangement.shard as usize).find(|ranks| ranks.contains(&rank));
    let same = ranks_holding(name, layout, rank);
    let group: Vec<_> =
        neighbours.expect("it is a replica").iter().filter(|rank| same.contains(rank)).collect();
    let index = group.iter().position(|member| **member == rank).expect("it holds what it holds");
    (index as u32, group.len() as u32)
}

/// Returns `true` if all ranks that hold an expert shard it among equally many: otherwise their shards
/// differ.
pub(super) fn shards_evenly(arrangement: &Arrangement) -> bool {
    let name = "experts.up.weight";
    (0..arrangement.layout.world()).map(Rank).all(|rank| {
        let ranks = |rank| place(arrangement, name, rank).1;
        ranks_holding(name, &arrangement.layout, rank).into_iter().all(|other| ranks(other) == ranks(rank))
    })
}

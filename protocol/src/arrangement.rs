//! The arrangement of a step: layout, sharding, schedule, recomputation and precision, but not batch and
//! learning rate.

use crate::sharding::{is_sharded, ranks_holding};
use crate::{Axis, Channel, DeviceKind, Layout, Rank};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, StatePolicy, Synchronisation, ZeroStage};
use serde::{Deserialize, Serialize};

/// The arrangement of a step: the way in which ranks divide its work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Arrangement {
    /// Degree of parallelism along each axis.
    pub layout: Layout,
    /// ZeRO stage: the state that replicas shard.
    pub zero: ZeroStage,
    /// Size of a shard group in neighboring replicas; the groups hold copies of the same state. Divides the
    /// number of replicas; 1 shards nothing.
    #[serde(default = "one")]
    pub shard: u32,
    /// Sequence parallelism: `true` if tensor-parallel ranks split the sequence outside of sharded matrices.
    #[serde(default)]
    pub sequence: bool,
    /// Activations that backward recomputes.
    pub recompute: Recompute,
    /// Recomputation interval: one of this many blocks is recomputed, the first of each run; 1 for every
    /// block.
    #[serde(default = "one")]
    pub recompute_every: u32,
    /// Pipeline schedule: the order of forward and backward passes.
    #[serde(default = "one_forward_one_backward")]
    pub schedule: PipelineSchedule,
    /// Number of model chunks per pipeline stage.
    #[serde(default = "one")]
    pub chunks: u32,
    /// Costs of embedding and head that are assumed when blocks are divided into stages.
    #[serde(default, skip_serializing_if = "EmbeddingHeadCost::are_free")]
    pub ends: EmbeddingHeadCost,
    /// Method by which context-parallel ranks exchange keys and values.
    #[serde(default, skip_serializing_if = "ContextExchange::is_ring")]
    pub context_exchange: ContextExchange,
    /// Expert folding: the number of tensor- or context-parallel ranks over which experts are spread besides
    /// the expert axis; 1 for none.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub expert_fold: u32,
    /// Order of the axes in rank numbers.
    #[serde(default, skip_serializing_if = "RankOrder::is_pipeline_outermost")]
    pub order: RankOrder,
    /// Synchronization of the data-parallel replicas.
    #[serde(default, skip_serializing_if = "Synchronisation::is_exact")]
    pub sync: Synchronisation,
    /// Precision and place of weights, gradients and moments.
    #[serde(default, skip_serializing_if = "StatePolicy::is_plain")]
    pub state: StatePolicy,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Kind of device of every rank.
    pub device: DeviceKind,
}

/// The cost of embedding and head in units of blocks, used to divide blocks into stages. The first and the
/// last chunk get that many blocks fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EmbeddingHeadCost {
    /// Cost of the embedding in blocks.
    pub embedding: u32,
    /// Cost of the head with its loss in blocks.
    pub head: u32,
}

impl EmbeddingHeadCost {
    /// Zero cost: blocks are divided as evenly as possible.
    pub const FREE: Self = Self { embedding: 0, head: 0 };

    /// Returns `true` if both costs are zero.
    pub fn are_free(&self) -> bool {
        *self == Self::FREE
    }
}

/// The method by which context-parallel ranks exchange keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextExchange {
    /// Ring attention: keys and values pass from neighbor to neighbor while local scores are computed.
    #[default]
    Ring,
    /// All-gather: each rank gets all keys and values before it computes the first score.
    AllGather,
    /// All-to-all (Ulysses): ranks swap their parts of the sequence for parts of the heads, and back.
    AllToAll,
}

impl ContextExchange {
    /// Returns `true` if keys and values pass around a ring ([`ContextExchange::Ring`]).
    pub fn is_ring(&self) -> bool {
        *self == Self::Ring
    }
}

/// The order of axes in rank numbers. Tensor-parallel ranks are always adjacent, then context-parallel ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankOrder {
    /// The data axis varies faster than pipeline: the replicas of a stage have closer rank numbers than its
    /// next stage.
    #[default]
    PipelineOutermost,
    /// The pipeline axis varies faster than data: the stages of a pipeline have closer rank numbers than
    /// replicas.
    DataOutermost,
}

impl RankOrder {
    /// Returns `true` if the pipeline is the outermost axis ([`RankOrder::PipelineOutermost`]).
    pub fn is_pipeline_outermost(&self) -> bool {
        *self == Self::PipelineOutermost
    }
}

impl Arrangement {
    /// The arrangement of a single rank on a CPU in f32, without recomputation.
    pub const SINGLE: Self = Self {
        layout: Layout::SINGLE,
        zero: ZeroStage::Zero0,
        shard: 1,
        sequence: false,
        recompute: Recompute::None,
        recompute_every: 1,
        schedule: PipelineSchedule::OneForwardOneBackward,
        chunks: 1,
        ends: EmbeddingHeadCost::FREE,
        context_exchange: ContextExchange::Ring,
        expert_fold: 1,
        order: RankOrder::PipelineOutermost,
        sync: Synchronisation::EXACT,
        state: StatePolicy::PLAIN,
        precision: Precision::F32,
        device: DeviceKind::Cpu,
    };

    /// Formats the layout with its approximations: `data 2 (approximate: bf16 on the wire)`.
    pub fn describe(&self) -> String {
        let Self { layout, sync, .. } = self;
        if sync.is_exact() { layout.to_string() } else { format!("{layout} (approximate: {sync})") }
    }

    /// Returns the number of ranks that hold the same weights, experts aside.
    pub fn replicas(&self) -> u32 {
        self.layout.data.get() * self.layout.context.get() * self.layout.expert.get()
    }

    /// Returns the channel over which the gradients of the parameter `name` are summed.
    pub fn replication(name: &str) -> Channel {
        if is_sharded(name, Axis::Expert) { Channel::ExpertReplicas } else { Channel::Replicas }
    }

    /// Returns the shard group of `rank`, itself included, ascending: [`Arrangement::shard`] neighboring
    /// replicas that shard the state of parameters with this replication; of an expert's parameters, those
    /// that hold the expert.
    pub fn shard_group(&self, rank: Rank, replication: Channel) -> Vec<Rank> {
        let all = self.layout.group(rank, Channel::Replicas.axes());
        let own = self.layout.group(rank, replication.axes());
        let neighbours = all.chunks(self.shard as usize).filter(|group| group.contains(&rank)).flatten();
        neighbours.copied().filter(|neighbour| own.contains(neighbour)).collect()
    }

    /// Returns the number of ranks in a shard group that hold the same experts; `None` if that number differs
    /// between groups.
    pub fn expert_shard(&self) -> Option<u32> {
        let (context, expert) = (self.layout.context.get(), self.layout.expert.get());
        let divides = |small: u32, large: u32| large.is_multiple_of(small);
        match self.shard {
            shard if expert == 1 => Some(shard),
            // Rank numbers vary by context first, then expert, then data.
            shard if divides(context * expert, shard) => Some(shard / expert),
            shard if divides(context, shard) && shard <= context * expert => Some(context),
            shard if divides(shard, context) => Some(shard),
            _ => None,
        }
    }

    /// Returns the ranks that hold the same shard as `rank` of the parameters with this replication, itself
    /// included, ascending.
    pub fn across_shards(&self, rank: Rank, replication: Channel) -> Vec<Rank> {
        self.of_one_shard(rank, replication, self.layout.group(rank, replication.axes()))
    }

    /// Returns the ranks that own the same part of the parameter `name` as `rank` does, itself included,
    /// ascending.
    pub fn owners(&self, rank: Rank, name: &str) -> Vec<Rank> {
        self.of_one_shard(rank, Self::replication(name), ranks_holding(name, &self.layout, rank))
    }

    /// Filters `ranks` to those with the same index in their shard group as `rank`.
    fn of_one_shard(&self, rank: Rank, replication: Channel, mut ranks: Vec<Rank>) -> Vec<Rank> {
        let place =
            |rank: Rank| self.shard_group(rank, replication).iter().position(|member| *member == rank);
        let own = place(rank);
        ranks.retain(|other| place(*other) == own);
        ranks
    }
}

fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(n: &u32) -> bool {
    *n == 1
}

fn one_forward_one_backward() -> PipelineSchedule {
    PipelineSchedule::OneForwardOneBackward
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::num::NonZeroU32;

    proptest! {
        #[test]
        fn shard_groups_and_those_across_them_make_up_the_replicas(
            [tensor, context, data, pipeline] in prop::array::uniform4(1u32..4), pick in 0usize..6,
        ) {
            let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
            let cut = Layout { tensor: n(tensor), context: n(context), ..Layout::SINGLE };
            let layout = Layout { data: n(data), pipeline: n(pipeline), ..cut };
            let arrangement = Arrangement { layout, ..Arrangement::SINGLE };
            let replicas = arrangement.replicas();
            let divisors: Vec<_> = (1..=replicas).filter(|n| replicas.is_multiple_of(*n)).collect();
            let arrangement = Arrangement { shard: divisors[pick % divisors.len()], ..arrangement };
            for rank in (0..layout.world()).map(Rank) {
                let group = arrangement.shard_group(rank, Channel::Replicas);
                prop_assert!(group.contains(&rank));
                prop_assert_eq!(group.len(), arrangement.shard as usize);
                let across = |one: &Rank| arrangement.across_shards(*one, Channel::Replicas);
                let mut all: Vec<_> = group.iter().flat_map(across).collect();
                all.sort();
                prop_assert_eq!(all, layout.group(rank, Channel::Replicas.axes()));
            }
        }
    }

    #[test]
    fn shard_groups_hold_as_many_of_each_expert_or_are_told_apart() {
        let n = |degree| NonZeroU32::new(degree).expect("degrees start at one");
        for (context, expert, data) in [(1, 2, 3), (2, 2, 3), (3, 4, 1), (2, 3, 2), (4, 2, 1), (3, 1, 2)] {
            let layout = Layout { context: n(context), expert: n(expert), data: n(data), ..Layout::SINGLE };
            let base = Arrangement { layout, ..Arrangement::SINGLE };
            for shard in (1..=base.replicas()).filter(|shard| base.replicas().is_multiple_of(*shard)) {
                let arrangement = Arrangement { shard, ..base };
                let size = |rank| arrangement.shard_group(Rank(rank), Channel::ExpertReplicas).len() as u32;
                let sizes: Vec<_> = (0..layout.world()).map(size).collect();
                let alike = sizes.iter().all(|size| *size == sizes[0]).then_some(sizes[0]);
                assert_eq!(arrangement.expert_shard(), alike, "{layout}, shards of {shard}: {sizes:?}");
            }
        }
    }

    #[test]
    fn an_expert_is_sharded_among_the_neighbours_that_hold_it() {
        let two = NonZeroU32::MIN.saturating_add(1);
        let layout = Layout { expert: two, data: two, ..Layout::SINGLE };
        let arrangement = Arrangement { layout, shard: 4, ..Arrangement::SINGLE };
        let experts = Arrangement::replication("blocks.0.experts.up.weight");
        let ranks = |ranks: &[u32]| ranks.iter().copied().map(Rank).collect::<Vec<_>>();
        assert_eq!(arrangement.shard_group(Rank(1), Channel::Replicas), ranks(&[0, 1, 2, 3]));
        assert_eq!(arrangement.shard_group(Rank(1), experts), ranks(&[1, 3]));
        let halves = Arrangement { shard: 2, ..arrangement };
        assert_eq!(halves.shard_group(Rank(1), experts), ranks(&[1]));
        assert_eq!(halves.across_shards(Rank(1), experts), ranks(&[1, 3]));
    }
}

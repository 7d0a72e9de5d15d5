//! Communication volume: the bytes every rank sends in a step, collective by collective, by purpose.
//!
//! The cost model prices these transfers with the speeds of links, a plan shows their sums, and the worker's
//! own count of sent bytes must equal them. The volume of a collective is defined where the worker declares
//! its groups. Validation samples and checkpoints are not counted.

mod data_parallel;
mod model_parallel;

#[cfg(test)]
mod tests;

use crate::layout::parameters::{ModelParameters, share};
use dtrain_protocol::communication_volume::ROW_VALUES;
use dtrain_protocol::{Arrangement, Axis, Channel, Coord, Rank};
use dtrain_recipes::{Bytes, Model, ZeroStage};
use serde::{Deserialize, Serialize};

/// Number of `f32` values in the largest all-reduce for which every rank sends all values to every other at
/// once.
const SMALL_VALUES: u64 = 4 << 10;

/// Number of values in one bucket of gradients; must equal that of the worker.
const BUCKET_VALUES: u64 = 256 << 10;

/// Purpose of a transfer between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficPurpose {
    /// Summing gradients, or changes of weights, over the replicas.
    Gradients,
    /// Gathering sharded weights.
    Weights,
    /// Combining the products of tensor-parallel ranks.
    Tensor,
    /// Keys and values sent around the ring of context parallelism.
    Context,
    /// Tokens sent to their experts and back.
    Expert,
    /// Activations and their gradients between pipeline stages.
    Pipeline,
    /// Summing a tied embedding over the first and the last stage.
    Tied,
    /// Losses, counts, flags and gradient norms.
    Figures,
}

impl TrafficPurpose {
    /// Number of purposes that a transfer can have.
    pub const COUNT: usize = 8;
}

/// Part of a step in which a transfer takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferPhase {
    /// In the forward of each micro-batch.
    Forward,
    /// In the backward of each micro-batch.
    Backward,
    /// During the last backward, as far as possible.
    LastBackward,
    /// Once at the end of a step.
    Step,
    /// Once per synchronization of replicas that update their weights separately.
    Meeting,
}

/// Kind of collective, or a message between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// A reduction whose sum every rank gets.
    AllReduce,
    /// A reduction of which every rank gets its own part of the sum.
    ReduceScatter,
    /// A gather of the parts of all ranks, which every rank gets.
    AllGather,
    /// An exchange in which every rank sends a different part to each other rank.
    AllToAll,
    /// A message of the whole buffer from one rank to another.
    Message,
}

/// A collective or message in which a rank takes part, repeated a number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicationOp {
    /// Purpose that the transfer serves.
    pub purpose: TrafficPurpose,
    /// Part of the step in which the transfer takes place.
    pub when: TransferPhase,
    /// Kind of collective, or a message.
    pub kind: CollectiveKind,
    /// Channel of the group of ranks that take part.
    pub channel: Channel,
    /// Number of ranks in the group, this rank included.
    pub ranks: u32,
    /// Number of `f32` values in the buffer.
    pub values: u64,
    /// Number of repetitions, per micro-batch or per step.
    pub times: u64,
}

impl CommunicationOp {
    /// Returns the bytes that member `index` of the group sends in one repetition.
    pub fn sent(&self, index: u32) -> u64 {
        let (n, values) = (u64::from(self.ranks), self.values);
        let own = share(values, index, self.ranks);
        4 * match self.kind {
            CollectiveKind::AllReduce if values <= SMALL_VALUES => values * (n - 1),
            CollectiveKind::AllReduce => values - own + own * (n - 1),
            CollectiveKind::ReduceScatter => values - own,
            CollectiveKind::AllGather => own * (n - 1),
            CollectiveKind::AllToAll => values / n * (n - 1),
            CollectiveKind::Message => values,
        }
    }
}

/// Inputs for the traffic of one rank that do not depend on the micro-batch.
#[derive(Clone, Debug)]
pub struct TrafficModel<'a> {
    model: &'a Model,
    /// Parameters that the rank holds.
    parts: &'a ModelParameters,
    arrangement: &'a Arrangement,
    /// Coordinates of the rank, one along each axis of the layout.
    coord: Coord,
    blocks: BlockCounts,
    /// Activations and gradients that the rank sends to other stages: phase of the step, and values per
    /// sample.
    messages: Vec<(TransferPhase, u64)>,
}

/// Number of blocks on a pipeline stage, and of those that are recomputed.
#[derive(Clone, Copy, Debug)]
struct BlockCounts {
    all: u64,
    again: u64,
}

/// Returns `tell` without empty transfers, such as those within a group of one rank.
fn skip_empty(mut tell: impl FnMut(CommunicationOp)) -> impl FnMut(CommunicationOp) {
    move |transfer| {
        if transfer.ranks > 1 && transfer.values > 0 && transfer.times > 0 {
            tell(transfer);
        }
    }
}

impl<'a> TrafficModel<'a> {
    /// Builds the traffic model of the rank at `coord`, which holds the parameters `parts` of `model`.
    pub fn of(
        model: &'a Model,
        parts: &'a ModelParameters,
        arrangement: &'a Arrangement,
        coord: Coord,
    ) -> Self {
        let stage = coord.along(Axis::Pipeline);
        let blocks = model_parallel::blocks(model, arrangement, stage);
        let messages = model_parallel::messages(model, arrangement, stage);
        Self { model, parts, arrangement, coord, blocks, messages }
    }

    /// Calls `tell` with every transfer of a step in which the rank takes part, for passes of `micro`
    /// samples.
    pub fn each(&self, micro: u32, mut tell: impl FnMut(CommunicationOp)) {
        self.passes(micro, &mut tell);
        self.state(&mut tell);
    }

    fn degree(&self, axis: Axis) -> u32 {
        self.arrangement.layout.degree(axis)
    }

    fn stage(&self) -> u32 {
        self.coord.along(Axis::Pipeline)
    }

    fn is_first(&self) -> bool {
        self.stage() == 0
    }

    fn is_last(&self) -> bool {
        self.stage() + 1 == self.degree(Axis::Pipeline)
    }

    /// Reports the exchange of figures: every rank's row goes to all ranks with the loss, and again with the
    /// gradient norm where ranks hold different gradients.
    fn figures(&self, tell: &mut impl FnMut(CommunicationOp)) {
        let Arrangement { layout, .. } = self.arrangement;
        let ranks = layout.world();
        let is_alike = self.arrangement.replicas() == ranks
            && self.arrangement.zero == ZeroStage::Zero0
            && layout.expert.get() == 1
            && self.arrangement.sync.local.is_none();
        tell(CommunicationOp {
            purpose: TrafficPurpose::Figures,
            when: TransferPhase::Step,
            kind: CollectiveKind::AllGather,
            channel: Channel::World,
            ranks,
            values: ROW_VALUES * u64::from(ranks),
            times: if is_alike { 1 } else { 2 },
        });
    }

    fn rank(&self) -> Rank {
        self.arrangement.layout.rank(self.coord)
    }

    /// Returns the index of this rank among `members`.
    fn place(&self, members: Vec<Rank>) -> u32 {
        let before = members.iter().take_while(|member| **member != self.rank()).count();
        u32::try_from(before).expect("a group has at most all ranks")
    }

    /// Returns the index of this rank in its group of a channel.
    fn index(&self, channel: Channel) -> u32 {
        let at = |axis| self.coord.along(axis);
        let data = |experts: u32, expert: u32| {
            (at(Axis::Data) * experts + expert) * self.degree(Axis::Context) + at(Axis::Context)
        };
        let replica = data(self.degree(Axis::Expert), at(Axis::Expert));
        match channel {
            Channel::World => self.rank().0,
            Channel::Tensor => at(Axis::Tensor),
            Channel::Context => at(Axis::Context),
            Channel::Expert => at(Axis::Expert),
            Channel::Pipeline => at(Axis::Pipeline),
            Channel::Replicas => replica,
            Channel::ExpertReplicas => data(1, 0),
            Channel::Shard | Channel::Weights => replica % self.arrangement.shard,
            Channel::AcrossShards => replica / self.arrangement.shard,
            Channel::ExpertShard | Channel::ExpertWeights => {
                self.place(self.arrangement.shard_group(self.rank(), Channel::ExpertReplicas))
            }
            Channel::AcrossExpertShards => {
                self.place(self.arrangement.across_shards(self.rank(), Channel::ExpertReplicas))
            }
        }
    }
}

/// Bytes that one rank sends in a step, by purpose; communication once in several steps counts in proportion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes of gradients summed over the replicas.
    pub gradients: Bytes,
    /// Bytes of sharded weights that are gathered.
    pub weights: Bytes,
    /// Bytes of products combined over tensor-parallel ranks.
    pub tensor: Bytes,
    /// Bytes of keys and values in the ring of context parallelism.
    pub context: Bytes,
    /// Bytes of tokens sent to experts and back, for an even load of the experts.
    pub expert: Bytes,
    /// Bytes of activations and their gradients between pipeline stages.
    pub pipeline: Bytes,
    /// Bytes of the gradients of a tied embedding, between the first and the last stage.
    pub tied: Bytes,
    /// Bytes of losses, counts, flags and gradient norms.
    pub figures: Bytes,
}

impl Traffic {
    /// Returns the bytes that `sender` sends in a step of `micro_batches` forward passes of `micro` samples.
    pub fn of(sender: &TrafficModel<'_>, (micro, micro_batches): (u32, u32)) -> Self {
        let mut traffic = Self::default();
        let mut meeting = Bytes(0);
        sender.each(micro, |transfer| {
            let bytes = transfer.sent(sender.index(transfer.channel)) * transfer.times;
            let sum = traffic.of_purpose(transfer.purpose);
            match transfer.when {
                TransferPhase::Forward | TransferPhase::Backward => sum.0 += bytes * u64::from(micro_batches),
                TransferPhase::LastBackward | TransferPhase::Step => sum.0 += bytes,
                TransferPhase::Meeting => meeting.0 += bytes,
            }
        });
        traffic.gradients.0 += meeting.0 / sender.arrangement.sync.every();
        traffic
    }

    /// Returns the bytes that `rank` sends in a step whose `split` is (samples of a forward pass, number of
    /// forward passes).
    pub fn of_rank(model: &Model, arrangement: &Arrangement, split: (u32, u32), rank: Rank) -> Self {
        let coord = arrangement.layout.coord(rank);
        let parts = ModelParameters::of(model, &arrangement.layout, coord);
        Self::of(&TrafficModel::of(model, &parts, arrangement, coord), split)
    }

    /// Returns the bytes that a rank sends in a step, for the rank that sends most.
    pub fn largest(model: &Model, arrangement: &Arrangement, split: (u32, u32)) -> Self {
        let layout = &arrangement.layout;
        // Along the other axes ranks differ by a remainder of a division.
        let differ = |rank: &Rank| {
            let coord = layout.coord(*rank);
            [Axis::Expert, Axis::Data].iter().all(|axis| coord.along(*axis) == 0)
        };
        let ranks = (0..layout.world()).map(Rank).filter(differ);
        let all = ranks.map(|rank| Self::of_rank(model, arrangement, split, rank));
        all.max_by_key(|traffic| traffic.total().0).unwrap_or_default()
    }

    /// Returns the sum of the bytes over all purposes.
    pub fn total(&self) -> Bytes {
        Bytes(self.purposes().iter().map(|(_, bytes)| bytes.0).sum())
    }

    /// Returns the bytes of each purpose with its name, in a fixed order.
    pub fn purposes(&self) -> [(&'static str, Bytes); 8] {
        [
            ("gradients", self.gradients),
            ("weights", self.weights),
            ("tensor", self.tensor),
            ("context", self.context),
            ("expert", self.expert),
            ("pipeline", self.pipeline),
            ("tied embedding", self.tied),
            ("figures", self.figures),
        ]
    }

    fn of_purpose(&mut self, purpose: TrafficPurpose) -> &mut Bytes {
        match purpose {
            TrafficPurpose::Gradients => &mut self.gradients,
            TrafficPurpose::Weights => &mut self.weights,
            TrafficPurpose::Tensor => &mut self.tensor,
            TrafficPurpose::Context => &mut self.context,
            TrafficPurpose::Expert => &mut self.expert,
            TrafficPurpose::Pipeline => &mut self.pipeline,
            TrafficPurpose::Tied => &mut self.tied,
            TrafficPurpose::Figures => &mut self.figures,
        }
    }
}

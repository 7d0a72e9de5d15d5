//! Bytes every rank sends in a step, collective by collective, by what they are for.
//!
//! One table: the cost model prices it with the speeds of links, a plan tells its sums, and the worker's own count of what it
//! sent must equal it. How much a collective sends for a buffer is said where the worker declares its groups. Samples
//! for validation and checkpoints are not steps and are not counted.

mod data_parallel;
mod model_parallel;

#[cfg(test)]
mod tests;

use crate::layout::parameters::{ModelParameters, share};
use dtrain_protocol::communication_volume::ROW_VALUES;
use dtrain_protocol::{Arrangement, Axis, Channel, Coord, Rank};
use dtrain_recipes::{Bytes, Model, ZeroStage};
use serde::{Deserialize, Serialize};

/// Values (`f32`) up to which an all-reduce sends everything to everybody at once.
const SMALL_VALUES: u64 = 4 << 10;

/// Values of one bucket of gradients, as the worker cuts them.
const BUCKET_VALUES: u64 = 256 << 10;

/// What bytes are sent for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TrafficPurpose {
    /// Gradients are summed over the replicas, or the changes of their weights.
    Gradients,
    /// Sharded weights are gathered.
    Weights,
    /// Tensor-parallel ranks complete each other's products.
    Tensor,
    /// Keys and values go around the ring of a split sequence.
    Context,
    /// Tokens go to their experts and back.
    Expert,
    /// Activations and their gradients go from stage to stage.
    Pipeline,
    /// A tied embedding is summed over the first and the last stage.
    Tied,
    /// Losses, counts, flags and gradient norms.
    Figures,
}

impl TrafficPurpose {
    /// Purposes in all.
    pub const COUNT: usize = 8;
}

/// When a transfer takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferPhase {
    /// In the forward of each micro-batch.
    Forward,
    /// In the backward of each micro-batch.
    Backward,
    /// While the last backward goes on, as far as possible.
    LastBackward,
    /// Once at the end of a step.
    Step,
    /// Once in as many steps as replicas move their own weights.
    Meeting,
}

/// How ranks exchange a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveKind {
    /// All get the sum.
    AllReduce,
    /// Each gets its part of the sum.
    ReduceScatter,
    /// All get the parts of all.
    AllGather,
    /// Each gets its part from every other.
    AllToAll,
    /// One gets all of it.
    Message,
}

/// The same collective some times over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicationOp {
    /// What it is for.
    pub purpose: TrafficPurpose,
    /// When.
    pub when: TransferPhase,
    /// How.
    pub kind: CollectiveKind,
    /// Among whom.
    pub channel: Channel,
    /// How many they are, this rank included.
    pub ranks: u32,
    /// Values (`f32`) of the buffer.
    pub values: u64,
    /// How often, for each micro-batch or in each step.
    pub times: u64,
}

impl CommunicationOp {
    /// Bytes that member `index` of the group sends in one of them.
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

/// What decides the traffic of a rank, whatever its batch is split into.
#[derive(Clone, Debug)]
pub struct TrafficModel<'a> {
    model: &'a Model,
    /// Its parts as this rank holds them.
    parts: &'a ModelParameters,
    arrangement: &'a Arrangement,
    /// Where the rank sits.
    coord: Coord,
    blocks: BlockCounts,
    /// Activations and gradients for other stages: when, and the values of one sample.
    messages: Vec<(TransferPhase, u64)>,
}

/// The blocks of a stage, and how many of them are computed again.
#[derive(Clone, Copy, Debug)]
struct BlockCounts {
    all: u64,
    again: u64,
}

/// Leaves out what is no transfer: nobody talks to himself.
fn skip_empty(mut tell: impl FnMut(CommunicationOp)) -> impl FnMut(CommunicationOp) {
    move |transfer| {
        if transfer.ranks > 1 && transfer.values > 0 && transfer.times > 0 {
            tell(transfer);
        }
    }
}

impl<'a> TrafficModel<'a> {
    /// The rank at `coord`, which holds `parts` of `model`.
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

    /// Calls `tell` with every transfer of a step that the rank takes part in, where a pass has `micro` samples.
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

    /// Every rank's row goes to all: with the loss, and again with the norm where ranks hold different gradients.
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

    /// Index of the rank among `members`.
    fn place(&self, members: Vec<Rank>) -> u32 {
        let before = members.iter().take_while(|member| **member != self.rank()).count();
        u32::try_from(before).expect("a group has at most all ranks")
    }

    /// Index of the rank in its group of a channel.
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

/// Bytes one rank sends in a step, by what they are for; of what is sent once in several steps, its share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Gradients are summed over the replicas.
    pub gradients: Bytes,
    /// Sharded weights are gathered.
    pub weights: Bytes,
    /// Tensor-parallel ranks complete each other's products.
    pub tensor: Bytes,
    /// Keys and values go around the ring of a split sequence.
    pub context: Bytes,
    /// Tokens go to their experts and back; as many as are expected.
    pub expert: Bytes,
    /// Activations and their gradients go from stage to stage.
    pub pipeline: Bytes,
    /// A tied embedding is summed over the first and the last stage.
    pub tied: Bytes,
    /// Losses, counts, flags and gradient norms.
    pub figures: Bytes,
}

impl Traffic {
    /// What `sender` sends in a step of `micro_batches` forward passes of `micro` samples.
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

    /// What `rank` sends in a step of `micro_batches` forward passes of `micro` samples.
    pub fn of_rank(model: &Model, arrangement: &Arrangement, split: (u32, u32), rank: Rank) -> Self {
        let coord = arrangement.layout.coord(rank);
        let parts = ModelParameters::of(model, &arrangement.layout, coord);
        Self::of(&TrafficModel::of(model, &parts, arrangement, coord), split)
    }

    /// What the rank sends that sends most.
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

    /// All of it.
    pub fn total(&self) -> Bytes {
        Bytes(self.purposes().iter().map(|(_, bytes)| bytes.0).sum())
    }

    /// The parts with their names, in a fixed order.
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

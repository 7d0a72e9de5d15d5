//! Process groups (device mesh): all groups that one rank belongs to, one for each axis of parallelism.
//!
//! `comm_queue` runs collectives beside the computation, `all_gather_queue` those that gather the weights of
//! ZeRO 3. `model_parallel_groups` holds the groups of tensor, context and expert parallelism, which
//! communicate in the middle of a pass.

mod all_gather_queue;
mod comm_queue;
mod half_precision;
mod model_parallel_groups;
mod peers;

pub use all_gather_queue::AllGatherQueue;
pub use comm_queue::CommQueue;
pub use half_precision::HalfFormat;
pub use model_parallel_groups::ModelParallelGroups;
pub use peers::Peers;

use crate::comm::{CommError, Communicator, DeviceLinks, ProcessGroup, loopback};
use dtrain_protocol::sharding::is_sharded;
use dtrain_protocol::{Arrangement, Axis, Channel, Coord, Failure, Layout, Rank};
use dtrain_recipes::ZeroStage;
use peers::FirstFailure;

/// All process groups that one rank belongs to.
#[derive(Debug)]
pub struct Mesh {
    layout: Layout,
    coord: Coord,
    world: CommQueue,
    /// Queue to the ranks with the same weights. `None` if all ranks are replicas: then the world's queue
    /// carries both, in one order.
    replicas: Option<CommQueue>,
    /// Queue to the ranks with the same experts. `None` if experts are not distributed, or no other rank
    /// holds the same.
    experts: Option<CommQueue>,
    sharding: Option<ShardGroups>,
    /// Shard groups of distributed experts, if state is sharded.
    expert_sharding: Option<ShardGroups>,
    partners: ModelParallelGroups,
    pipeline: Peers,
    failure: FirstFailure,
}

/// The queues to the ranks among which state is sharded, and to those that hold the same shard.
#[derive(Debug)]
pub struct ShardGroups {
    inside: CommQueue,
    across: Option<CommQueue>,
}

impl ShardGroups {
    /// Returns the queue of this rank's shard group, whose other ranks hold the other shards.
    pub fn inside(&self) -> &CommQueue {
        &self.inside
    }

    /// Returns the queue to the ranks of other groups that hold the same shard; `None` if there is one
    /// group.
    pub fn across(&self) -> Option<&CommQueue> {
        self.across.as_ref()
    }

    /// Returns the index of this rank among those that hold the same shard, and their number.
    pub fn copy(&self) -> (u32, u32) {
        self.across.as_ref().map_or((0, 1), |across| (across.rank(), across.ranks()))
    }
}

impl Mesh {
    /// Splits `group`, which has all ranks of the attempt, according to `arrangement`. Called by all of
    /// them. Values of devices travel through host memory.
    pub fn of(
        group: Box<dyn ProcessGroup>,
        arrangement: &Arrangement,
        rank: Rank,
    ) -> Result<Self, CommError> {
        Self::with_links(group, arrangement, rank, &DeviceLinks::default())
    }

    /// Splits `group` like [`Mesh::of`]; values of devices travel by `links`.
    pub fn with_links(
        mut group: Box<dyn ProcessGroup>,
        arrangement: &Arrangement,
        rank: Rank,
        links: &DeviceLinks,
    ) -> Result<Self, CommError> {
        let layout = arrangement.layout;
        let failure = FirstFailure::default();
        let mut split = |channel: Channel| -> Result<Box<dyn ProcessGroup>, CommError> {
            let members = match channel {
                Channel::Shard | Channel::Weights => arrangement.shard_group(rank, Channel::Replicas),
                Channel::AcrossShards => arrangement.across_shards(rank, Channel::Replicas),
                Channel::ExpertShard | Channel::ExpertWeights => {
                    arrangement.shard_group(rank, Channel::ExpertReplicas)
                }
                Channel::AcrossExpertShards => arrangement.across_shards(rank, Channel::ExpertReplicas),
                Channel::World
                | Channel::Tensor
                | Channel::Context
                | Channel::Expert
                | Channel::Pipeline
                | Channel::Replicas
                | Channel::ExpertReplicas => layout.group(rank, channel.axes()),
            };
            let members: Vec<u32> = members.into_iter().map(|rank| rank.0).collect();
            if members.len() == 1 {
                Ok(Box::new(loopback::SingleRank))
            } else {
                group.split(channel, &members)
            }
        };
        let is_spread = layout.expert.get() > 1;
        let mut gatherer = |channel, is_wanted: bool| -> Result<Option<AllGatherQueue>, CommError> {
            if !is_wanted || arrangement.zero != ZeroStage::Zero3 {
                return Ok(None);
            }
            Ok(Some(AllGatherQueue::of(split(channel)?, failure.clone())))
        };
        let weights = gatherer(Channel::Weights, true)?;
        let expert_weights = gatherer(Channel::ExpertWeights, is_spread)?;
        let mut peers = |channel| {
            let group = links.communicator(split(channel)?)?;
            Ok::<_, CommError>(Peers::of(group, failure.clone()))
        };
        let partners = ModelParallelGroups {
            tensor: peers(Channel::Tensor)?,
            context: peers(Channel::Context)?,
            expert: peers(Channel::Expert)?,
            weights,
            expert_weights,
            sequence: arrangement.sequence,
        };
        let pipeline = peers(Channel::Pipeline)?;
        let are_all = arrangement.replicas() == layout.world();
        // Sharded gradients are in host memory.
        let of_gradients = |group| {
            let is_on_device = arrangement.zero == ZeroStage::Zero0;
            let group = if is_on_device { links.communicator(group)? } else { Communicator::staged(group) };
            Ok::<_, CommError>(CommQueue::over(group))
        };
        let replicas = if are_all { None } else { Some(of_gradients(split(Channel::Replicas)?)?) };
        let is_apart = is_spread && arrangement.replicas() > layout.expert.get();
        let experts = if is_apart { Some(of_gradients(split(Channel::ExpertReplicas)?)?) } else { None };
        let mut sharding = |inside, across, is_wanted: bool| -> Result<Option<ShardGroups>, CommError> {
            if !is_wanted || arrangement.zero == ZeroStage::Zero0 {
                return Ok(None);
            }
            let inside = CommQueue::start(split(inside)?);
            let is_one_group = arrangement.shard == arrangement.replicas();
            let across = if is_one_group { None } else { Some(CommQueue::start(split(across)?)) };
            Ok(Some(ShardGroups { inside, across }))
        };
        let expert_sharding = sharding(Channel::ExpertShard, Channel::AcrossExpertShards, is_spread)?;
        let sharding = sharding(Channel::Shard, Channel::AcrossShards, true)?;
        let world = if are_all { of_gradients(group)? } else { CommQueue::start(group) };
        let coord = layout.coord(rank);
        Ok(Self {
            layout,
            coord,
            world,
            replicas,
            experts,
            sharding,
            expert_sharding,
            partners,
            pipeline,
            failure,
        })
    }

    /// Returns the queue to all ranks.
    pub fn world(&self) -> &CommQueue {
        &self.world
    }

    /// Returns the queue to the ranks that hold the same weights, this one included.
    pub fn replicas(&self) -> &CommQueue {
        self.replicas.as_ref().unwrap_or(&self.world)
    }

    /// Returns the queue to the ranks that hold the same experts, if these are not all replicas.
    pub fn experts(&self) -> Option<&CommQueue> {
        self.experts.as_ref()
    }

    /// Returns the shard groups for the parameters of one [`Arrangement::replication`]; panics if nothing is
    /// sharded.
    pub fn sharding(&self, replication: Channel) -> &ShardGroups {
        let own = self.expert_sharding.as_ref().filter(|_| replication == Channel::ExpertReplicas);
        own.or(self.sharding.as_ref()).expect("only replicas that shard their state ask with whom")
    }

    /// Iterates over all shard groups, each with a predicate for the replications whose parameters it
    /// shards.
    pub fn shardings(&self) -> impl Iterator<Item = (&ShardGroups, impl Fn(Channel) -> bool)> {
        let is_apart = self.expert_sharding.is_some();
        let common = self.sharding.iter().map(|sharding| (sharding, false));
        let all = common.chain(self.expert_sharding.iter().map(|sharding| (sharding, true)));
        all.map(move |(sharding, is_of_experts)| {
            let is_its =
                move |replication| !is_apart || is_of_experts == (replication == Channel::ExpertReplicas);
            (sharding, is_its)
        })
    }

    /// Returns `true` if weights must be all-gathered after each rank has updated its own.
    pub fn gathers_values(&self) -> bool {
        let others = self.sharding.as_ref().is_some_and(|sharding| sharding.inside.ranks() > 1);
        others && self.partners.weights.is_none()
    }

    /// Returns `true` if a parameter may be split among several ranks.
    pub fn cuts_tensors(&self) -> bool {
        self.sharding.is_some() || self.partners.tensor.size() * self.partners.expert.size() > 1
    }

    /// Returns the tensor-, context- and expert-parallel groups that take part in this rank's passes.
    pub fn partners(&self) -> &ModelParallelGroups {
        &self.partners
    }

    /// Returns the group of the stages of this rank's pipeline.
    pub fn pipeline(&self) -> &Peers {
        &self.pipeline
    }

    /// Returns `true` if no rank holds all gradients of the model after the reduction.
    pub fn cuts_gradients(&self) -> bool {
        self.replicas.is_some() || self.sharding.is_some() || self.partners.expert.size() > 1
    }

    /// Returns `true` if this rank is the first among those that own the same part of the parameter `name`,
    /// and so counts for all of them in the gradient norm.
    pub fn counts_in_norm(&self, name: &str) -> bool {
        let is_first = |axis: &Axis| self.coord.along(*axis) == 0 || is_sharded(name, *axis);
        let is_first_replica = match &self.sharding {
            Some(_) => self.sharding(Arrangement::replication(name)).copy().0 == 0,
            None => Channel::Replicas.axes().iter().all(is_first),
        };
        is_first(&Axis::Tensor) && is_first_replica
    }

    /// Returns `true` if this rank reports the loss of its samples. Of the tensor-parallel ranks, which all
    /// compute the loss, only the first reports it.
    pub fn reports_loss(&self) -> bool {
        self.coord.along(Axis::Tensor) == 0
    }

    /// Returns the index of this rank among those that read samples of their own, and their number.
    pub fn reader(&self) -> (u32, u32) {
        (self.layout.reader(self.layout.rank(self.coord)), self.layout.readers())
    }

    /// Returns the bytes that this rank has sent to all others, without collectives in flight.
    pub fn bytes_sent(&self) -> u64 {
        let ModelParallelGroups { tensor, context, expert, weights, expert_weights, .. } = &self.partners;
        let peers = [tensor, context, expert, &self.pipeline].map(Peers::bytes_sent);
        let queues = [&self.world].into_iter().chain(self.queues()).map(CommQueue::bytes_sent);
        let gatherers = weights.iter().chain(expert_weights).map(AllGatherQueue::bytes_sent);
        peers.into_iter().chain(queues).chain(gatherers).sum()
    }

    /// Returns the seconds that this rank has waited for others so far, except for pipeline stages.
    pub fn waited(&self) -> f64 {
        let queues: f64 = self.queues().map(CommQueue::waited).sum();
        self.world.waited() + queues + self.partners.waited()
    }

    /// Iterates over all queues except the world's.
    fn queues(&self) -> impl Iterator<Item = &CommQueue> {
        let sharding = self.shardings().flat_map(|(one, _)| one.across.iter().chain([&one.inside]));
        self.replicas.iter().chain(&self.experts).chain(sharding)
    }

    /// Returns the first communication error in the middle of a pass, if there was one.
    pub fn check(&self) -> Result<(), Failure> {
        self.failure.check()
    }
}

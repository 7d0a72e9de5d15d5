//! All groups that one rank belongs to, one for each way in which it works with others.

use super::model_parallel_groups::FirstFailure;
use super::{AllGatherQueue, CommQueue, ModelParallelGroups, Peers};
use crate::comm::{CommError, Communicator, DeviceLinks, ProcessGroup, loopback};
use dtrain_protocol::sharding::is_sharded;
use dtrain_protocol::{Arrangement, Axis, Channel, Coord, Failure, Layout, Rank};
use dtrain_recipes::ZeroStage;

/// All groups that one rank belongs to.
#[derive(Debug)]
pub struct Mesh {
    layout: Layout,
    coord: Coord,
    world: CommQueue,
    /// `None` when they are all ranks: then the world's queue carries both, in one order.
    replicas: Option<CommQueue>,
    /// `None` where experts are not spread, or no other rank holds the same.
    experts: Option<CommQueue>,
    sharding: Option<ShardGroups>,
    /// Of experts that are spread.
    expert_sharding: Option<ShardGroups>,
    partners: ModelParallelGroups,
    pipeline: Peers,
    failure: FirstFailure,
}

/// The ranks among which state is sharded, and those that hold the same shard.
#[derive(Debug)]
pub struct ShardGroups {
    inside: CommQueue,
    across: Option<CommQueue>,
}

impl ShardGroups {
    /// The queue to the ranks that hold the other shards.
    pub fn inside(&self) -> &CommQueue {
        &self.inside
    }

    /// The queue to the ranks of other groups that hold the same shard; `None` when there is one group.
    pub fn across(&self) -> Option<&CommQueue> {
        self.across.as_ref()
    }

    /// Index of this rank among those that hold the same shard, and how many they are.
    pub fn copy(&self) -> (u32, u32) {
        self.across.as_ref().map_or((0, 1), |across| (across.rank(), across.ranks()))
    }
}

impl Mesh {
    /// Divides `group`, which has all ranks of the attempt, as `arrangement` tells. Called by all of them. Values of devices
    /// travel through host memory.
    pub fn of(
        group: Box<dyn ProcessGroup>,
        arrangement: &Arrangement,
        rank: Rank,
    ) -> Result<Self, CommError> {
        Self::with_links(group, arrangement, rank, &DeviceLinks::default())
    }

    /// As [`Mesh::of`]; values of devices travel by `links`.
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
        // Gradients that are sharded lie in host memory.
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

    /// The queue to all ranks.
    pub fn world(&self) -> &CommQueue {
        &self.world
    }

    /// The queue to the ranks that hold the same weights, this one included.
    pub fn replicas(&self) -> &CommQueue {
        self.replicas.as_ref().unwrap_or(&self.world)
    }

    /// The queue to the ranks that hold the same experts, where these are not all replicas.
    pub fn experts(&self) -> Option<&CommQueue> {
        self.experts.as_ref()
    }

    /// The ranks among which the state of parameters of one [`Arrangement::replication`] is sharded; panics where
    /// nothing is.
    pub fn sharding(&self, replication: Channel) -> &ShardGroups {
        let own = self.expert_sharding.as_ref().filter(|_| replication == Channel::ExpertReplicas);
        own.or(self.sharding.as_ref()).expect("only replicas that shard their state ask with whom")
    }

    /// All of [`Mesh::sharding`], each with whether it is that of parameters of a replication.
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

    /// Whether values must be gathered after each rank moved those that it owns.
    pub fn gathers_values(&self) -> bool {
        let others = self.sharding.as_ref().is_some_and(|sharding| sharding.inside.ranks() > 1);
        others && self.partners.weights.is_none()
    }

    /// Whether a parameter may lie in parts on several ranks.
    pub fn cuts_tensors(&self) -> bool {
        self.sharding.is_some() || self.partners.tensor.size() * self.partners.expert.size() > 1
    }

    /// The ranks that take part in this rank's passes.
    pub fn partners(&self) -> &ModelParallelGroups {
        &self.partners
    }

    /// The stages of this rank's pipeline.
    pub fn pipeline(&self) -> &Peers {
        &self.pipeline
    }

    /// Whether no rank holds all gradients of the model after the reduction.
    pub fn cuts_gradients(&self) -> bool {
        self.replicas.is_some() || self.sharding.is_some() || self.partners.expert.size() > 1
    }

    /// Whether this rank is the first among those that own the same part of the parameter called `name`: it counts
    /// for all of them.
    pub fn counts_in_norm(&self, name: &str) -> bool {
        let is_first = |axis: &Axis| self.coord.along(*axis) == 0 || is_sharded(name, *axis);
        let is_first_replica = match &self.sharding {
            Some(_) => self.sharding(Arrangement::replication(name)).copy().0 == 0,
            None => Channel::Replicas.axes().iter().all(is_first),
        };
        is_first(&Axis::Tensor) && is_first_replica
    }

    /// Whether this rank tells the loss of its samples: of tensor-parallel ranks, which all know it, the first.
    pub fn reports_loss(&self) -> bool {
        self.coord.along(Axis::Tensor) == 0
    }

    /// Index of this rank among those that read samples of their own, and how many they are.
    pub fn reader(&self) -> (u32, u32) {
        (self.layout.reader(self.layout.rank(self.coord)), self.layout.readers())
    }

    /// Bytes this rank sent to any other, not counting what is on its way.
    pub fn bytes_sent(&self) -> u64 {
        let ModelParallelGroups { tensor, context, expert, weights, expert_weights, .. } = &self.partners;
        let peers = [tensor, context, expert, &self.pipeline].map(Peers::bytes_sent);
        let queues = [&self.world].into_iter().chain(self.queues()).map(CommQueue::bytes_sent);
        let gatherers = weights.iter().chain(expert_weights).map(AllGatherQueue::bytes_sent);
        peers.into_iter().chain(queues).chain(gatherers).sum()
    }

    /// Seconds this rank has waited for others so far, but for stages of its pipeline.
    pub fn waited(&self) -> f64 {
        let queues: f64 = self.queues().map(CommQueue::waited).sum();
        self.world.waited() + queues + self.partners.waited()
    }

    /// All queues but the world's.
    fn queues(&self) -> impl Iterator<Item = &CommQueue> {
        let sharding = self.shardings().flat_map(|(one, _)| one.across.iter().chain([&one.inside]));
        self.replicas.iter().chain(&self.experts).chain(sharding)
    }

    /// `Err` when something went wrong between this rank and another in the middle of a pass.
    pub fn check(&self) -> Result<(), Failure> {
        self.failure.check()
    }
}

//! All groups that one rank belongs to, one for each way in which it works with others.

use super::partners::Trouble;
use super::{Courier, Partners, Peers};
use crate::comm::{CommError, Group, loopback};
use dtrain_protocol::split::is_cut;
use dtrain_protocol::{Arrangement, Axis, Channel, Coord, Failure, Layout, Rank};

/// All groups that one rank belongs to.
#[derive(Debug)]
pub struct Mesh {
    layout: Layout,
    coord: Coord,
    world: Courier,
    /// `None` when they are all ranks: then the world's courier carries both, in one order.
    replicas: Option<Courier>,
    partners: Partners,
    pipeline: Peers,
    trouble: Trouble,
}

impl Mesh {
    /// Divides `group`, which has all ranks of the attempt, as `arrangement` tells. Called by all of them.
    pub fn of(mut group: Box<dyn Group>, arrangement: &Arrangement, rank: Rank) -> Result<Self, CommError> {
        let layout = arrangement.layout;
        let trouble = Trouble::default();
        let mut split = |channel: Channel| -> Result<Box<dyn Group>, CommError> {
            let members: Vec<u32> =
                layout.group(rank, channel.axes()).into_iter().map(|rank| rank.0).collect();
            if members.len() == 1 { Ok(Box::new(loopback::Alone)) } else { group.split(channel, &members) }
        };
        let mut peers = |channel| Ok::<_, CommError>(Peers::of(split(channel)?, trouble.clone()));
        let partners = Partners {
            tensor: peers(Channel::Tensor)?,
            context: peers(Channel::Context)?,
            expert: peers(Channel::Expert)?,
            sequence: arrangement.sequence,
        };
        let pipeline = peers(Channel::Pipeline)?;
        let are_all = arrangement.replicas() == layout.world();
        let replicas = if are_all { None } else { Some(Courier::start(split(Channel::Replicas)?)) };
        let world = Courier::start(group);
        Ok(Self { layout, coord: layout.coord(rank), world, replicas, partners, pipeline, trouble })
    }

    /// The courier to all ranks.
    pub fn world(&self) -> &Courier {
        &self.world
    }

    /// The courier to the ranks that hold the same weights, this one included.
    pub fn replicas(&self) -> &Courier {
        self.replicas.as_ref().unwrap_or(&self.world)
    }

    /// The ranks that take part in this rank's passes.
    pub fn partners(&self) -> &Partners {
        &self.partners
    }

    /// The stages of this rank's pipeline.
    pub fn pipeline(&self) -> &Peers {
        &self.pipeline
    }

    /// Whether any two ranks hold different weights.
    pub fn cuts_weights(&self) -> bool {
        self.replicas.is_some()
    }

    /// Whether this rank is the first among those that hold the same part of the parameter called `name`: it counts
    /// for all of them.
    pub fn speaks_for(&self, name: &str) -> bool {
        let mut axes = Axis::ALL.into_iter().filter(|axis| *axis != Axis::Pipeline);
        axes.all(|axis| self.coord.along(axis) == 0 || is_cut(name, axis))
    }

    /// Whether this rank tells the loss of its samples: of tensor-parallel ranks, which all know it, the first.
    pub fn tells_loss(&self) -> bool {
        self.coord.along(Axis::Tensor) == 0
    }

    /// Index of this rank among those that read samples of their own, and how many they are.
    pub fn reader(&self) -> (u32, u32) {
        (self.layout.reader(self.layout.rank(self.coord)), self.layout.readers())
    }

    /// Bytes this rank sent to any other, not counting what is on its way.
    pub fn sent(&self) -> u64 {
        let Partners { tensor, context, expert, .. } = &self.partners;
        let peers = [tensor, context, expert, &self.pipeline].map(Peers::sent);
        let couriers = self.replicas.iter().chain([&self.world]).map(Courier::sent);
        peers.into_iter().chain(couriers).sum()
    }

    /// Seconds this rank has waited for others so far, but for stages of its pipeline.
    pub fn waited(&self) -> f64 {
        let replicas = self.replicas.as_ref().map_or(0.0, Courier::waited);
        self.world.waited() + replicas + self.partners.waited()
    }

    /// `Err` when something went wrong between this rank and another in the middle of a pass.
    pub fn check(&self) -> Result<(), Failure> {
        self.trouble.check()
    }
}

//! Sharded weights (ZeRO 3): a rank stores its own blocks, and the values of a unit exist only while it
//! computes.
//!
//! [`Stage::unshard`] gathers them just before, and starts to gather those of the unit that computes next;
//! [`Stage::reshard`] frees them. A tied embedding is gathered for every unit that uses it.

use super::parameters::ParameterGroup;
use super::{Stage, tensor};
use crate::mesh::{AllGatherQueue, ModelParallelGroups};
use crate::snapshot::Snapshot;
use crate::zero::ZeroShards;
use dtrain_protocol::Channel;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The sharded weights of a stage: this rank's blocks of all buckets, and the state of gathering the others.
pub(super) struct ShardedWeights {
    shards: Arc<ZeroShards>,
    gatherer: AllGatherQueue,
    /// Queue that gathers the weights of distributed experts, if there are any.
    expert_gatherer: Option<AllGatherQueue>,
    /// Owned parts of all parameters, at the ranges of [`ZeroShards::kept`].
    own: Arc<Vec<f32>>,
    /// Indices of the buckets that each unit uses.
    needs: Vec<Vec<usize>>,
    /// True for each bucket whose values are gathered.
    gathered: Vec<bool>,
    /// Indices of the buckets in flight, oldest first.
    in_flight: VecDeque<usize>,
    /// Buffers of unpacked buckets, for reuse.
    spare: Vec<Vec<f32>>,
}

impl ShardedWeights {
    /// Returns the bytes of this rank's own values.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.own.capacity() as u64
    }

    /// Creates the blocks of all buckets, with zeros as values.
    pub(super) fn new(
        shards: &Arc<ZeroShards>,
        partners: &ModelParallelGroups,
        units: &[ParameterGroup],
    ) -> Self {
        let gatherer = partners.weights.clone();
        let needs = |unit: &ParameterGroup| {
            let mut packs: Vec<_> = unit.uses.iter().map(|(_, index)| shards.pack_of(*index)).collect();
            packs.sort_unstable();
            packs.dedup();
            packs
        };
        Self {
            gatherer: gatherer.expect("sharded weights have a queue to gather them"),
            expert_gatherer: partners.expert_weights.clone(),
            own: Arc::new(vec![0.0; shards.kept_length()]),
            needs: units.iter().map(needs).collect(),
            gathered: vec![false; shards.packs().len()],
            in_flight: VecDeque::new(),
            spare: Vec::new(),
            shards: Arc::clone(shards),
        }
    }

    /// Returns this rank's part of parameter `index`.
    pub(super) fn own(&self, index: usize) -> &[f32] {
        &self.own[self.shards.kept(index)]
    }

    /// Takes a snapshot of elements `range` of this rank's part of parameter `index`.
    pub(super) fn snapshot(&self, index: usize, range: Range<usize>) -> Snapshot {
        let begin = self.shards.kept(index).start;
        Snapshot::Vector(Arc::clone(&self.own), begin + range.start..begin + range.end)
    }

    /// Returns this rank's part of parameter `index` for modification. Nothing may be gathered or in flight.
    pub(super) fn own_mut(&mut self, index: usize) -> &mut [f32] {
        assert!(self.in_flight.is_empty() && !self.gathered.contains(&true), "weights change between passes");
        &mut Arc::make_mut(&mut self.own)[self.shards.kept(index)]
    }

    /// Starts to gather the buckets of `unit`, unless they are gathered or in flight.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `pack`.
    fn start_gather(&mut self, unit: usize) {
        for pack in self.needs[unit].clone() {
            if self.gathered[pack] || self.in_flight.contains(&pack) {
                continue;
            }
            let table = &self.shards.packs()[pack];
            let mut packed = self.spare.pop().unwrap_or_default();
            packed.clear();
            packed.reserve_exact(table.length());
            packed.resize(table.length(), 0.0);
            packed[table.own()].copy_from_slice(&self.own[table.kept()]);
            self.gatherer(pack).start_all_gather(packed);
            self.in_flight.push_back(pack);
        }
    }

    /// Waits for the oldest bucket in flight, if `unit` still lacks any; returns its index and values.
    fn wait_for(&mut self, unit: usize) -> Option<(usize, Vec<f32>)> {
        if self.needs[unit].iter().all(|pack| self.gathered[*pack]) {
            return None;
        }
        let pack = self.in_flight.pop_front().expect("a unit is gathered before it is waited for");
        self.gathered[pack] = true;
        Some((pack, self.gatherer(pack).receive(self.shards.packs()[pack].length())))
    }

    /// Returns the queue that gathers bucket `pack`.
    fn gatherer(&self, pack: usize) -> &AllGatherQueue {
        let is_of_experts = self.shards.packs()[pack].replication() == Channel::ExpertReplicas;
        self.expert_gatherer.as_ref().filter(|_| is_of_experts).unwrap_or(&self.gatherer)
    }
}

impl Stage {
    /// Gathers the values that `unit` uses, if they are sharded, and starts to gather those of `next`.
    pub(super) fn unshard(&mut self, unit: usize, next: Option<usize>) {
        let Some(mut sharded) = self.sharded.take() else { return };
        sharded.start_gather(unit);
        while let Some((pack, packed)) = sharded.wait_for(unit) {
            let table = &sharded.shards.packs()[pack];
            for index in table.parameters() {
                let mut values = vec![0.0; self.parameters[index].range.len()];
                table.take(index, &packed, &mut values);
                self.values[index] = tensor(values, &self.device);
            }
            sharded.spare.push(packed);
        }
        self.sharded = Some(sharded);
        self.prefetch(next);
    }

    /// Starts to gather the values that `unit` uses, if they are sharded.
    pub(super) fn prefetch(&mut self, unit: Option<usize>) {
        if let (Some(sharded), Some(unit)) = (&mut self.sharded, unit) {
            sharded.start_gather(unit);
        }
    }

    /// Frees the values that `unit` used, if they are sharded.
    pub(super) fn reshard(&mut self, unit: usize) {
        let Some(sharded) = &mut self.sharded else { return };
        for pack in &sharded.needs[unit] {
            sharded.gathered[*pack] = false;
            for index in sharded.shards.packs()[*pack].parameters() {
                self.values[index] = tensor(Vec::new(), &self.device);
            }
        }
    }

    /// Returns the number of values that this rank has allocated: those it owns, and those that are gathered
    /// now.
    pub fn room(&self) -> usize {
        let gathered = self.values.iter().map(|values| values.dims()[0]).sum::<usize>();
        let sharded = self.sharded.iter().flat_map(|sharded| sharded.spare.iter().chain([&*sharded.own]));
        gathered + sharded.map(Vec::capacity).sum::<usize>()
    }
}

//! Weights that are sharded: a rank keeps its own blocks, and the values of a unit exist only while it computes.
//!
//! [`Stage::open`] gathers them just before, and begins to gather those of the unit that computes next;
//! [`Stage::close`] frees them. A tied embedding is gathered for every unit that uses it.

use super::Stage;
use super::parameters::Unit;
use super::values::tensor;
use crate::frozen::Frozen;
use crate::parallel::{Gatherer, Partners, Shards};
use dtrain_protocol::Channel;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// This rank's blocks of all packs, and what is gathered now.
pub(super) struct Shelf {
    shards: Arc<Shards>,
    gatherer: Gatherer,
    /// Of experts that are spread.
    expert_gatherer: Option<Gatherer>,
    /// The owned parts of all parameters, as [`Shards::kept`] tells.
    own: Arc<Vec<f32>>,
    /// Packs that each unit uses.
    needs: Vec<Vec<usize>>,
    /// Whether the values of each pack are here.
    open: Vec<bool>,
    /// Packs on their way.
    coming: VecDeque<usize>,
    /// Packs that came and were unpacked, to be used again.
    spare: Vec<Vec<f32>>,
}

impl Shelf {
    /// Bytes of the owned values.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.own.capacity() as u64
    }

    /// Room for the blocks of all packs, all zeros.
    pub(super) fn new(shards: &Arc<Shards>, partners: &Partners, units: &[Unit]) -> Self {
        let gatherer = partners.weights.clone();
        let needs = |unit: &Unit| {
            let mut packs: Vec<_> = unit.uses.iter().map(|(_, index)| shards.pack_of(*index)).collect();
            packs.sort_unstable();
            packs.dedup();
            packs
        };
        Self {
            gatherer: gatherer.expect("who shards weights has somebody to gather them from"),
            expert_gatherer: partners.expert_weights.clone(),
            own: Arc::new(vec![0.0; shards.kept_length()]),
            needs: units.iter().map(needs).collect(),
            open: vec![false; shards.packs().len()],
            coming: VecDeque::new(),
            spare: Vec::new(),
            shards: Arc::clone(shards),
        }
    }

    /// The owned part of parameter `index`.
    pub(super) fn own(&self, index: usize) -> &[f32] {
        &self.own[self.shards.kept(index)]
    }

    /// Elements `range` of the owned part of parameter `index`, as they are now.
    pub(super) fn frozen(&self, index: usize, range: Range<usize>) -> Frozen {
        let begin = self.shards.kept(index).start;
        Frozen::Vector(Arc::clone(&self.own), begin + range.start..begin + range.end)
    }

    /// As [`Shelf::own`], to be changed. Nothing may be open or on its way.
    pub(super) fn own_mut(&mut self, index: usize) -> &mut [f32] {
        assert!(self.coming.is_empty() && !self.open.contains(&true), "weights change between passes");
        &mut Arc::make_mut(&mut self.own)[self.shards.kept(index)]
    }

    /// Begins to gather what `unit` uses, unless it is here or on its way.
    fn ask(&mut self, unit: usize) {
        for pack in self.needs[unit].clone() {
            if self.open[pack] || self.coming.contains(&pack) {
                continue;
            }
            let table = &self.shards.packs()[pack];
            let mut packed = self.spare.pop().unwrap_or_default();
            packed.clear();
            packed.reserve_exact(table.length());
            packed.resize(table.length(), 0.0);
            packed[table.own()].copy_from_slice(&self.own[table.kept()]);
            self.gatherer(pack).send(packed);
            self.coming.push_back(pack);
        }
    }

    /// Waits for the oldest pack that is on its way, if `unit` still lacks any.
    fn receive_for(&mut self, unit: usize) -> Option<(usize, Vec<f32>)> {
        if self.needs[unit].iter().all(|pack| self.open[*pack]) {
            return None;
        }
        let pack = self.coming.pop_front().expect("what is neither here nor asked for was asked for");
        self.open[pack] = true;
        Some((pack, self.gatherer(pack).receive(self.shards.packs()[pack].length())))
    }

    /// Who gathers a pack.
    fn gatherer(&self, pack: usize) -> &Gatherer {
        let is_of_experts = self.shards.packs()[pack].replication() == Channel::ExpertReplicas;
        self.expert_gatherer.as_ref().filter(|_| is_of_experts).unwrap_or(&self.gatherer)
    }
}

impl Stage {
    /// Gathers the values that `unit` uses, where they are sharded, and begins to gather those of `next`.
    pub(super) fn open(&mut self, unit: usize, next: Option<usize>) {
        let Some(mut shelf) = self.shelf.take() else { return };
        shelf.ask(unit);
        while let Some((pack, packed)) = shelf.receive_for(unit) {
            let table = &shelf.shards.packs()[pack];
            for index in table.parameters() {
                let mut values = vec![0.0; self.parameters[index].range.len()];
                table.take(index, &packed, &mut values);
                self.values[index] = tensor(values, &self.device);
            }
            shelf.spare.push(packed);
        }
        self.shelf = Some(shelf);
        self.prefetch(next);
    }

    /// Begins to gather the values that `unit` uses, where they are sharded.
    pub(super) fn prefetch(&mut self, unit: Option<usize>) {
        if let (Some(shelf), Some(unit)) = (&mut self.shelf, unit) {
            shelf.ask(unit);
        }
    }

    /// Frees the values that `unit` used, where they are sharded.
    pub(super) fn close(&mut self, unit: usize) {
        let Some(shelf) = &mut self.shelf else { return };
        for pack in &shelf.needs[unit] {
            shelf.open[*pack] = false;
            for index in shelf.shards.packs()[*pack].parameters() {
                self.values[index] = tensor(Vec::new(), &self.device);
            }
        }
    }

    /// Values that this rank has room for: those it owns, and those that are gathered now.
    pub fn room(&self) -> usize {
        let gathered = self.values.iter().map(|values| values.dims()[0]).sum::<usize>();
        let shelf = self.shelf.iter().flat_map(|shelf| shelf.spare.iter().chain([&*shelf.own]));
        gathered + shelf.map(Vec::capacity).sum::<usize>()
    }
}

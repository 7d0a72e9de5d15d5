//! Reading and updating the weights of a stage.

use super::sharded::ShardedWeights;
use super::{Stage, tensor};
use crate::network::ModelParameter;
use crate::snapshot::Snapshot;
use burn::backend::Flex;
use burn::tensor::Tensor;
use std::ops::Range;
use std::sync::Arc;

impl Stage {
    /// Returns the values of parameter `index`; not for ZeRO 3, where they are not always gathered.
    pub fn values(&self, index: usize) -> Vec<f32> {
        self.values[index].to_data().try_to_vec().expect("weights are f32")
    }

    /// Returns the bytes of the weights on this rank: all of them, or the owned and the gathered ones.
    pub fn value_bytes(&self) -> u64 {
        let here = self.values.iter().chain(&self.frozen_values);
        let here = here.map(|values| values.shape().num_elements()).sum::<usize>();
        4 * here as u64 + self.sharded.as_ref().map_or(0, ShardedWeights::bytes)
    }

    /// Replaces the values of parameter `index`, of which a shard stores its part; panics on a wrong number
    /// of values.
    pub fn set_values(&mut self, index: usize, values: Vec<f32>) {
        let wanted = self.parameters[index].range.len();
        assert_eq!(values.len(), wanted, "values of `{}`", self.parameters[index].name);
        match &mut self.sharded {
            Some(sharded) => sharded.own_mut(index).copy_from_slice(&values[self.shards.owned(index)]),
            None => self.values[index] = tensor(values, &self.device),
        }
    }

    /// Replaces the values of frozen parameter `index`; panics on a wrong number of values.
    pub fn set_frozen(&mut self, index: usize, values: Vec<f32>) {
        let ModelParameter { name, range, .. } = &self.frozen[index];
        assert_eq!(values.len(), range.len(), "values of `{name}`");
        self.frozen_values[index] = tensor(values, &self.device);
    }

    /// Takes a snapshot of elements `range` of frozen parameter `index`.
    pub(crate) fn frozen_snapshot(&self, index: usize, range: Range<usize>) -> Snapshot {
        Snapshot::tensor(&self.frozen_values[index], range, self.host)
    }

    /// Copies the values of a flat range, which may start and end inside parameters, into `out`. With ZeRO 3
    /// the range must lie inside the owned part.
    pub fn copy_values(&self, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(range.len(), out.len(), "a copy is as long as its range");
        for (index, parameter) in self.parameters.iter().enumerate() {
            let both = overlap(&parameter.range, &range);
            if !both.is_empty() {
                let inside = shift(&both, parameter.range.start);
                let room = &mut out[shift(&both, range.start)];
                if let Some(sharded) = &self.sharded {
                    room.copy_from_slice(&sharded.own(index)[shift(&inside, self.shards.owned(index).start)]);
                    continue;
                }
                let values = self.values[index].to_data();
                let values: &[f32] = values.as_slice().expect("weights are f32");
                room.copy_from_slice(&values[inside]);
            }
        }
    }

    /// Takes a snapshot of elements `range` of parameter `index`. With ZeRO 3 the range must lie inside the
    /// owned part.
    pub(crate) fn snapshot(&self, index: usize, range: Range<usize>) -> Snapshot {
        match &self.sharded {
            Some(sharded) => sharded.snapshot(index, shift(&range, self.shards.owned(index).start)),
            None => Snapshot::tensor(&self.values[index], range, self.host),
        }
    }

    /// Updates the owned values of parameter `index`, given their gradient. Values of a device are copied
    /// to the host and back.
    pub(crate) fn update(&mut self, index: usize, change: impl FnOnce(&mut [f32], &[f32])) {
        let owned = self.shards.owned(index);
        if let Some(sharded) = &mut self.sharded {
            change(sharded.own_mut(index), self.gradients.own(index));
        } else {
            let values = std::mem::replace(&mut self.values[index], tensor(Vec::new(), &self.device));
            let gradient = self.gradients.own(index);
            self.values[index] = changed(values, self.host, |values| change(&mut values[owned], gradient));
        }
    }

    /// Returns a buffer for bucket `pack` of weights, in which this rank's block is filled in.
    pub(crate) fn pack_values(&self, pack: usize) -> Vec<f32> {
        let table = &self.shards.packs()[pack];
        let mut packed = vec![0.0; table.length()];
        for index in table.parameters() {
            let at = self.shards.kept(index).start - table.kept().start + table.own().start;
            let owned = self.shards.owned(index);
            let begin = self.parameters[index].range.start;
            let room = &mut packed[at..at + owned.len()];
            self.copy_values(begin + owned.start..begin + owned.end, room);
        }
        packed
    }

    /// Replaces the values of bucket `pack` by the gathered ones in `packed`.
    pub(crate) fn unpack_values(&mut self, pack: usize, packed: &[f32]) {
        let shards = Arc::clone(&self.shards);
        let table = &shards.packs()[pack];
        for index in table.parameters() {
            let values = std::mem::replace(&mut self.values[index], tensor(Vec::new(), &self.device));
            self.values[index] = changed(values, self.host, |values| table.take(index, packed, values));
        }
    }

    /// Replaces parameter `index` by a function of its value and gradient; only on a device.
    pub(crate) fn update_tensor(
        &mut self,
        index: usize,
        change: impl FnOnce(Tensor<1>, Tensor<1>) -> Tensor<1>,
    ) {
        // Taken out, so that it may be changed in place; the last one is in its place meanwhile.
        let value = self.values.swap_remove(index);
        let gradient = self.gradients.tensor(index).unwrap_or_else(|| value.zeros_like());
        self.values.push(change(value, gradient));
        let last = self.values.len() - 1;
        self.values.swap(index, last);
    }
}

/// Returns `values` after `change`: in place on the host, through a copy elsewhere.
fn changed(values: Tensor<1>, host: bool, change: impl FnOnce(&mut [f32])) -> Tensor<1> {
    if host {
        let mut values = values.try_into_primitive::<Flex>().expect("the values are on the host");
        // Copies only if a graph still holds the old values.
        change(values.storage_mut());
        return Tensor::from_primitive::<Flex>(values);
    }
    let device = values.device();
    let mut all: Vec<f32> = values.into_data().try_to_vec().expect("weights are f32");
    change(&mut all);
    tensor(all, &device)
}

fn overlap(a: &Range<usize>, b: &Range<usize>) -> Range<usize> {
    a.start.max(b.start)..a.end.min(b.end)
}

fn shift(range: &Range<usize>, by: usize) -> Range<usize> {
    range.start - by..range.end - by
}

//! Gradient accumulation: the gradients of one stage, summed over the micro-batches of a step.
//!
//! On the host they are one flat vector in the order of [`ModelParameter::range`], so that a bucket of an
//! all-reduce is a slice of it. On other devices they are tensors, which [`Gradients::to_host`] copies into
//! a flat vector.
//!
//! With ZeRO they are in host memory on every device. With ZeRO 2 and 3 the vector has only this rank's
//! blocks of all shard buckets: backward fills a bucket, which is reduced, and this rank's block of the sum
//! is added.

use crate::device;
use crate::network::ModelParameter;
use crate::ops::{chunks, kernels};
use crate::zero::ZeroShards;
use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_recipes::ZeroStage;
use std::ops::Range;
use std::sync::Arc;

/// The gradients of one stage, accumulated over the micro-batches of a step.
pub struct Gradients {
    /// Flat gradients; if the sums are tensors, empty until they are copied to the host.
    flat: Vec<f32>,
    /// Length that `flat` has once it is allocated.
    length: usize,
    ranges: Vec<Range<usize>>,
    shards: Arc<ZeroShards>,
    remote: Option<DeviceGradients>,
    fresh: Option<PendingGradients>,
}

/// The gradient sums of a stage on another device than the host.
struct DeviceGradients {
    device: Device,
    sums: Vec<Option<Tensor<1>>>,
}

/// Gradients of a backward pass that are not reduced yet, by bucket.
struct PendingGradients {
    packs: Vec<Option<Vec<f32>>>,
    /// Buffers of reduced buckets, for reuse.
    spare: Vec<Vec<f32>>,
}

impl Gradients {
    /// Creates zero gradients for `parameters`, whose weights are on `device`.
    pub(crate) fn new(
        parameters: &[ModelParameter],
        shards: Arc<ZeroShards>,
        zero: ZeroStage,
        device: &Device,
    ) -> Self {
        let ranges: Vec<_> = parameters.iter().map(|p| p.range.clone()).collect();
        let all = ranges.last().map_or(0, |range| range.end);
        let is_remote = zero == ZeroStage::Zero0 && !device::is_host(device);
        let remote =
            is_remote.then(|| DeviceGradients { device: device.clone(), sums: vec![None; ranges.len()] });
        let (length, fresh) = match zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => (all, None),
            ZeroStage::Zero2 | ZeroStage::Zero3 => {
                let packs = vec![None; shards.packs().len()];
                (shards.kept_length(), Some(PendingGradients { packs, spare: Vec::new() }))
            }
        };
        let flat = if is_remote { Vec::new() } else { vec![0.0; length] };
        Self { flat, length, ranges, shards, remote, fresh }
    }

    /// Sets all gradients to zero; called before the first backward pass of a step.
    pub fn clear(&mut self) {
        match &mut self.remote {
            Some(remote) => remote.sums.fill(None),
            None => self.flat.fill(0.0),
        }
    }

    /// Returns the bytes of the sums on their device. Host copies of tensors are not counted.
    pub fn bytes(&self) -> u64 {
        let values = match &self.remote {
            Some(remote) => remote.sums.iter().flatten().map(|sum| sum.shape().num_elements()).sum(),
            None => self.flat.capacity(),
        };
        4 * values as u64
    }

    /// Returns all gradients in the order of [`ModelParameter::range`]; if sharded, this rank's blocks. On
    /// another device than the host these are the values of the last [`Gradients::to_host`], and empty
    /// before the first.
    pub fn values(&self) -> &[f32] {
        &self.flat
    }

    /// Returns the values of [`Gradients::values`] for modification, such as an all-reduce of a range. On
    /// another device than the host, [`Gradients::from_host`] copies them back.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.make_room();
        &mut self.flat
    }

    /// Allocates the flat vector, unless it is allocated.
    fn make_room(&mut self) {
        if self.flat.len() < self.length {
            self.flat = vec![0.0; self.length];
        }
    }

    /// Copies the gradients of the parameters `indices` into the flat vector; does nothing on the host.
    pub fn to_host(&mut self, indices: Range<usize>) {
        self.make_room();
        let Some(remote) = &self.remote else { return };
        for index in indices {
            let range = &mut self.flat[self.ranges[index].clone()];
            match &remote.sums[index] {
                Some(sum) => range.copy_from_slice(
                    sum.to_data().as_slice().expect("gradients are f32, whatever the products are"),
                ),
                None => range.fill(0.0),
            }
        }
    }

    /// Copies the flat values of the parameters `indices` back to the device; does nothing on the host.
    pub fn from_host(&mut self, indices: Range<usize>) {
        let Some(remote) = &mut self.remote else { return };
        for index in indices {
            let values = self.flat[self.ranges[index].clone()].to_vec();
            let len = values.len();
            remote.sums[index] = Some(Tensor::from_data(TensorData::new(values, [len]), &remote.device));
        }
    }

    /// Applies `change` in host memory to the owned part of the gradient of parameter `index`: all of it if
    /// nothing is sharded.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut [f32])) {
        self.to_host(index..index + 1);
        let owned = self.owned(index);
        change(&mut self.flat[owned]);
        self.from_host(index..index + 1);
    }

    /// Returns the owned part of the gradient of parameter `index`, which must be in host memory.
    pub fn own(&self, index: usize) -> &[f32] {
        &self.flat[self.owned(index)]
    }

    /// Returns the squared L2 norm of all gradients, summed in a fixed order.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared_of(0..self.length)
    }

    /// Returns the squared L2 norm of the owned part of the gradient of parameter `index`.
    pub fn norm_squared_own(&self, index: usize) -> f64 {
        self.norm_squared_of(self.owned(index))
    }

    /// Returns the squared L2 norm of the gradients in a flat range: of whole parameters, if sums are on
    /// another device.
    fn norm_squared_of(&self, range: Range<usize>) -> f64 {
        let Some(remote) = &self.remote else {
            return chunks::map(self.flat[range].chunks(chunks::VALUES), kernels::square_sum)
                .into_iter()
                .sum();
        };
        let inside = |r: &Range<usize>| range.start <= r.start && r.end <= range.end;
        let sums = self.ranges.iter().zip(&remote.sums).filter(|(r, _)| inside(r));
        square_sum(sums.filter_map(|(_, sum)| sum.clone()))
    }

    /// Returns the squared L2 norm of the owned parts of the gradients of the parameters `indices`; a device
    /// is read once.
    pub fn norm_squared_of_all(&self, indices: impl Iterator<Item = usize>) -> f64 {
        if self.are_tensors() {
            return square_sum(indices.filter_map(|index| self.tensor(index)));
        }
        indices.map(|index| self.norm_squared_own(index)).sum()
    }

    /// Adds `gradient` to the accumulated gradient of parameter `index`.
    pub(crate) fn add(&mut self, index: usize, gradient: Tensor<1>) {
        if let Some(fresh) = &mut self.fresh {
            let pack = self.shards.pack_of(index);
            let room = fresh.packs[pack].take();
            let mut room = room.unwrap_or_else(|| fresh.room(self.shards.packs()[pack].length()));
            with_values(gradient, |values| {
                for (inside, at) in self.shards.packs()[pack].parts(index) {
                    kernels::add(&mut room[at], &values[inside]);
                }
            });
            fresh.packs[pack] = Some(room);
            return;
        }
        match &mut self.remote {
            Some(remote) => {
                let sum = &mut remote.sums[index];
                *sum = Some(match sum.take() {
                    Some(sum) => sum + gradient,
                    None => gradient,
                });
            }
            None => {
                let sum = &mut self.flat[self.ranges[index].clone()];
                with_values(gradient, |values| {
                    let parts = sum.chunks_mut(chunks::VALUES).zip(values.chunks(chunks::VALUES));
                    chunks::each(parts, |(sum, gradient)| kernels::add(sum, gradient));
                });
            }
        }
    }

    /// Returns the gradient sum of parameter `index` on its device; `None` on the host or if nothing was
    /// added.
    pub(crate) fn tensor(&self, index: usize) -> Option<Tensor<1>> {
        self.remote.as_ref().and_then(|remote| remote.sums[index].clone())
    }

    /// Returns the gradient sum of parameter `index` on its device, zeros if nothing was added. Panics on the
    /// host.
    pub(crate) fn tensor_or_zeros(&self, index: usize) -> Tensor<1> {
        let remote = self.remote.as_ref().expect("tensors are asked for where gradients are tensors");
        let zeros = || Tensor::zeros([self.ranges[index].len()], &remote.device);
        remote.sums[index].clone().unwrap_or_else(zeros)
    }

    /// Replaces the gradient sum of parameter `index` on its device. Panics on the host.
    pub(crate) fn set_tensor(&mut self, index: usize, sum: Tensor<1>) {
        let remote = self.remote.as_mut().expect("tensors are given where gradients are tensors");
        remote.sums[index] = Some(sum);
    }

    /// Returns `true` if the gradient sums are tensors of a device.
    pub(crate) fn are_tensors(&self) -> bool {
        self.remote.is_some()
    }

    /// Returns bucket `pack` for the reduction over the shard group: all gradients added so far, or, if
    /// only shards are stored, those added since the last call.
    pub(crate) fn take_bucket(&mut self, pack: usize) -> Vec<f32> {
        let length = self.shards.packs()[pack].length();
        if let Some(fresh) = &mut self.fresh {
            let found = fresh.packs[pack].take();
            return found.unwrap_or_else(|| fresh.room(length));
        }
        let shards = Arc::clone(&self.shards);
        let mut packed = vec![0.0; length];
        for index in shards.packs()[pack].parameters() {
            shards.packs()[pack].put(index, &self.flat[self.ranges[index].clone()], &mut packed);
        }
        packed
    }

    /// Takes back the bucket of [`Gradients::take_bucket`], whose block of this rank is now summed over the
    /// shard group.
    pub(crate) fn come_back(&mut self, pack: usize, packed: Vec<f32>) {
        let own = self.shards.packs()[pack].own();
        match &mut self.fresh {
            Some(fresh) => {
                kernels::add(&mut self.flat[self.shards.packs()[pack].kept()], &packed[own]);
                fresh.spare.push(packed);
            }
            None => self.replace(pack, &packed[own]),
        }
    }

    /// Returns this rank's block of bucket `pack`: the owned parts of its gradients.
    pub(crate) fn block(&self, pack: usize) -> Vec<f32> {
        let pack = &self.shards.packs()[pack];
        let mut block = vec![0.0; pack.kept().len()];
        for index in pack.parameters() {
            let at = self.shards.kept(index);
            block[at.start - pack.kept().start..][..at.len()].copy_from_slice(self.own(index));
        }
        block
    }

    /// Replaces this rank's block of bucket `pack`, as [`Gradients::block`] returns it.
    pub(crate) fn replace(&mut self, pack: usize, block: &[f32]) {
        let shards = Arc::clone(&self.shards);
        let pack = &shards.packs()[pack];
        for index in pack.parameters() {
            let (at, owned) = (shards.kept(index), self.owned(index));
            self.flat[owned].copy_from_slice(&block[at.start - pack.kept().start..][..at.len()]);
        }
    }

    /// Returns the number of values that this rank has allocated, for sums and for gradients that are not
    /// reduced yet.
    pub fn room(&self) -> usize {
        let fresh = self.fresh.iter().flat_map(|fresh| fresh.packs.iter().flatten().chain(&fresh.spare));
        self.flat.capacity() + fresh.map(Vec::capacity).sum::<usize>()
    }

    /// Returns the flat range of the owned part of the gradient of parameter `index`.
    fn owned(&self, index: usize) -> Range<usize> {
        if self.fresh.is_some() {
            return self.shards.kept(index);
        }
        let (owned, begin) = (self.shards.owned(index), self.ranges[index].start);
        begin + owned.start..begin + owned.end
    }
}

impl PendingGradients {
    /// Returns a buffer of zeros for a bucket of `length` values.
    fn room(&mut self, length: usize) -> Vec<f32> {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clear();
        room.reserve_exact(length);
        room.resize(length, 0.0);
        room
    }
}

/// Returns the sum of the squares of all values of `sums`, computed as one tensor, so that the device is read
/// once.
fn square_sum(sums: impl Iterator<Item = Tensor<1>>) -> f64 {
    let squares = sums.map(|sum| (sum.clone() * sum).sum());
    squares.reduce(|a, b| a + b).map_or(0.0, |sum| f64::from(sum.into_scalar::<f32>()))
}

/// Calls `show` with the values of `gradient`, copied to host memory if they are not there.
fn with_values(gradient: Tensor<1>, show: impl FnOnce(&[f32])) {
    if device::is_host(&gradient.device()) {
        let gradient = gradient.try_into_primitive::<Flex>().expect("the gradient is on the host");
        show(gradient.to_contiguous().storage::<f32>());
    } else {
        show(gradient.into_data().as_slice().expect("gradients are f32, whatever the products are"));
    }
}

//! Gradients of one stage, summed over micro-batches.
//!
//! On the host they lie in one flat vector in the order of [`ModelParameter::range`], so that a bucket of an
//! all-reduce is a slice of it. On other devices they are tensors, which [`Gradients::to_host`] brings here: only then
//! is there a flat vector.
//!
//! Where state is sharded they lie in host memory on every device. With zero 2 and 3 the vector has this rank's blocks
//! of all packs and no more: what a backward finds is put into the pack it leaves in, whose sum comes back to be added.

use crate::device;
use crate::ops::{chunks, kernels};
use crate::parallel::ZeroShards;
use crate::stage::ModelParameter;
use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use dtrain_recipes::ZeroStage;
use std::ops::Range;
use std::sync::Arc;

/// Gradients of one stage, summed over micro-batches.
pub struct Gradients {
    /// Empty where sums are tensors, until values are brought to the host.
    flat: Vec<f32>,
    /// Values of `flat` once it is there.
    length: usize,
    ranges: Vec<Range<usize>>,
    shards: Arc<ZeroShards>,
    remote: Option<DeviceGradients>,
    fresh: Option<PendingGradients>,
}

/// Sums that live on another device; `None` while nothing was added.
struct DeviceGradients {
    device: Device,
    sums: Vec<Option<Tensor<1>>>,
}

/// What a backward found and has not left yet.
struct PendingGradients {
    packs: Vec<Option<Vec<f32>>>,
    /// Packs that came back, to be used again.
    spare: Vec<Vec<f32>>,
}

impl Gradients {
    /// Gradients of `parameters`, whose weights lie on `device`.
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

    /// Sets all gradients to zero: to be called once before the first backward pass of a step.
    pub fn clear(&mut self) {
        match &mut self.remote {
            Some(remote) => remote.sums.fill(None),
            None => self.flat.fill(0.0),
        }
    }

    /// Bytes of the sums where they lie. Room on the host that tensors are brought to is not counted.
    pub fn bytes(&self) -> u64 {
        let values = match &self.remote {
            Some(remote) => remote.sums.iter().flatten().map(|sum| sum.shape().num_elements()).sum(),
            None => self.flat.capacity(),
        };
        4 * values as u64
    }

    /// All gradients in the order of [`ModelParameter::range`]; of shards this rank's blocks. On another device than the
    /// host these are the values of the last [`Gradients::to_host`], and none before the first.
    pub fn values(&self) -> &[f32] {
        &self.flat
    }

    /// As [`Gradients::values`], to be changed, such as by an all-reduce of a range of them. On another device
    /// than the host, [`Gradients::from_host`] makes the change count.
    pub fn values_mut(&mut self) -> &mut [f32] {
        self.make_room();
        &mut self.flat
    }

    /// Makes the flat vector, where it is not there yet.
    fn make_room(&mut self) {
        if self.flat.len() < self.length {
            self.flat = vec![0.0; self.length];
        }
    }

    /// Brings the gradients of the parameters `indices` into the flat vector; nothing to do on the host.
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

    /// Puts the flat values of the parameters `indices`, which were brought to the host, back on the device; nothing to do
    /// on the host.
    pub fn from_host(&mut self, indices: Range<usize>) {
        let Some(remote) = &mut self.remote else { return };
        for index in indices {
            let values = self.flat[self.ranges[index].clone()].to_vec();
            let len = values.len();
            remote.sums[index] = Some(Tensor::from_data(TensorData::new(values, [len]), &remote.device));
        }
    }

    /// Changes the owned part of the gradient of parameter `index` in host memory: all of it where nothing is
    /// sharded.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut [f32])) {
        self.to_host(index..index + 1);
        let owned = self.owned(index);
        change(&mut self.flat[owned]);
        self.from_host(index..index + 1);
    }

    /// The owned part of the gradient of parameter `index`, in host memory.
    pub fn own(&self, index: usize) -> &[f32] {
        &self.flat[self.owned(index)]
    }

    /// Square of the L2 norm of all gradients, summed in a fixed order.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared_of(0..self.length)
    }

    /// Square of the L2 norm of the owned part of the gradient of parameter `index`.
    pub fn norm_squared_own(&self, index: usize) -> f64 {
        self.norm_squared_of(self.owned(index))
    }

    /// Square of the L2 norm of the gradients in a flat range: of whole parameters, when sums lie on another device.
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

    /// Square of the L2 norm of the owned parts of the gradients of these parameters; a device is read once.
    pub fn norm_squared_of_all(&self, indices: impl Iterator<Item = usize>) -> f64 {
        if self.are_tensors() {
            return square_sum(indices.filter_map(|index| self.tensor(index)));
        }
        indices.map(|index| self.norm_squared_own(index)).sum()
    }

    /// Adds `gradient` to the sum of parameter `index`.
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

    /// The sum of parameter `index` on its device; `None` on the host or when nothing was added.
    pub(crate) fn tensor(&self, index: usize) -> Option<Tensor<1>> {
        self.remote.as_ref().and_then(|remote| remote.sums[index].clone())
    }

    /// As [`Gradients::tensor`], zeros when nothing was added. Panics on the host.
    pub(crate) fn tensor_or_zeros(&self, index: usize) -> Tensor<1> {
        let remote = self.remote.as_ref().expect("tensors are asked for where gradients are tensors");
        let zeros = || Tensor::zeros([self.ranges[index].len()], &remote.device);
        remote.sums[index].clone().unwrap_or_else(zeros)
    }

    /// Replaces the sum of parameter `index` on its device. Panics on the host.
    pub(crate) fn set_tensor(&mut self, index: usize, sum: Tensor<1>) {
        let remote = self.remote.as_mut().expect("tensors are given where gradients are tensors");
        remote.sums[index] = Some(sum);
    }

    /// Whether the sums are tensors of a device.
    pub(crate) fn are_tensors(&self) -> bool {
        self.remote.is_some()
    }

    /// What is to be summed over the ranks of the shard group, as pack `pack`: all that was added so far, or, where
    /// only shards are kept, what was added since this was last called.
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

    /// Takes what [`Gradients::take_bucket`] gave, summed over the shard group in this rank's block.
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

    /// This rank's block of pack `pack`: the owned parts of its gradients.
    pub(crate) fn block(&self, pack: usize) -> Vec<f32> {
        let pack = &self.shards.packs()[pack];
        let mut block = vec![0.0; pack.kept().len()];
        for index in pack.parameters() {
            let at = self.shards.kept(index);
            block[at.start - pack.kept().start..][..at.len()].copy_from_slice(self.own(index));
        }
        block
    }

    /// Replaces what [`Gradients::block`] gave.
    pub(crate) fn replace(&mut self, pack: usize, block: &[f32]) {
        let shards = Arc::clone(&self.shards);
        let pack = &shards.packs()[pack];
        for index in pack.parameters() {
            let (at, owned) = (shards.kept(index), self.owned(index));
            self.flat[owned].copy_from_slice(&block[at.start - pack.kept().start..][..at.len()]);
        }
    }

    /// Values that this rank has room for, of gradients and of what a backward found.
    pub fn room(&self) -> usize {
        let fresh = self.fresh.iter().flat_map(|fresh| fresh.packs.iter().flatten().chain(&fresh.spare));
        self.flat.capacity() + fresh.map(Vec::capacity).sum::<usize>()
    }

    /// Where the owned part of the gradient of parameter `index` lies in the flat vector.
    fn owned(&self, index: usize) -> Range<usize> {
        if self.fresh.is_some() {
            return self.shards.kept(index);
        }
        let (owned, begin) = (self.shards.owned(index), self.ranges[index].start);
        begin + owned.start..begin + owned.end
    }
}

impl PendingGradients {
    /// Zeros for a pack of `length` values.
    fn room(&mut self, length: usize) -> Vec<f32> {
        let mut room = self.spare.pop().unwrap_or_default();
        room.clear();
        room.reserve_exact(length);
        room.resize(length, 0.0);
        room
    }
}

/// The sum of the squares of all values, as one tensor, so that the device is read once.
fn square_sum(sums: impl Iterator<Item = Tensor<1>>) -> f64 {
    let squares = sums.map(|sum| (sum.clone() * sum).sum());
    squares.reduce(|a, b| a + b).map_or(0.0, |sum| f64::from(sum.into_scalar::<f32>()))
}

/// Shows the values of `gradient`, brought here from wherever they lie.
fn with_values(gradient: Tensor<1>, show: impl FnOnce(&[f32])) {
    if device::is_host(&gradient.device()) {
        let gradient = gradient.try_into_primitive::<Flex>().expect("the gradient is on the host");
        show(gradient.to_contiguous().storage::<f32>());
    } else {
        show(gradient.into_data().as_slice().expect("gradients are f32, whatever the products are"));
    }
}

//! Gradients of one stage, summed over micro-batches.
//!
//! On the host they lie in one flat vector in the order of [`Parameter::range`], so that a bucket of an
//! all-reduce is a slice of it. On other devices they are tensors, which [`Gradients::to_host`] brings here.

use crate::ops::{chunks, kernels};
use crate::stage::Parameter;
use burn::backend::Flex;
use burn::tensor::{Device, Tensor, TensorData};
use std::ops::Range;

/// Gradients of one stage, summed over micro-batches.
pub struct Gradients {
    flat: Vec<f32>,
    ranges: Vec<Range<usize>>,
    remote: Option<Remote>,
}

/// Sums that live on another device; `None` while nothing was added.
struct Remote {
    device: Device,
    sums: Vec<Option<Tensor<1>>>,
}

impl Gradients {
    pub(crate) fn new(parameters: &[Parameter], device: &Device, host: bool) -> Self {
        let ranges: Vec<_> = parameters.iter().map(|p| p.range.clone()).collect();
        let len = ranges.last().map_or(0, |range| range.end);
        let remote = (!host).then(|| Remote { device: device.clone(), sums: vec![None; ranges.len()] });
        Self { flat: vec![0.0; len], ranges, remote }
    }

    /// Sets all gradients to zero: to be called once before the first backward pass of a step.
    pub fn clear(&mut self) {
        match &mut self.remote {
            Some(remote) => remote.sums.fill(None),
            None => self.flat.fill(0.0),
        }
    }

    /// All gradients in the order of [`Parameter::range`]. On another device than the host these are the
    /// values of the last [`Gradients::to_host`].
    pub fn values(&self) -> &[f32] {
        &self.flat
    }

    /// As [`Gradients::values`], to be changed, such as by an all-reduce of a range of them. On another device
    /// than the host, [`Gradients::from_host`] makes the change count.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.flat
    }

    /// Brings the gradients of the parameters `indices` into the flat vector; nothing to do on the host.
    pub fn to_host(&mut self, indices: Range<usize>) {
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

    /// Puts the flat values of the parameters `indices` back on the device; nothing to do on the host.
    pub fn from_host(&mut self, indices: Range<usize>) {
        let Some(remote) = &mut self.remote else { return };
        for index in indices {
            let values = self.flat[self.ranges[index].clone()].to_vec();
            let len = values.len();
            remote.sums[index] = Some(Tensor::from_data(TensorData::new(values, [len]), &remote.device));
        }
    }

    /// Changes the gradient of parameter `index` in host memory.
    pub fn change(&mut self, index: usize, change: impl FnOnce(&mut [f32])) {
        self.to_host(index..index + 1);
        change(&mut self.flat[self.ranges[index].clone()]);
        self.from_host(index..index + 1);
    }

    /// Square of the L2 norm of all gradients, summed in a fixed order.
    pub fn norm_squared(&self) -> f64 {
        self.norm_squared_of(0..self.flat.len())
    }

    /// Square of the L2 norm of the gradients in a flat range (of whole parameters, unless on the host), as
    /// the owner of a shard needs it.
    pub fn norm_squared_of(&self, range: Range<usize>) -> f64 {
        let Some(remote) = &self.remote else {
            return chunks::map(self.flat[range].chunks(chunks::VALUES), kernels::square_sum)
                .into_iter()
                .sum();
        };
        let inside = |r: &Range<usize>| range.start <= r.start && r.end <= range.end;
        let sums = self.ranges.iter().zip(&remote.sums).filter(|(r, _)| inside(r));
        let squares = sums.filter_map(|(_, sum)| sum.clone()).map(|sum| (sum.clone() * sum).sum());
        // One tensor, so that the device is asked once.
        squares.reduce(|a, b| a + b).map_or(0.0, |sum| f64::from(sum.into_scalar::<f32>()))
    }

    /// Adds `gradient` to the sum of parameter `index`.
    pub(crate) fn add(&mut self, index: usize, gradient: Tensor<1>) {
        match &mut self.remote {
            Some(remote) => {
                let sum = &mut remote.sums[index];
                *sum = Some(match sum.take() {
                    Some(sum) => sum + gradient,
                    None => gradient,
                });
            }
            None => {
                let gradient = gradient.try_into_primitive::<Flex>().expect("the gradients are on the host");
                let gradient = gradient.to_contiguous();
                let sum = &mut self.flat[self.ranges[index].clone()];
                let parts =
                    sum.chunks_mut(chunks::VALUES).zip(gradient.storage::<f32>().chunks(chunks::VALUES));
                chunks::each(parts, |(sum, gradient)| kernels::add(sum, gradient));
            }
        }
    }

    /// The sum of parameter `index` on its device; `None` on the host or when nothing was added.
    pub(crate) fn tensor(&self, index: usize) -> Option<Tensor<1>> {
        self.remote.as_ref().and_then(|remote| remote.sums[index].clone())
    }
}

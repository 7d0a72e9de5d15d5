//! All-reduce of gradients over the replicas in buckets on a device, while backward still computes others.
//!
//! They resemble [`super::GradientBuckets`], but nothing is copied to the host if the devices are
//! connected: a bucket is whole parameters, joined into one tensor on the device. Kernels and collectives
//! have a fixed cost there, so buckets are larger.

use crate::gradient_accumulation::Gradients;
use crate::mesh::CommQueue;
use crate::network::ModelParameter;
use burn::tensor::Tensor;
use dtrain_protocol::Failure;
use std::collections::VecDeque;
use std::ops::Range;

/// Fewest elements of a bucket, except for the last one: 25 MiB of `f32`, as in PyTorch's
/// `DistributedDataParallel`.
const ELEMENTS: usize = 25 << 18;

/// The buckets of one step's gradients, all-reduced on a device over the ranks that hold the same parameters.
#[derive(Debug)]
pub struct DeviceGradientBuckets {
    /// Reduced parameters, in the order in which backward finishes them.
    parameters: Vec<InFlightGradient>,
    /// Ranges of `parameters` that form a bucket each, in the order in which they are sent.
    buckets: Vec<Range<usize>>,
    /// Units of this step whose gradients are final.
    finished: Vec<usize>,
    /// Number of buckets of this step that were sent.
    sent: usize,
    /// Indices of the buckets in flight, oldest first.
    on_the_way: VecDeque<usize>,
}

/// A parameter whose gradient is in the buckets.
#[derive(Clone, Copy, Debug)]
struct InFlightGradient {
    index: usize,
    unit: usize,
    length: usize,
}

impl DeviceGradientBuckets {
    /// Creates buckets for the parameters whose names are `wanted`.
    pub fn new(parameters: &[ModelParameter], wanted: impl Fn(&str) -> bool) -> Self {
        Self::with_size(parameters, wanted, ELEMENTS)
    }

    fn with_size(parameters: &[ModelParameter], wanted: impl Fn(&str) -> bool, elements: usize) -> Self {
        let all = parameters.iter().enumerate().rev().filter(|(_, parameter)| wanted(&parameter.name));
        let travelling = |(index, parameter): (usize, &ModelParameter)| InFlightGradient {
            index,
            unit: parameter.unit,
            length: parameter.range.len(),
        };
        let parameters: Vec<_> = all.map(travelling).collect();
        let (mut buckets, mut begin, mut length) = (Vec::new(), 0, 0);
        for (at, parameter) in parameters.iter().enumerate() {
            length += parameter.length;
            if length >= elements || at + 1 == parameters.len() {
                buckets.push(begin..at + 1);
                (begin, length) = (at + 1, 0);
            }
        }
        Self { parameters, buckets, finished: Vec::new(), sent: 0, on_the_way: VecDeque::new() }
    }

    /// Records that the gradients of unit `unit` are final, and sends every bucket that is now complete.
    pub fn finish(&mut self, unit: usize, gradients: &Gradients, queue: &CommQueue) {
        self.finished.push(unit);
        while let Some(bucket) = self.buckets.get(self.sent) {
            let parameters = &self.parameters[bucket.clone()];
            if !parameters.iter().all(|parameter| self.finished.contains(&parameter.unit)) {
                return;
            }
            self.send(gradients, queue);
        }
    }

    /// Sends the remaining buckets, because the gradients of a step are complete.
    pub fn start_remaining(&mut self, gradients: &Gradients, queue: &CommQueue) {
        while self.sent < self.buckets.len() {
            self.send(gradients, queue);
        }
        self.sent = 0;
        self.finished.clear();
    }

    /// Waits for the sums of all buckets in flight, and stores them in `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, queue: &CommQueue) -> Result<(), Failure> {
        while let Some(bucket) = self.on_the_way.pop_front() {
            let sum = queue.wait_for_tensor()?;
            let mut begin = 0;
            for parameter in &self.parameters[self.buckets[bucket].clone()] {
                let part = begin..begin + parameter.length;
                begin = part.end;
                gradients.set_tensor(parameter.index, sum.clone().slice([part]));
            }
        }
        Ok(())
    }

    /// Returns the bytes of the buckets in flight.
    pub fn bytes(&self) -> u64 {
        let buckets =
            self.on_the_way.iter().flat_map(|bucket| &self.parameters[self.buckets[*bucket].clone()]);
        4 * buckets.map(|parameter| parameter.length as u64).sum::<u64>()
    }

    /// Sends the next bucket of this step.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `buckets`.
    fn send(&mut self, gradients: &Gradients, queue: &CommQueue) {
        let parameters = &self.parameters[self.buckets[self.sent].clone()];
        let tensors = parameters.iter().map(|parameter| gradients.tensor_or_zeros(parameter.index));
        queue.start_all_reduce_of_tensor(Tensor::cat(tensors.collect(), 0));
        self.on_the_way.push_back(self.sent);
        self.sent += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dtrain_protocol::Region;

    fn parameter(unit: usize, range: Range<usize>) -> ModelParameter {
        let (name, shape, region) =
            (format!("{unit}.weight"), vec![range.len()], Region::whole(&[range.len() as u64]));
        ModelParameter { name, shape, region, has_weight_decay: true, unit, range }
    }

    #[test]
    fn buckets_are_whole_parameters_from_the_last_to_the_first() {
        let parameters = [parameter(0, 0..6), parameter(1, 6..9), parameter(1, 9..10), parameter(2, 10..14)];
        let buckets = DeviceGradientBuckets::with_size(&parameters, |_| true, 5);
        let indices = buckets.parameters.iter().map(|parameter| parameter.index).collect::<Vec<_>>();
        assert_eq!((indices, buckets.buckets), (vec![3, 2, 1, 0], vec![0..2, 2..4]));
        let some = DeviceGradientBuckets::with_size(&parameters, |name| name != "1.weight", 5);
        assert_eq!(some.buckets, vec![0..2]);
        assert!(DeviceGradientBuckets::with_size(&parameters, |_| false, 5).buckets.is_empty());
    }
}

//! All-reduce of gradients over the replicas in buckets, while backward still computes other gradients.
//!
//! Backward finishes the units of a model from the last to the first, and the gradients are one vector in
//! the order of the units: so the vector becomes final from its end. It is cut into buckets from the end,
//! at borders that depend on its length alone; a bucket is sent as soon as all of it is final. An
//! all-reduce of a bucket costs one latency and `2 N (n - 1) / n` bytes, less with compression. Nothing
//! here knows a micro-batch: the caller says when gradients are final. The gradients of several steps may
//! be in flight, one after another. Parameters that other ranks hold, those of distributed experts, are a
//! vector of their own, with buckets of its own.

use super::sync::VectorCompressor;
use crate::gradient_accumulation::Gradients;
use crate::mesh::CommQueue;
use crate::network::ModelParameter;
use dtrain_protocol::Failure;
use dtrain_recipes::Compression;
use std::ops::Range;

/// Number of elements in a bucket: 1 MiB of `f32`. Smaller ones cost more latencies, larger ones are sent
/// later.
pub const ELEMENTS: usize = 256 << 10;

/// The buckets of gradients that are all-reduced over the ranks that hold the same parameters.
#[derive(Debug)]
pub struct GradientBuckets {
    /// Buckets in the order in which they are sent: from the end of the vector to its beginning.
    ranges: Vec<Range<usize>>,
    /// Parameters whose gradients are reduced, in the order of the vector.
    parts: Vec<BucketParameter>,
    /// Units of this step that are final, while units behind them may not be.
    finished: Vec<usize>,
    /// Number of buckets of this step that were sent.
    sent: usize,
    /// Number of buckets of all steps in flight.
    travelling: usize,
    /// Buffers of collected buckets, for reuse.
    spare: Vec<Vec<f32>>,
    wire: VectorCompressor,
}

/// A parameter whose gradient is in the buckets.
#[derive(Clone, Debug)]
struct BucketParameter {
    index: usize,
    unit: usize,
    /// Index of its first element in the vector that is cut into buckets.
    begin: usize,
    /// Range of its elements among the gradients of all parameters.
    flat: Range<usize>,
}

impl GradientBuckets {
    /// Creates buckets for the parameters whose names are `wanted`, compressed as `compress` says.
    pub fn new(parameters: &[ModelParameter], compress: Compression, wanted: impl Fn(&str) -> bool) -> Self {
        let mut length = 0;
        let wanted = parameters.iter().enumerate().filter(|(_, parameter)| wanted(&parameter.name));
        let parts = wanted.map(|(index, ModelParameter { unit, range, .. })| {
            length += range.len();
            BucketParameter { index, unit: *unit, begin: length - range.len(), flat: range.clone() }
        });
        let parts = parts.collect();
        let (ranges, wire) = (cut(length, ELEMENTS), VectorCompressor::of(compress, length));
        Self { ranges, parts, finished: Vec::new(), sent: 0, travelling: 0, spare: Vec::new(), wire }
    }

    /// Records that the gradients of unit `unit` are final, and sends every bucket that is now complete.
    pub fn finish(&mut self, unit: usize, gradients: &mut Gradients, queue: &CommQueue) {
        for part in self.parts.iter().filter(|part| part.unit == unit) {
            gradients.to_host(part.index..part.index + 1);
        }
        self.finish_flat(unit, gradients.values(), queue);
    }

    /// Sends the remaining buckets: the gradients of a step are complete, and those of the next may follow.
    pub fn start_remaining(&mut self, gradients: &[f32], queue: &CommQueue) {
        self.send(0, gradients, queue);
        self.sent = 0;
        self.finished.clear();
    }

    /// Waits for the sums of the oldest step in flight, and stores them in `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, queue: &CommQueue) -> Result<(), Failure> {
        self.collect_flat(gradients.values_mut(), queue)?;
        for part in &self.parts {
            gradients.from_host(part.index..part.index + 1);
        }
        Ok(())
    }

    /// Returns the compression of the buckets.
    pub fn wire(&self) -> &VectorCompressor {
        &self.wire
    }

    /// Returns the compression of the buckets for modification.
    pub fn wire_mut(&mut self) -> &mut VectorCompressor {
        &mut self.wire
    }

    fn finish_flat(&mut self, unit: usize, gradients: &[f32], queue: &CommQueue) {
        self.finished.push(unit);
        let is_open = |part: &BucketParameter| !self.finished.contains(&part.unit);
        let open = self.parts.iter().rfind(|part| is_open(part));
        self.send(open.map_or(0, |open| open.begin + open.flat.len()), gradients, queue);
    }

    /// Waits for the sums of the oldest step in flight, and stores them in `gradients`, any vector of the
    /// same length.
    pub fn collect_flat(&mut self, gradients: &mut [f32], queue: &CommQueue) -> Result<(), Failure> {
        for range in &self.ranges {
            let sum = self.wire.receive(queue.wait()?, queue.ranks(), range.len());
            let mut rest = sum.as_slice();
            for flat in pieces(&self.parts, range) {
                let (piece, after) = rest.split_at(flat.len());
                gradients[flat].copy_from_slice(piece);
                rest = after;
            }
            self.spare.push(sum);
            self.travelling -= 1;
        }
        Ok(())
    }

    /// Returns the bytes stored from step to step: buffers in flight, and the residual of error feedback.
    pub fn bytes(&self) -> u64 {
        let values: usize =
            self.ranges.iter().cycle().take(self.travelling).map(ExactSizeIterator::len).sum();
        4 * (values + self.wire.largest().map_or(0, |largest| largest.residual().len())) as u64
    }

    /// Sends every bucket that starts at or behind element `begin`.
    ///
    /// Counted in `planner/src/step/traffic/data_parallel.rs`, `buckets`.
    fn send(&mut self, begin: usize, gradients: &[f32], queue: &CommQueue) {
        while let Some(range) = self.ranges.get(self.sent).filter(|range| range.start >= begin) {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            pieces(&self.parts, range).for_each(|flat| buffer.extend_from_slice(&gradients[flat]));
            self.wire.send(range.clone(), buffer, queue);
            self.sent += 1;
            self.travelling += 1;
        }
    }
}

/// Returns the ranges of elements `range` of the vector of `parts` among all gradients, in order.
fn pieces<'p>(
    parts: &'p [BucketParameter],
    range: &'p Range<usize>,
) -> impl Iterator<Item = Range<usize>> + 'p {
    let first = parts.partition_point(|part| part.begin + part.flat.len() <= range.start);
    let inside = parts[first..].iter().take_while(|part| part.begin < range.end);
    inside.map(|part| {
        let begin = range.start.max(part.begin) - part.begin;
        let end = range.end.min(part.begin + part.flat.len()) - part.begin;
        part.flat.start + begin..part.flat.start + end
    })
}

/// Cuts a vector of `length` elements into ranges of `elements` elements, from its end to its start; the last
/// range may be shorter.
fn cut(length: usize, elements: usize) -> Vec<Range<usize>> {
    let count = length.div_ceil(elements);
    (1..=count).map(|n| length.saturating_sub(n * elements)..length - (n - 1) * elements).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::loopback;
    use dtrain_protocol::Region;
    use std::time::Duration;

    fn parameter(unit: usize, range: Range<usize>) -> ModelParameter {
        let region = Region::whole(&[range.len() as u64]);
        ModelParameter {
            name: format!("{unit}.weight"),
            shape: vec![range.len()],
            region,
            has_weight_decay: true,
            unit,
            range,
        }
    }

    #[test]
    fn buckets_cover_the_vector_from_its_end() {
        assert_eq!(cut(10, 4), vec![6..10, 2..6, 0..2]);
        assert_eq!(cut(8, 4), vec![4..8, 0..4]);
        assert!(cut(0, 4).is_empty());
    }

    #[test]
    fn a_bucket_leaves_when_all_of_it_is_final_and_not_before() {
        let parameters = [
            parameter(0, 0..ELEMENTS),
            parameter(1, ELEMENTS..ELEMENTS + 10),
            parameter(2, ELEMENTS + 10..2 * ELEMENTS),
        ];
        let mut buckets = GradientBuckets::new(&parameters, Compression::None, |_| true);
        let queue = CommQueue::start(Box::new(loopback::SingleRank));
        let mut gradients = vec![1.0; 2 * ELEMENTS];
        buckets.finish_flat(2, &gradients, &queue);
        assert_eq!(buckets.sent, 0, "unit 1 lies in the same bucket");
        buckets.finish_flat(1, &gradients, &queue);
        assert_eq!(buckets.sent, 1);
        buckets.finish_flat(0, &gradients, &queue);
        assert_eq!((buckets.sent, buckets.bytes()), (2, 8 * ELEMENTS as u64));
        buckets.start_remaining(&gradients, &queue);
        assert_eq!(buckets.sent, 0, "the next step starts afresh");
        buckets.collect_flat(&mut gradients, &queue).expect("alone");
        assert_eq!(buckets.bytes(), 0);
    }

    /// One rank sends three steps before the other has begun: it only waits when it needs a sum.
    #[test]
    fn steps_follow_one_another_without_waiting() {
        let parameters = [parameter(0, 0..ELEMENTS + 1)];
        let (ahead, begin) = std::sync::mpsc::channel();
        let mut groups = loopback::threads(2, Duration::from_secs(10)).into_iter();
        let mut run = |first: bool, before: Box<dyn FnOnce() + Send>, after: Box<dyn FnOnce() + Send>| {
            let (group, parameters) = (groups.next().expect("two"), parameters.clone());
            std::thread::spawn(move || {
                before();
                let queue = CommQueue::start(Box::new(group));
                let mut buckets = GradientBuckets::new(&parameters, Compression::None, |_| true);
                let mut gradients = vec![0.0; ELEMENTS + 1];
                for step in 1..=3 {
                    gradients.fill(if first { step as f32 } else { 10.0 * step as f32 });
                    buckets.finish_flat(0, &gradients, &queue);
                    buckets.start_remaining(&gradients, &queue);
                }
                after();
                for step in 1..=3 {
                    buckets.collect_flat(&mut gradients, &queue).expect("both are there");
                    assert!(gradients.iter().all(|sum| *sum == 11.0 * step as f32), "step {step}");
                }
            })
        };
        let one = run(true, Box::new(|| {}), Box::new(move || ahead.send(()).expect("the other waits")));
        let other = run(false, Box::new(move || begin.recv().expect("the first is ahead")), Box::new(|| {}));
        [one, other].into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    #[test]
    fn what_is_not_wanted_lies_between_and_stays() {
        let parameters = [parameter(0, 0..3), parameter(1, 3..5), parameter(2, 5..9)];
        let wanted = |name: &str| name != "1.weight";
        let buckets = GradientBuckets::new(&parameters, Compression::None, wanted);
        assert_eq!(buckets.ranges, vec![0..7]);
        assert_eq!(pieces(&buckets.parts, &(0..7)).collect::<Vec<_>>(), [0..3, 5..9]);
        assert_eq!(pieces(&buckets.parts, &(2..4)).collect::<Vec<_>>(), [2..3, 5..6]);
        assert_eq!(pieces(&buckets.parts, &(1..7)).collect::<Vec<_>>(), [1..3, 5..9]);
        let threads = loopback::threads(2, Duration::from_secs(10)).into_iter().map(|group| {
            let mut buckets = GradientBuckets::new(&parameters, Compression::None, wanted);
            std::thread::spawn(move || {
                let queue = CommQueue::start(Box::new(group));
                let mut gradients: Vec<_> = (0..9).map(|i| i as f32).collect();
                for unit in [2, 1] {
                    buckets.finish_flat(unit, &gradients, &queue);
                    assert_eq!(buckets.sent, 0, "unit 0 is not final");
                }
                buckets.finish_flat(0, &gradients, &queue);
                assert_eq!(buckets.sent, 1);
                buckets.start_remaining(&gradients, &queue);
                buckets.collect_flat(&mut gradients, &queue).expect("both are there");
                gradients
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            assert_eq!(thread.join().expect("no panic"), [0.0, 2.0, 4.0, 3.0, 4.0, 10.0, 12.0, 14.0, 16.0]);
        }
    }

    #[test]
    fn every_rank_ends_with_the_sum_over_the_ranks() {
        let parameters = [parameter(0, 0..300_000), parameter(1, 300_000..700_000)];
        let threads: Vec<_> = loopback::threads(2, Duration::from_secs(10))
            .into_iter()
            .enumerate()
            .map(|(rank, group)| {
                let parameters = parameters.clone();
                std::thread::spawn(move || {
                    let queue = CommQueue::start(Box::new(group));
                    let mut buckets = GradientBuckets::new(&parameters, Compression::None, |_| true);
                    let mut sums = Vec::new();
                    for step in 0..2 {
                        let mut gradients: Vec<_> =
                            (0..700_000).map(|i| (i + 7 * rank + step) as f32).collect();
                        buckets.finish_flat(1, &gradients, &queue);
                        buckets.finish_flat(0, &gradients, &queue);
                        buckets.start_remaining(&gradients, &queue);
                        buckets.collect_flat(&mut gradients, &queue).expect("both are there");
                        sums.push(gradients);
                    }
                    sums
                })
            })
            .collect();
        for thread in threads {
            for (step, sums) in thread.join().expect("no panic").into_iter().enumerate() {
                let expected = |i: usize| (2 * i + 7 + 2 * step) as f32;
                assert!(sums.iter().enumerate().all(|(i, sum)| *sum == expected(i)), "step {step}");
            }
        }
    }
}

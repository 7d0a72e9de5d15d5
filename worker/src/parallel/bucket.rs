//! Sums gradients over the replicas in pieces, while backward still computes the others.
//!
//! Backward finishes the units of a model from the last to the first, and the gradients lie in one vector in the
//! order of the units: so the vector becomes final from its end. It is cut into buckets from the end, at borders
//! that depend on its length alone; a bucket leaves as soon as all of it is final. One all-reduce of a bucket costs
//! one latency and `2 N (n - 1) / n` bytes. Nothing here knows a micro-batch: the caller says when gradients are final.

use super::Courier;
use crate::gradients::Gradients;
use crate::stage::Parameter;
use dtrain_protocol::Failure;
use std::ops::Range;

/// Elements of a bucket: 1 MiB of `f32`. Less pays more latencies, more waits longer before it can leave.
pub const ELEMENTS: usize = 256 << 10;

/// The gradients of one step on their way.
#[derive(Debug)]
pub struct Buckets {
    /// In the order in which they leave: from the end of the vector to its beginning.
    ranges: Vec<Range<usize>>,
    /// Unit and first element of each parameter, in flat order.
    parts: Vec<(usize, usize)>,
    /// Units that are final, though perhaps not all that lie behind them.
    finished: Vec<usize>,
    /// Buckets that left.
    sent: usize,
    /// Buffers that came back, to be used again.
    spare: Vec<Vec<f32>>,
}

impl Buckets {
    /// Cuts the gradients of `parameters`, whose ranges cover one vector without gaps.
    pub fn new(parameters: &[Parameter]) -> Self {
        let length = parameters.iter().map(|parameter| parameter.range.end).max().unwrap_or(0);
        let parts = parameters.iter().map(|parameter| (parameter.unit, parameter.range.start)).collect();
        Self { ranges: cut(length, ELEMENTS), parts, finished: Vec::new(), sent: 0, spare: Vec::new() }
    }

    /// Notes that the gradients of `unit` are final, and sends every bucket that became complete by it.
    pub fn finish(&mut self, unit: usize, gradients: &mut Gradients, courier: &Courier) {
        gradients.to_host(self.parameters_of(unit));
        self.finish_flat(unit, gradients.values(), courier);
    }

    /// Sends what has not left, waits for all sums and puts them into `gradients`.
    pub fn collect(&mut self, gradients: &mut Gradients, courier: &Courier) -> Result<(), Failure> {
        self.collect_flat(gradients.values_mut(), courier)?;
        gradients.from_host(0..self.parts.len());
        Ok(())
    }

    fn finish_flat(&mut self, unit: usize, gradients: &[f32], courier: &Courier) {
        self.finished.push(unit);
        let is_open = |(unit, _): &(usize, usize)| !self.finished.contains(unit);
        let open = self.parts.iter().rposition(is_open);
        let begin = match open {
            Some(open) => self.parts.get(open + 1).map_or(gradients.len(), |(_, begin)| *begin),
            None => 0,
        };
        self.send(begin, gradients, courier);
    }

    fn collect_flat(&mut self, gradients: &mut [f32], courier: &Courier) -> Result<(), Failure> {
        self.send(0, gradients, courier);
        for range in &self.ranges {
            let sum = courier.next()?;
            gradients[range.clone()].copy_from_slice(&sum);
            self.spare.push(sum);
        }
        self.sent = 0;
        self.finished.clear();
        Ok(())
    }

    /// Indices of the parameters of `unit`, which lie side by side.
    fn parameters_of(&self, unit: usize) -> Range<usize> {
        let begin = self.parts.partition_point(|(other, _)| *other < unit);
        begin..self.parts.partition_point(|(other, _)| *other <= unit)
    }

    /// Sends every bucket that lies at or behind element `begin`.
    fn send(&mut self, begin: usize, gradients: &[f32], courier: &Courier) {
        while let Some(range) = self.ranges.get(self.sent).filter(|range| range.start >= begin) {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(&gradients[range.clone()]);
            courier.send_sum(buffer);
            self.sent += 1;
        }
    }
}

/// Ranges of `elements`, from the end of a vector of `length` to its beginning; the last may be shorter.
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

    fn parameter(unit: usize, range: Range<usize>) -> Parameter {
        let region = Region::whole(&[range.len() as u64]);
        Parameter {
            name: format!("{unit}.weight"),
            shape: vec![range.len()],
            region,
            decays: true,
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
        let mut buckets = Buckets::new(&parameters);
        let courier = Courier::start(Box::new(loopback::Alone));
        let mut gradients = vec![1.0; 2 * ELEMENTS];
        buckets.finish_flat(2, &gradients, &courier);
        assert_eq!(buckets.sent, 0, "unit 1 lies in the same bucket");
        buckets.finish_flat(1, &gradients, &courier);
        assert_eq!(buckets.sent, 1);
        buckets.finish_flat(0, &gradients, &courier);
        assert_eq!(buckets.sent, 2);
        buckets.collect_flat(&mut gradients, &courier).expect("alone");
        assert_eq!(buckets.sent, 0, "the next step starts afresh");
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
                    let courier = Courier::start(Box::new(group));
                    let mut buckets = Buckets::new(&parameters);
                    let mut sums = Vec::new();
                    for step in 0..2 {
                        let mut gradients: Vec<_> =
                            (0..700_000).map(|i| (i + 7 * rank + step) as f32).collect();
                        buckets.finish_flat(1, &gradients, &courier);
                        buckets.finish_flat(0, &gradients, &courier);
                        buckets.collect_flat(&mut gradients, &courier).expect("both are there");
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

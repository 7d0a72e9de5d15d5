//! Step totals: losses, counts, the time and stop requests, which the ranks exchange once a step.
//!
//! Every rank's row is gathered by all and added in rank order in `f64`, so that all of them compute the
//! same sums to the last bit, and with them the same decision.

use crate::mesh::CommQueue;
use crate::ops::LossFigures;
use dtrain_protocol::Failure;
use dtrain_protocol::communication_volume::ROW_VALUES;

/// Number of `f32` slots in one row: loss (2), hits (2), count (2), square (2), elapsed (2), ordered.
const SLOTS: usize = ROW_VALUES as usize;

/// The figures of one rank in a step, or their sums over all ranks: `ordered` is then true if it is for any
/// rank.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTotals {
    /// Sum of the losses of this rank's samples (tokens, for a decoder), in nats.
    pub loss_sum: f64,
    /// Number of correct predictions.
    pub hits: u64,
    /// Number of predictions; below 2^48, like `hits`.
    pub count: u64,
    /// Square of a norm of this rank's gradients.
    pub square: f64,
    /// Share of the time limit that has passed by the clock of rank 0, which counts for all; other ranks
    /// send 0.
    pub elapsed: f64,
    /// True if the agent ordered this rank to stop.
    pub ordered: bool,
}

impl StepTotals {
    /// Returns the mean loss in nats; not finite if there are no predictions.
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^48")]
    pub fn loss(&self) -> f64 {
        self.loss_sum / self.count as f64
    }

    /// Returns the share of predictions that are correct.
    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^48")]
    pub fn accuracy(&self) -> f64 {
        self.hits as f64 / self.count as f64
    }

    /// Creates the totals of some micro-batches from their figures.
    pub(crate) fn of(figures: LossFigures) -> Self {
        let LossFigures { loss_sum, hits, count } = figures;
        Self { loss_sum, hits, count, ..Self::default() }
    }

    /// Adds the totals of another rank or of other micro-batches.
    pub fn add(&mut self, other: &Self) {
        self.loss_sum += other.loss_sum;
        self.hits += other.hits;
        self.count += other.count;
        self.square += other.square;
        self.elapsed += other.elapsed;
        self.ordered |= other.ordered;
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are below 2^48")]
    fn row(&self) -> [f32; SLOTS] {
        let [loss, rest] = halves(self.loss_sum);
        let [hits, hits_rest] = halves(self.hits as f64);
        let [count, count_rest] = halves(self.count as f64);
        let [square, square_rest] = halves(self.square);
        let [elapsed, elapsed_rest] = halves(self.elapsed);
        let ordered = if self.ordered { 1.0 } else { 0.0 };
        [loss, rest, hits, hits_rest, count, count_rest, square, square_rest, elapsed, elapsed_rest, ordered]
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made from whole counts")]
    fn of_row(row: &[f32]) -> Self {
        let whole = |at: usize| f64::from(row[at]) + f64::from(row[at + 1]);
        Self {
            loss_sum: whole(0),
            hits: whole(2) as u64,
            count: whole(4) as u64,
            square: whole(6),
            elapsed: whole(8),
            ordered: row[10] > 0.0,
        }
    }
}

/// Splits `value` into two `f32` whose sum keeps 48 bits of it.
#[expect(clippy::cast_possible_truncation, reason = "the rest is carried by the second")]
pub(super) fn halves(value: f64) -> [f32; 2] {
    let first = value as f32;
    let rest = if first.is_finite() { (value - f64::from(first)) as f32 } else { 0.0 };
    [first, rest]
}

/// Starts to gather the totals of all ranks; [`collect`] returns the sums.
///
/// Counted in `planner/src/step/traffic/mod.rs`, `figures`.
pub fn send(totals: &StepTotals, queue: &CommQueue) {
    let mut rows = vec![0.0; SLOTS * queue.ranks() as usize];
    rows[SLOTS * queue.rank() as usize..][..SLOTS].copy_from_slice(&totals.row());
    queue.start_all_gather(rows);
}

/// Waits for the totals of all ranks, and adds them in rank order.
pub fn collect(queue: &CommQueue) -> Result<StepTotals, Failure> {
    let mut totals = StepTotals::default();
    queue.wait()?.chunks_exact(SLOTS).for_each(|row| totals.add(&StepTotals::of_row(row)));
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::loopback;
    use std::time::Duration;

    #[test]
    fn all_ranks_reach_the_same_sums_and_the_same_decision() {
        let groups = loopback::threads(3, Duration::from_secs(10));
        let threads: Vec<_> = groups
            .into_iter()
            .enumerate()
            .map(|(rank, group)| {
                std::thread::spawn(move || {
                    let queue = CommQueue::start(Box::new(group));
                    let totals = StepTotals {
                        loss_sum: 1e9 + 0.125 * rank as f64,
                        hits: (1 << 40) + 1,
                        count: (1 << 41) + rank as u64,
                        square: 0.5 * rank as f64,
                        elapsed: if rank == 0 { 0.3 } else { 0.0 },
                        ordered: rank == 2,
                    };
                    send(&totals, &queue);
                    collect(&queue).expect("all ranks are there")
                })
            })
            .collect();
        let totals_of_all: Vec<_> = threads.into_iter().map(|t| t.join().expect("no panic")).collect();
        for totals in &totals_of_all {
            let expected = StepTotals {
                loss_sum: 3e9 + 0.375,
                hits: 3 * ((1 << 40) + 1),
                count: 3 * (1 << 41) + 3,
                square: 1.5,
                elapsed: totals.elapsed,
                ordered: true,
            };
            assert_eq!(*totals, expected);
            assert!((totals.elapsed - 0.3).abs() < 1e-14, "{}", totals.elapsed);
            assert_eq!(totals.elapsed.to_bits(), totals_of_all[0].elapsed.to_bits());
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_stays_so() {
        for bad in [f64::NAN, f64::INFINITY] {
            assert!(
                !StepTotals::of_row(&StepTotals { loss_sum: bad, ..StepTotals::default() }.row())
                    .loss_sum
                    .is_finite()
            );
        }
    }
}

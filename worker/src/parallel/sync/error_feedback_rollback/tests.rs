//! After an overflow error feedback is in its state without that batch.

use super::*;
use crate::comm::loopback;
use crate::mesh::CommQueue;
use crate::network::ModelParameter;
use crate::parallel::sync::PowerSgdCompressor;
use crate::parallel::{GradientBuckets, GradientReduction};
use dtrain_protocol::Region;
use dtrain_protocol::shuffle::splitmix64;
use dtrain_recipes::Compression;
use std::time::Duration;

const TOP: Compression = Compression::TopK { keep: 0.05 };
const WAYS: [Compression; 2] = [Compression::PowerSgd { rank: 2 }, TOP];

/// A matrix that is sent in factors, and a vector that is not.
const SHAPES: [&[usize]; 2] = [&[12, 10], &[11]];
const LENGTH: usize = 131;

/// One batch of both ranks.
#[derive(Clone, Copy)]
struct Batch {
    seed: u64,
    scale: f32,
    /// Number of the second rank's gradients that are not finite.
    overflows: usize,
}

const fn batch(seed: u64, scale: f32) -> Batch {
    Batch { seed, scale, overflows: 0 }
}

impl Batch {
    /// Returns the gradients of `rank`, multiplied by the scale. They have few digits, so that a power of
    /// two changes none.
    fn gradients(self, rank: u32) -> Vec<f32> {
        let value =
            |index| (splitmix64(self.seed + 100 * u64::from(rank), index) % 1000) as f32 / 512.0 - 1.0;
        let mut values: Vec<f32> = (0..LENGTH as u64).map(|index| self.scale * value(index)).collect();
        if rank == 1 {
            let bad = [f32::INFINITY, f32::NAN, f32::NEG_INFINITY];
            values[3..][..self.overflows].iter_mut().zip(bad.iter().cycle()).for_each(|(v, bad)| *v = *bad);
        }
        values
    }

    fn is_finite(self) -> bool {
        self.overflows == 0
    }
}

/// The sums and the residual of one rank.
#[derive(Debug, PartialEq)]
struct Seen {
    /// The sums of each batch that did not overflow, without its scale.
    sums: Vec<Vec<f32>>,
    residual: Vec<f32>,
    factors: Vec<f32>,
}

fn reduction(compress: Compression) -> GradientReduction {
    let mut begin = 0;
    let parameter = |shape: &[usize]| {
        let range = begin..begin + shape.iter().product::<usize>();
        begin = range.end;
        let region = Region::whole(&shape.iter().map(|side| *side as u64).collect::<Vec<_>>());
        let name = format!("{range:?}");
        ModelParameter { name, shape: shape.to_vec(), region, has_weight_decay: true, unit: 0, range }
    };
    let parameters: Vec<_> = SHAPES.into_iter().map(parameter).collect();
    if let Compression::PowerSgd { rank } = compress {
        return GradientReduction::LowRank(PowerSgdCompressor::new(&parameters, rank));
    }
    let buckets = |all: bool| GradientBuckets::new(&parameters, compress, |_| all);
    GradientReduction::Buckets { common: buckets(true), experts: buckets(false) }
}

/// Begins a batch, and sends the data that can be sent before another begins.
fn leave(reduction: &mut GradientReduction, batch: Batch, queue: &CommQueue) -> Vec<f32> {
    reduction.begin_batch(batch.scale);
    let values = batch.gradients(queue.rank());
    if let GradientReduction::Buckets { common, .. } = reduction {
        common.start_remaining(&values, queue);
    }
    values
}

/// Replaces `values` by the sums of the oldest batch, without their scale, and settles it.
fn arrive(reduction: &mut GradientReduction, batch: Batch, values: &mut [f32], queue: &CommQueue) {
    let arrived = match reduction {
        GradientReduction::LowRank(low_rank) => low_rank.sum(values, queue),
        GradientReduction::Buckets { common, .. } => common.collect_flat(values, queue),
        GradientReduction::DeviceBuckets { .. } | GradientReduction::ReduceScatter(_) => {
            unreachable!("it keeps nothing")
        }
    };
    arrived.expect("all are there");
    let finite = values.iter().all(|value| value.is_finite());
    assert_eq!(finite, batch.is_finite(), "every rank sees in the sums whether one overflowed");
    reduction.resolve_batch(finite);
    values.iter_mut().for_each(|value| *value /= batch.scale);
}

/// Runs `rank` on two ranks, and returns the results.
fn on_two_ranks(rank: impl Fn(&CommQueue) -> Seen + Clone + Send + 'static) -> Vec<Seen> {
    let run = |group: loopback::ThreadRank| {
        let rank = rank.clone();
        std::thread::spawn(move || rank(&CommQueue::start(Box::new(group))))
    };
    let threads: Vec<_> = loopback::threads(2, Duration::from_secs(10)).into_iter().map(run).collect();
    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

fn seen(reduction: &GradientReduction, sums: Vec<Vec<f32>>) -> Seen {
    let residual = reduction.residual().expect("it has error feedback").to_vec();
    let factors = reduction.low_rank().into_iter().flat_map(|low_rank| low_rank.factors());
    Seen { sums, residual, factors: factors.flat_map(|(_, _, values)| values.to_vec()).collect() }
}

/// Returns the results of both ranks for `batches`, each of which ends before the next begins.
fn train(compress: Compression, batches: &[Batch]) -> Vec<Seen> {
    let batches = batches.to_vec();
    on_two_ranks(move |queue| {
        let mut reduction = reduction(compress);
        let mut sums = Vec::new();
        for batch in &batches {
            let mut values = leave(&mut reduction, *batch, queue);
            arrive(&mut reduction, *batch, &mut values, queue);
            if batch.is_finite() {
                sums.push(values);
            }
        }
        seen(&reduction, sums)
    })
}

/// One value that overflows, and more than top-k has room for.
#[test]
fn an_overflow_on_one_rank_leaves_no_trace_on_any() {
    let [first, second, third] = [1, 2, 3].map(|seed| batch(seed, 1024.0));
    for compress in WAYS {
        let wanted = train(compress, &[first, second, third]);
        assert_eq!(wanted[0].sums, wanted[1].sums, "the ranks are alike");
        assert!(wanted.iter().all(|seen| seen.residual.iter().any(|value| *value != 0.0)), "they owe some");
        for overflows in [1, 40] {
            let bad = Batch { overflows, ..batch(9, 1024.0) };
            assert_eq!(train(compress, &[first, bad, second, third]), wanted, "{compress:?}, {overflows}");
            assert_eq!(train(compress, &[bad, bad, first, second, third]), wanted, "{compress:?} at first");
        }
    }
}

#[test]
fn a_scale_that_changes_between_two_batches_changes_no_bit() {
    for compress in WAYS {
        let wanted = train(compress, &[1, 2, 3].map(|seed| batch(seed, 1.0)));
        let [first, second, third] = [(1, 1024.0), (2, 512.0), (3, 2048.0)].map(|(s, scale)| batch(s, scale));
        assert_eq!(train(compress, &[first, second, third]), wanted, "{compress:?}");
        let bad = Batch { overflows: 2, ..batch(9, 1024.0) };
        assert_eq!(train(compress, &[first, bad, second, third]), wanted, "{compress:?} after an overflow");
    }
}

/// If later batches are sent before the overflow of an earlier one is known, all sums and residuals are
/// nevertheless those of the good batches.
#[test]
fn an_overflow_is_taken_back_when_later_batches_are_on_their_way() {
    let bad = Batch { overflows: 40, ..batch(9, 1024.0) };
    let batches = [batch(1, 1024.0), bad, batch(2, 1024.0), batch(3, 512.0), batch(4, 512.0)];
    for ahead in [1, 2] {
        let found = on_two_ranks(move |queue| {
            let mut reduction = reduction(TOP);
            let (mut sums, mut values) = (Vec::new(), vec![0.0; LENGTH]);
            for place in 0..batches.len() + ahead {
                if let Some(batch) = batches.get(place) {
                    drop(leave(&mut reduction, *batch, queue));
                }
                let Some(oldest) = place.checked_sub(ahead) else { continue };
                arrive(&mut reduction, batches[oldest], &mut values, queue);
                if batches[oldest].is_finite() {
                    sums.push(values.clone());
                }
            }
            seen(&reduction, sums)
        });
        assert_eq!(found[0].sums, found[1].sums, "the ranks are alike");
        let good = batches.iter().filter(|batch| batch.is_finite());
        for place in 0..LENGTH {
            let given = good.clone().map(|batch| {
                let both = batch.gradients(0)[place] + batch.gradients(1)[place];
                both / batch.scale
            });
            let (given, arrived) =
                (given.sum::<f32>(), found[0].sums.iter().map(|sums| sums[place]).sum::<f32>());
            let waits: f32 = found.iter().map(|seen| seen.residual[place]).sum();
            assert!((arrived + waits - given).abs() < 1e-4, "{arrived} and {waits} of {given} at {place}");
        }
    }
}

#[test]
fn what_an_older_checkpoint_owes_loses_its_scale_and_what_is_not_finite() {
    for compress in WAYS {
        let mut found = reduction(compress);
        let residual = found.residual_mut().expect("it has error feedback");
        residual.fill(2048.0);
        residual[5] = f32::NAN;
        residual[7] = f32::INFINITY;
        let factors = found.low_rank_mut().into_iter().flat_map(|low_rank| low_rank.factors_mut());
        factors.for_each(|(_, _, values)| values.fill(f32::NAN));
        found.unscale_residual(1024.0);
        let mut wanted = seen(&reduction(compress), Vec::new());
        wanted.residual.fill(2.0);
        wanted.residual[5] = 0.0;
        wanted.residual[7] = 0.0;
        assert_eq!(seen(&found, Vec::new()), wanted);
    }
}

#[test]
fn without_a_loss_scale_nothing_is_kept() {
    let (mut undo, mut residual) = (ErrorFeedbackRollback::default(), vec![1.0]);
    assert!(!undo.resolve(&mut residual, false));
    assert_eq!((residual, undo.bytes()), (vec![1.0], 0));
}

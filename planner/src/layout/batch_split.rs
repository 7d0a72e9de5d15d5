//! The split of the global batch over replicas and micro-batches.

use super::rejection::Rejection;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Range;

/// Largest number of micro-batches per step on one rank, which is sent a list of all its passes.
pub const MOST_MICRO_BATCHES: u64 = 1 << 16;

/// Split of the global batch into micro-batches of one size; each reader (a group of ranks that reads the
/// same samples) has as many as make up its share. Always `micro · (passes of all readers) = global`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "BatchSplitFields", into = "BatchSplitFields")]
pub struct BatchSplit {
    micro: NonZeroU32,
    /// Passes per step of the reader with the largest share.
    micro_batches: NonZeroU32,
    replicas: NonZeroU32,
    /// Passes per step of each reader; empty when all have the same number.
    uneven: Vec<NonZeroU32>,
}

/// Serialized form of a [`BatchSplit`].
#[derive(Clone, Serialize, Deserialize)]
struct BatchSplitFields {
    global: u64,
    micro: NonZeroU32,
    micro_batches: NonZeroU32,
    replicas: NonZeroU32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    uneven: Vec<NonZeroU32>,
}

impl BatchSplit {
    /// Splits `global` samples evenly over `replicas`, in micro-batches of `micro`; `Err` when the product of
    /// the two does not divide `global`.
    pub fn of(global: NonZeroU64, micro: NonZeroU32, replicas: NonZeroU32) -> Result<Self, Rejection> {
        let round = u64::from(micro.get()) * u64::from(replicas.get());
        let uneven = || Rejection::BatchDoesNotDivide {
            batch: global.get(),
            micro: micro.get(),
            replicas: replicas.get(),
        };
        if !global.get().is_multiple_of(round) {
            return Err(uneven());
        }
        let passes = global.get() / round;
        if passes > MOST_MICRO_BATCHES {
            let reason =
                format!("a rank would do {passes} micro-batches a step, of at most {MOST_MICRO_BATCHES}");
            return Err(Rejection::CannotRun(reason));
        }
        let micro_batches = u32::try_from(passes).ok().and_then(NonZeroU32::new).ok_or_else(uneven)?;
        Ok(Self { micro, micro_batches, replicas, uneven: Vec::new() })
    }

    /// Splits a batch in which each reader has its share of samples; `None` when `micro` does not divide
    /// every share, or `shares` is empty.
    pub fn of_shares(shares: &[u64], micro: NonZeroU32) -> Option<Self> {
        let passes = |share: &u64| {
            let whole = share.is_multiple_of(u64::from(micro.get()));
            whole
                .then(|| share / u64::from(micro.get()))
                .and_then(|n| NonZeroU32::new(u32::try_from(n).ok()?))
        };
        let passes: Vec<NonZeroU32> = shares.iter().map(passes).collect::<Option<_>>()?;
        let micro_batches = passes.iter().copied().max()?;
        let is_even = passes.iter().all(|n| *n == micro_batches);
        let replicas = NonZeroU32::new(u32::try_from(passes.len()).ok()?)?;
        Some(Self { micro, micro_batches, replicas, uneven: if is_even { Vec::new() } else { passes } })
    }

    /// Returns the global batch: the samples of one optimizer step over all ranks.
    pub fn global(&self) -> u64 {
        let even = u64::from(self.micro_batches.get()) * u64::from(self.replicas.get());
        let uneven = self.uneven.iter().map(|n| u64::from(n.get())).sum();
        u64::from(self.micro.get()) * if self.uneven.is_empty() { even } else { uneven }
    }

    /// Returns the size of a micro-batch: the samples of one forward pass on one rank.
    pub fn micro(&self) -> u32 {
        self.micro.get()
    }

    /// Returns the number of micro-batches per step of the reader with the largest share.
    pub fn micro_batches(&self) -> NonZeroU32 {
        self.micro_batches
    }

    /// Returns the number of micro-batches per step of reader `reader`.
    pub fn micro_batches_of(&self, reader: u32) -> NonZeroU32 {
        self.uneven.get(reader as usize).copied().unwrap_or(self.micro_batches)
    }

    /// Returns the range of the samples in a step that reader `reader` reads.
    pub fn share(&self, reader: u32) -> Range<u64> {
        let samples = |reader| u64::from(self.micro.get()) * u64::from(self.micro_batches_of(reader).get());
        let begin = (0..reader).map(samples).sum();
        begin..begin + samples(reader)
    }

    /// Returns the number of readers of samples: data-parallel replicas, times the ranks along the expert
    /// axis.
    pub fn replicas(&self) -> u32 {
        self.replicas.get()
    }

    /// Returns the relative work of each data replica, where each has `expert` readers; empty when all are
    /// equal.
    pub fn shares(&self, expert: NonZeroU32) -> Vec<u32> {
        self.uneven.iter().step_by(expert.get() as usize).map(|n| n.get()).collect()
    }
}

impl TryFrom<BatchSplitFields> for BatchSplit {
    type Error = String;

    fn try_from(parts: BatchSplitFields) -> Result<Self, String> {
        let BatchSplitFields { global, micro, micro_batches, replicas, uneven } = parts;
        if !uneven.is_empty() && uneven.len() != replicas.get() as usize {
            return Err(format!("the batch has {} shares for {replicas} replicas", uneven.len()));
        }
        let most = uneven.iter().copied().max().unwrap_or(micro_batches);
        let split = Self { micro, micro_batches: most, replicas, uneven };
        if split.global() == global {
            return Ok(split);
        }
        Err(format!("the parts of the batch make {}, not {global}", split.global()))
    }
}

impl From<BatchSplit> for BatchSplitFields {
    fn from(split: BatchSplit) -> Self {
        let global = split.global();
        let BatchSplit { micro, micro_batches, replicas, uneven } = split;
        Self { global, micro, micro_batches, replicas, uneven }
    }
}

/// Returns all divisors of `n` in ascending order.
pub fn divisors(n: u64) -> Vec<u64> {
    let (mut low, mut high) = (Vec::new(), Vec::new());
    let mut d = 1;
    while d * d <= n {
        if n.is_multiple_of(d) {
            low.push(d);
            if d * d != n {
                high.push(n / d);
            }
        }
        d += 1;
    }
    low.extend(high.into_iter().rev());
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(global: u64, micro: u32, replicas: u32) -> Result<BatchSplit, Rejection> {
        let positive = |n| NonZeroU32::new(n).expect("tests use positive counts");
        BatchSplit::of(
            NonZeroU64::new(global).expect("tests use positive batches"),
            positive(micro),
            positive(replicas),
        )
    }

    proptest! {
        #[test]
        fn the_parts_always_make_the_batch(global in 1u64..5_000, micro in 1u32..40, replicas in 1u32..10) {
            match split(global, micro, replicas) {
                Ok(parts) => prop_assert_eq!(parts.global(), global),
                Err(_) => prop_assert!(!global.is_multiple_of(u64::from(micro * replicas))),
            }
        }

        #[test]
        fn divisors_are_those_that_divide(n in 1u64..3_000) {
            let brute: Vec<_> = (1..=n).filter(|d| n.is_multiple_of(*d)).collect();
            prop_assert_eq!(divisors(n), brute);
        }
    }

    #[test]
    fn a_batch_that_does_not_divide_is_refused_with_its_numbers() {
        let refused = split(16, 3, 2).expect_err("6 does not divide 16");
        assert_eq!(
            refused.to_string(),
            "a batch of 16 cannot be split into micro-batches of 3 on 2 replicas"
        );
    }

    #[test]
    fn a_stored_split_is_checked_when_read() {
        let stored = serde_json::to_string(&split(24, 3, 2).expect("it divides")).expect("it serializes");
        assert_eq!(stored, r#"{"global":24,"micro":3,"micro_batches":4,"replicas":2}"#);
        assert!(serde_json::from_str::<BatchSplit>(&stored.replace("24", "25")).is_err());
    }

    proptest! {
        #[test]
        fn uneven_shares_cover_the_batch_once_in_order(passes in prop::collection::vec(1u64..9, 1..6), micro in 1u32..5) {
            let micro = NonZeroU32::new(micro).expect("positive");
            let shares: Vec<u64> = passes.iter().map(|n| n * u64::from(micro.get())).collect();
            let split = BatchSplit::of_shares(&shares, micro).expect("every share is made of micro-batches");
            prop_assert_eq!(split.global(), shares.iter().sum::<u64>());
            prop_assert_eq!(u64::from(split.micro_batches().get()), *passes.iter().max().expect("not empty"));
            let mut next = 0;
            for (reader, share) in (0..split.replicas()).zip(&shares) {
                prop_assert_eq!(split.share(reader), next..next + share);
                prop_assert_eq!(u64::from(split.micro_batches_of(reader).get()) * u64::from(micro.get()), *share);
                next += share;
            }
            let stored = serde_json::to_string(&split).expect("it serializes");
            prop_assert_eq!(serde_json::from_str::<BatchSplit>(&stored).expect("it is what we wrote"), split);
        }
    }

    #[test]
    fn a_share_that_is_no_whole_number_of_micro_batches_is_no_split() {
        let two = NonZeroU32::new(2).expect("positive");
        assert_eq!(BatchSplit::of_shares(&[6, 3], two), None);
        assert_eq!(BatchSplit::of_shares(&[6, 0], two), None, "a replica without work waits for nothing");
        assert_eq!(BatchSplit::of_shares(&[], two), None);
    }
}

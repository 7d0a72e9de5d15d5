//! How the global batch is split over replicas and forward passes.

use crate::Rejection;
use serde::{Deserialize, Serialize};
use std::num::{NonZeroU32, NonZeroU64};

/// How the global batch is split. A value that exists keeps `micro · micro_batches · replicas = global`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Parts", into = "Parts")]
pub struct BatchSplit {
    micro: NonZeroU32,
    micro_batches: NonZeroU32,
    replicas: NonZeroU32,
}

/// The parts as they are stored.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Parts {
    global: u64,
    micro: NonZeroU32,
    micro_batches: NonZeroU32,
    replicas: NonZeroU32,
}

impl BatchSplit {
    /// Splits `global` samples; `Err` when `micro · replicas` does not divide it.
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
        let micro_batches =
            u32::try_from(global.get() / round).ok().and_then(NonZeroU32::new).ok_or_else(uneven)?;
        Ok(Self { micro, micro_batches, replicas })
    }

    /// Samples of one optimizer step over all ranks.
    pub fn global(&self) -> u64 {
        u64::from(self.micro.get()) * u64::from(self.micro_batches.get()) * u64::from(self.replicas.get())
    }

    /// Samples of one forward pass on one rank.
    pub fn micro(&self) -> u32 {
        self.micro.get()
    }

    /// Forward passes of one step on one rank.
    pub fn micro_batches(&self) -> NonZeroU32 {
        self.micro_batches
    }

    /// Data-parallel replicas.
    pub fn replicas(&self) -> u32 {
        self.replicas.get()
    }
}

impl TryFrom<Parts> for BatchSplit {
    type Error = String;

    fn try_from(parts: Parts) -> Result<Self, String> {
        let split = Self { micro: parts.micro, micro_batches: parts.micro_batches, replicas: parts.replicas };
        if split.global() == parts.global {
            return Ok(split);
        }
        Err(format!("the parts of the batch make {}, not {}", split.global(), parts.global))
    }
}

impl From<BatchSplit> for Parts {
    fn from(split: BatchSplit) -> Self {
        let BatchSplit { micro, micro_batches, replicas } = split;
        Self { global: split.global(), micro, micro_batches, replicas }
    }
}

/// All divisors of `n`, ascending; not only powers of two.
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
}

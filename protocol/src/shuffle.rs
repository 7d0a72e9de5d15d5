//! The shuffle: the order of samples as a function of (seed, epoch), independent of the layout.
//!
//! A keyed permutation of `0..n` without a table: a four-round Feistel network over the next power of four,
//! iterated until the result is in range (at most four times on average). It needs O(1) memory and computes
//! any position directly, so a run resumes from its sample cursor alone.

/// Returns the sample at position `cursor` of an endless shuffled stream over `samples` samples.
///
/// `cursor / samples` is the epoch; each epoch has its own permutation. Panics if `samples` is 0.
pub fn shuffled_sample(seed: u64, samples: u64, cursor: u64) -> u64 {
    assert!(samples > 0, "a data set has at least one sample");
    permute(splitmix64(seed, cursor / samples), samples, cursor % samples)
}

/// Returns the image of `index` under a bijection of `0..n` chosen by `key`.
fn permute(key: u64, n: u64, index: u64) -> u64 {
    let bits = (64 - (n - 1).leading_zeros()).max(2).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let mut x = index;
    loop {
        let (mut left, mut right) = (x >> bits, x & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (splitmix64(key ^ round, right) & mask));
        }
        x = (left << bits) | right;
        if x < n {
            return x;
        }
    }
}

/// Mixes two words into one with the finalizer of SplitMix64.
pub fn splitmix64(a: u64, b: u64) -> u64 {
    let mut z = a ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_epoch_visits_every_sample_once(seed: u64, samples in 1u64..500, epoch in 0u64..3) {
            let mut seen: Vec<_> = (0..samples).map(|i| shuffled_sample(seed, samples, epoch * samples + i)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..samples).collect::<Vec<_>>());
        }
    }

    #[test]
    fn epochs_differ_and_are_shuffled() {
        let epoch = |e: u64| (0..1000).map(|i| shuffled_sample(7, 1000, e * 1000 + i)).collect::<Vec<_>>();
        assert_ne!(epoch(0), epoch(1));
        let fixed = epoch(0).iter().enumerate().filter(|(i, s)| *i as u64 == **s).count();
        assert!(fixed < 10, "a random permutation of 1000 fixes about one point, this one {fixed}");
    }
}

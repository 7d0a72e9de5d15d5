//! Half-precision all-reduce: values are sent in 16 bits.
//!
//! Values are rounded twice: on their way to the rank that adds them, and as the sum on its way to all. In
//! between the addition is in `f32`, in the order of ranks, so all ranks get the same bits. A block begins
//! with the power of two that its values were multiplied by, because gradients may be too small for an
//! `f16`.

use crate::comm::{CommError, ProcessGroup, rank_range};
use bytemuck::Pod;
use dtrain_protocol::communication_volume::fp16_block_values;
use dtrain_recipes::Compression;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// A 16-bit floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HalfFormat {
    /// IEEE half precision: 11 bits of mantissa, from 6e-8 to 65504.
    F16,
    /// Bfloat16: 8 bits of mantissa, in the range of an `f32`.
    Bf16,
}

/// Number of values that are scaled at a time: they fit into the first-level cache.
const CHUNK: usize = 1024;

impl HalfFormat {
    /// Returns the 16-bit format of the compression `compress`; `None` if it has none.
    pub fn of(compress: Compression) -> Option<Self> {
        match compress {
            Compression::F16 => Some(Self::F16),
            Compression::Bf16 => Some(Self::Bf16),
            Compression::None | Compression::PowerSgd { .. } | Compression::TopK { .. } => None,
        }
    }

    /// Packs `values` into `block`: first their scale, then two values in each element.
    fn pack(self, values: &[f32], block: &mut [f32]) {
        let scale = self.scale(values);
        block[0] = scale;
        match self {
            Self::F16 => pack::<f16>(values, scale, &mut block[1..]),
            Self::Bf16 => pack::<bf16>(values, scale, &mut block[1..]),
        }
    }

    /// Unpacks the values of `block` into `values`, without their scale.
    fn unpack(self, block: &[f32], values: &mut [f32]) {
        match self {
            Self::F16 => unpack::<f16>(&block[1..], values),
            Self::Bf16 => unpack::<bf16>(&block[1..], values),
        }
        let back = 1.0 / block[0];
        values.iter_mut().for_each(|value| *value *= back);
    }

    /// Returns the power of two that brings the largest of `values` below the largest `f16`; 1 for bfloat16.
    fn scale(self, values: &[f32]) -> f32 {
        let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        if self == Self::Bf16 || largest == 0.0 || !largest.is_finite() {
            return 1.0;
        }
        // Exponents of an `f32` are stored with 127 added. The smallest values are not scaled up fully.
        let stored = (largest.to_bits() >> 23).max(27);
        f32::from_bits((127 + 127 + 14 - stored) << 23)
    }
}

fn pack<H: Pod>(values: &[f32], scale: f32, room: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    let halves: &mut [H] = bytemuck::cast_slice_mut(room);
    let mut scaled = [0.0; CHUNK];
    for (halves, values) in halves.chunks_mut(CHUNK).zip(values.chunks(CHUNK)) {
        let scaled = &mut scaled[..values.len()];
        scaled.iter_mut().zip(values).for_each(|(scaled, value)| *scaled = value * scale);
        halves[..values.len()].convert_from_f32_slice(scaled);
    }
}

fn unpack<H: Pod>(room: &[f32], values: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    let halves: &[H] = bytemuck::cast_slice(room);
    halves[..values.len()].convert_to_f32_slice(values);
}

/// Replaces `values` by their sum over the ranks; each value is sent in 16 bits. Sends `2 N (n - 1) / n`
/// bytes for `N` bytes of halves, and a scale for each block.
pub(super) fn sum(
    group: &mut dyn ProcessGroup,
    values: &mut [f32],
    half: HalfFormat,
) -> Result<(), CommError> {
    let (length, ranks) = (values.len(), group.size());
    let block = usize::try_from(fp16_block_values(length as u64, ranks)).expect("it is less than the values");
    let mut blocks = vec![0.0; block * ranks as usize];
    for (rank, block) in (0..ranks).zip(blocks.chunks_exact_mut(block)) {
        half.pack(&values[rank_range(length, rank, ranks)], block);
    }
    let mut arrived = vec![0.0; blocks.len()];
    group.all_to_all(&blocks, &mut arrived)?;
    let own = &mut values[rank_range(length, group.rank(), ranks)];
    let mut addend = vec![0.0; own.len()];
    own.fill(0.0);
    for block in arrived.chunks_exact(block) {
        half.unpack(block, &mut addend);
        own.iter_mut().zip(&addend).for_each(|(sum, addend)| *sum += addend);
    }
    half.pack(own, &mut blocks[block * group.rank() as usize..][..block]);
    group.all_gather(&mut blocks)?;
    for (rank, block) in (0..ranks).zip(blocks.chunks_exact(block)) {
        half.unpack(block, &mut values[rank_range(length, rank, ranks)]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comm::loopback;
    use proptest::prelude::*;
    use std::time::Duration;

    /// Returns each rank's values after the sum, and the bytes that it sent.
    fn summed(half: HalfFormat, values: &[Vec<f32>]) -> Vec<(Vec<f32>, u64)> {
        let groups = loopback::threads(u32::try_from(values.len()).expect("few"), Duration::from_secs(10));
        let rank = |(mut group, mut values): (loopback::ThreadRank, Vec<f32>)| {
            std::thread::spawn(move || {
                sum(&mut group, &mut values, half).expect("all are there");
                (values, group.bytes_sent())
            })
        };
        let threads: Vec<_> = groups.into_iter().zip(values.to_vec()).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    }

    /// Returns half a unit in the last place, twice.
    fn doubt(half: HalfFormat) -> f32 {
        match half {
            HalfFormat::F16 => 2f32.powi(-11),
            HalfFormat::Bf16 => 2f32.powi(-8),
        }
    }

    proptest! {
        #[test]
        fn all_ranks_end_with_the_same_sum_within_its_rounding(
            (length, ranks) in (1usize..3000, 1u32..5), seed in any::<u64>(), exponent in -30i32..20,
        ) {
            let value = |rank: u32, index: usize| {
                let bits = dtrain_protocol::shuffle::splitmix64(seed, (u64::from(rank) << 32) + index as u64);
                (bits as f32 / u64::MAX as f32 - 0.5) * 2f32.powi(exponent)
            };
            let all: Vec<Vec<f32>> =
                (0..ranks).map(|rank| (0..length).map(|index| value(rank, index)).collect()).collect();
            for half in [HalfFormat::F16, HalfFormat::Bf16] {
                let found = summed(half, &all);
                prop_assert!(found.iter().all(|rank| *rank == found[0]));
                for (index, sum) in found[0].0.iter().enumerate() {
                    let expected: f32 = all.iter().map(|values| values[index]).sum();
                    let parts: f32 = all.iter().map(|values| values[index].abs()).sum();
                    // The smallest values lose more digits than the largest of their block.
                    let most = 2.0 * doubt(half) * parts + 2f32.powi(exponent - 22);
                    prop_assert!((sum - expected).abs() <= most, "{half:?}: {sum}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn values_of_any_size_travel() {
        for half in [HalfFormat::F16, HalfFormat::Bf16] {
            for size in [f32::MIN_POSITIVE, 1e-30, 1e-7, 1.0, 65_504.0, 1e30] {
                let mut block = [0.0; 3];
                half.pack(&[size, -size / 2.0, 0.0], &mut block);
                let mut back = [7.0; 3];
                half.unpack(&block, &mut back);
                assert!(
                    (back[0] / size - 1.0).abs() <= doubt(half),
                    "{half:?}: {size} arrives as {}",
                    back[0]
                );
                assert_eq!((back[1], back[2]), (-back[0] / 2.0, 0.0));
            }
            for bad in [f32::NAN, f32::INFINITY] {
                let found = summed(half, &[vec![1.0, bad, 2.0], vec![1.0; 3]]);
                assert!(found.iter().all(|(sum, _)| !sum[1].is_finite()), "it is not hidden");
            }
        }
    }

    #[test]
    fn half_of_the_bytes_travel() {
        let values = vec![vec![1.0; 10_000]; 4];
        let scales = 2 * 3 * 4;
        for (sum, sent) in summed(HalfFormat::Bf16, &values) {
            assert_eq!((sum, sent), (vec![4.0; 10_000], 2 * 2 * 10_000 / 4 * 3 + scales));
        }
    }
}

//! Shares of the writing of a checkpoint, among ranks that hold the same elements.

use dtrain_protocol::Rank;
use std::collections::BTreeMap;
use std::ops::Range;

/// The part of one tensor that a rank holds, with the other ranks that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorShard {
    /// Range of the elements that the rank holds, as offsets into its region of the tensor.
    pub range: Range<u64>,
    /// All ranks that hold the same elements, in ascending order.
    pub holders: Vec<Rank>,
}

/// Returns the elements that `rank` writes, as (index in `all`, elements within the rank's region), in
/// ascending order.
///
/// Tensors that the same ranks hold are laid end to end and cut into contiguous parts that differ by at
/// most one element, one part for each rank. So every element is written exactly once if all holders call
/// this with the same tensors in the same order.
pub fn write_shares(all: &[TensorShard], rank: Rank) -> Vec<(usize, Range<u64>)> {
    let mut together = BTreeMap::<&[Rank], Vec<usize>>::new();
    for (index, held) in all.iter().enumerate() {
        together.entry(&held.holders).or_default().push(index);
    }
    let mut shares = Vec::new();
    for (holders, indices) in together {
        let place = holders.iter().position(|holder| *holder == rank).expect("a rank holds what it writes");
        let len = |index: &usize| all[*index].range.end - all[*index].range.start;
        let sizes: Vec<_> = indices.iter().map(len).collect();
        for (index, part) in split_evenly(&sizes, place, holders.len()) {
            let (index, begin) = (indices[index], all[indices[index]].range.start);
            shares.push((index, begin + part.start..begin + part.end));
        }
    }
    shares.sort_unstable_by_key(|(index, _)| *index);
    shares
}

/// Returns part number `index` of `parts` equal parts of tensors of `sizes` elements, laid end to end, as
/// (index of the tensor, elements).
fn split_evenly(sizes: &[u64], index: usize, parts: usize) -> Vec<(usize, Range<u64>)> {
    let total: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
    let cut = |index: usize| total * index as u128 / parts as u128;
    let (begin, end) = (cut(index), cut(index + 1));
    let mut shares = Vec::new();
    let mut at = 0u128;
    for (tensor, size) in sizes.iter().enumerate() {
        let size = u128::from(*size);
        let (low, high) = (begin.clamp(at, at + size), end.clamp(at, at + size));
        if low < high {
            #[expect(clippy::cast_possible_truncation, reason = "both are at most `size`, a u64")]
            shares.push((tensor, (low - at) as u64..(high - at) as u64));
        }
        at += size;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn shares_cover_what_ranks_hold_once(
            sizes in prop::collection::vec((0u64..50, any::<bool>()), 0..12), ranks in 1u32..9,
        ) {
            // Some tensors are held by all ranks; of the others every rank has its own.
            let held = |rank: u32| -> Vec<_> {
                let held = |(size, is_common): &(u64, bool)| {
                    let holders = if *is_common { (0..ranks).map(Rank).collect() } else { vec![Rank(rank)] };
                    TensorShard { range: 7..7 + size, holders }
                };
                sizes.iter().map(held).collect()
            };
            let mut next = vec![7; sizes.len()];
            let mut counts = Vec::new();
            for rank in 0..ranks {
                let shares = write_shares(&held(rank), Rank(rank));
                let common = shares.iter().filter(|(index, _)| sizes[*index].1);
                counts.push(common.map(|(_, range)| range.end - range.start).sum::<u64>());
                for (index, range) in shares {
                    let (size, is_common) = sizes[index];
                    if is_common {
                        prop_assert_eq!(range.start, next[index]);
                        next[index] = range.end;
                    } else {
                        prop_assert_eq!(range, 7..7 + size);
                    }
                }
            }
            for ((size, is_common), next) in sizes.iter().zip(next) {
                prop_assert!(!is_common || next == 7 + size);
            }
            prop_assert!(counts.iter().all(|a| counts.iter().all(|b| a.abs_diff(*b) <= 1)));
        }
    }
}

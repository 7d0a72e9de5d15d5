//! Communication volume: sizes of the messages between ranks, shared by the worker and the planner's cost
//! model.

/// Number of values (`f32`) per rank in the table of losses, counts and flags that all ranks exchange in each
/// step.
pub const ROW_VALUES: u64 = 11;

/// Returns the size, in `f32` values, of the block that each of `ranks` ranks sends to every other one in a
/// 16-bit all-reduce of `values` values: a scale, then two values per `f32`.
pub fn fp16_block_values(values: u64, ranks: u32) -> u64 {
    1 + values.div_ceil(u64::from(ranks)).div_ceil(2)
}

/// Returns the number of values that top-k compression sends out of `values` for the share `keep`: at least
/// one, if there are any.
pub fn top_k_count(values: u64, keep: f64) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
    let kept = (values as f64 * keep).ceil();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive count")]
    let kept = kept as u64;
    kept.clamp(values.min(1), values)
}

/// Returns the numbers of rows and columns of a parameter of `shape` as a matrix: its first dimension, and
/// the product of the others.
pub fn matrix(shape: &[u64]) -> [u64; 2] {
    let rows = shape.first().copied().unwrap_or(1);
    [rows, shape.iter().skip(1).product()]
}

/// Returns `true` if two factors of rank `rank` are smaller than the matrix, so that it is worth compressing.
pub fn is_low_rank([rows, columns]: [u64; 2], rank: u32) -> bool {
    u64::from(rank) * (rows + columns) < rows * columns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_room_for_the_longest_part() {
        assert_eq!(
            [
                fp16_block_values(8, 2),
                fp16_block_values(9, 2),
                fp16_block_values(10, 2),
                fp16_block_values(1, 4)
            ],
            [3, 4, 4, 2]
        );
    }

    #[test]
    fn something_always_travels() {
        let kept = [(0, 0.5), (10, 0.01), (1000, 0.01), (1001, 0.01), (7, 1.0)];
        assert_eq!(kept.map(|(values, keep)| top_k_count(values, keep)), [0, 1, 10, 11, 7]);
    }

    #[test]
    fn factors_travel_where_they_are_smaller() {
        assert_eq!([matrix(&[8, 4, 3, 3]), matrix(&[7]), matrix(&[2, 9])], [[8, 36], [7, 1], [2, 9]]);
        assert!(is_low_rank([8, 36], 4) && !is_low_rank([8, 8], 4) && !is_low_rank([700, 1], 1));
    }
}

//! Top-k compression: sends the largest values, each with its index, and keeps the others for the next
//! step.
//!
//! Values that a rank does not send are added to those of the next step (error feedback, Stich et al.
//! 2018). Without that, values that are always small would never count. This residual is unscaled.

use super::error_feedback_rollback::ErrorFeedbackRollback;
use dtrain_protocol::communication_volume::top_k_count;
use std::ops::Range;

/// The top-k compressor of one vector, with its residual.
#[derive(Debug)]
pub struct TopKCompressor {
    keep: f64,
    residual: Vec<f32>,
    /// Factor by which the values of the current batch are multiplied.
    scale: f32,
    undo: ErrorFeedbackRollback,
}

impl TopKCompressor {
    /// Creates the compressor of a vector of `length` values, which sends the share `keep` of them.
    pub fn new(length: usize, keep: f64) -> Self {
        Self { keep, residual: vec![0.0; length], scale: 1.0, undo: ErrorFeedbackRollback::default() }
    }

    /// Records the start of a batch whose values are multiplied by `scale`, a power of two.
    pub fn begin(&mut self, scale: f32) {
        self.scale = scale;
        self.undo.begin(&self.residual);
    }

    /// Settles the oldest batch in flight; unless its sums are `finite`, its additions are rolled back.
    pub fn resolve(&mut self, finite: bool) {
        self.undo.resolve(&mut self.residual, finite);
    }

    /// Returns the residual of error feedback: the values that were not sent yet.
    pub fn residual(&self) -> &[f32] {
        &self.residual
    }

    /// Returns the residual of error feedback, to be replaced by that of a checkpoint.
    pub fn residual_mut(&mut self) -> &mut [f32] {
        &mut self.residual
    }

    /// Fills this rank's row of `rows`, which has one row for each of `ranks` ranks: indices, then values.
    /// `values` are the elements `range` of the vector.
    pub fn compress(
        &mut self,
        range: Range<usize>,
        values: &[f32],
        (rank, ranks): (u32, u32),
        rows: &mut Vec<f32>,
    ) {
        let (scale, back) = (self.scale, self.scale.recip());
        let owed = &mut self.residual[range.clone()];
        owed.iter_mut().zip(values).for_each(|(owed, value)| *owed += value * back);
        let count = usize::try_from(top_k_count(owed.len() as u64, self.keep)).expect("at most all");
        let mut places: Vec<u32> = (0..u32::try_from(owed.len()).expect("a bucket is small")).collect();
        // Among equals the first goes first, so that the same values always give the same places.
        let size = |place: &u32| owed[*place as usize].abs();
        let order = |a: &u32, b: &u32| size(b).total_cmp(&size(a)).then(a.cmp(b));
        if count < places.len() {
            places.select_nth_unstable_by(count, order);
            places.truncate(count);
        }
        rows.clear();
        rows.resize(2 * count * ranks as usize, 0.0);
        let (to, sent) = rows[2 * count * rank as usize..][..2 * count].split_at_mut(count);
        for ((to, sent), place) in to.iter_mut().zip(sent).zip(places) {
            *to = f32::from_bits(place);
            *sent = scale * std::mem::take(&mut owed[place as usize]);
        }
        // Values that are not finite are sent first, so that all ranks notice and roll this batch back. The
        // rest of an overflow must not spoil batches that are sent before that.
        if let Some(before) = self.undo.newest() {
            let both = owed.iter_mut().zip(&before[range]);
            both.filter(|(owed, _)| !owed.is_finite()).for_each(|(owed, before)| *owed = *before);
        }
    }

    /// Replaces `sum` by the sum of the rows of all `ranks` ranks, added in the order of ranks.
    pub fn decompress_sum(rows: &[f32], ranks: u32, sum: &mut [f32]) {
        sum.fill(0.0);
        for row in rows.chunks_exact(rows.len() / ranks as usize) {
            let (places, values) = row.split_at(row.len() / 2);
            for (place, value) in places.iter().zip(values) {
                sum[place.to_bits() as usize] += value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the row that `sender` sends of `values` at `range`, among ranks of which it is one.
    fn left(sender: &mut TopKCompressor, range: Range<usize>, values: &[f32], place: (u32, u32)) -> Vec<f32> {
        let mut rows = vec![8.0; 3];
        sender.compress(range, values, place, &mut rows);
        rows
    }

    #[test]
    fn the_largest_travel_and_the_others_wait() {
        let mut sender = TopKCompressor::new(6, 0.3);
        let mut sum = vec![9.0; 4];
        let rows = left(&mut sender, 2..6, &[0.5, -3.0, 1.0, 2.0], (0, 1));
        TopKCompressor::decompress_sum(&rows, 1, &mut sum);
        assert_eq!(sum, [0.0, -3.0, 0.0, 2.0], "two of four");
        assert_eq!(sender.residual(), [0.0, 0.0, 0.5, 0.0, 1.0, 0.0]);
        let rows = left(&mut sender, 2..6, &[0.75, 0.5, 0.0, 0.5], (0, 1));
        TopKCompressor::decompress_sum(&rows, 1, &mut sum);
        assert_eq!(sum, [1.25, 0.0, 1.0, 0.0], "what waited counts");
        assert_eq!(sender.residual(), [0.0, 0.0, 0.0, 0.5, 0.0, 0.5]);
    }

    #[test]
    fn rows_are_added_rank_by_rank() {
        let values = [[4.0, 1.0, 0.0], [0.0, 1.0, 5.0]];
        let mut rows = vec![0.0f32; 4];
        for (rank, values) in (0..).zip(&values) {
            let mut sender = TopKCompressor::new(3, 0.01);
            let own = left(&mut sender, 0..3, values, (rank, 2));
            rows.iter_mut()
                .zip(own)
                .for_each(|(row, own)| *row = f32::from_bits(row.to_bits() | own.to_bits()));
        }
        let mut sum = [7.0; 3];
        TopKCompressor::decompress_sum(&rows, 2, &mut sum);
        assert_eq!(sum, [4.0, 0.0, 5.0]);
    }

    /// Over many steps everything arrives: the sent values and the residual are the sum of the given ones.
    #[test]
    fn nothing_is_lost_on_the_way() {
        let mut sender = TopKCompressor::new(50, 0.1);
        let (mut arrived, mut given) = (vec![0.0; 50], vec![0.0; 50]);
        for step in 0..40u64 {
            let value = |index: u64| (dtrain_protocol::shuffle::splitmix64(step, index) % 64) as f32 - 32.0;
            let values: Vec<f32> = (0..50).map(value).collect();
            let mut sum = vec![0.0; 50];
            TopKCompressor::decompress_sum(&left(&mut sender, 0..50, &values, (0, 1)), 1, &mut sum);
            arrived.iter_mut().zip(&sum).for_each(|(all, sum)| *all += sum);
            given.iter_mut().zip(&values).for_each(|(all, value)| *all += value);
        }
        arrived.iter_mut().zip(sender.residual()).for_each(|(all, waits)| *all += waits);
        assert_eq!(arrived, given);
    }

    #[test]
    fn what_is_not_a_number_travels() {
        let mut sum = [0.0; 8];
        let values = [1.0, 2.0, f32::NAN, 3.0, 1e30, 0.0, 1.0, 1.0];
        let rows = left(&mut TopKCompressor::new(8, 0.1), 0..8, &values, (0, 1));
        TopKCompressor::decompress_sum(&rows, 1, &mut sum);
        assert!(sum[2].is_nan());
    }
}

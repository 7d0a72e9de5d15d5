//! Softmax of rows of scores, and the cross-entropy after it.

use super::scalar::{exp, max16, sum16};

simd! {
    /// Computes softmax in place, of the values of each row, `n` long, in the range that `visible` has for it;
    /// the rest becomes 0. `log_sums` receives the logarithm of each row's sum of exponentials.
    fn masked_softmax(rows: &mut [f32], n: usize, visible: &[[usize; 2]], log_sums: &mut [f32]) {
        for ((row, [low, high]), log_sum) in rows.chunks_exact_mut(n).zip(visible).zip(log_sums) {
            let (before, rest) = row.split_at_mut(*low);
            let (seen, ahead) = rest.split_at_mut(*high - *low);
            let largest = max16(seen);
            for x in seen.iter_mut() {
                *x = exp(*x - largest);
            }
            let sum = sum16(seen.len(), |j| seen[j]);
            let inverse = 1.0 / sum;
            for x in seen.iter_mut() {
                *x *= inverse;
            }
            before.fill(0.0);
            ahead.fill(0.0);
            *log_sum = largest + sum.ln();
        }
    }

    /// Computes the softmax of rows, each `n` long, that continue earlier rows, in the range that `visible` has
    /// for each: each of `log_sums` is the logarithm of a row's sum of exponentials so far, and is updated.
    /// Outputs of the earlier part must be multiplied by their factor in `factors`.
    fn softmax_on(
        rows: &mut [f32],
        n: usize,
        visible: &[[usize; 2]],
        log_sums: &mut [f32],
        factors: &mut [f32],
    ) {
        let places = visible.iter().zip(log_sums).zip(factors);
        for (row, (([low, high], log_sum), factor)) in rows.chunks_exact_mut(n).zip(places) {
            let (hidden, rest) = row.split_at_mut(*low);
            let (seen, ahead) = rest.split_at_mut(*high - *low);
            hidden.fill(0.0);
            ahead.fill(0.0);
            let largest = max16(seen).max(*log_sum);
            for x in seen.iter_mut() {
                *x = exp(*x - largest);
            }
            let before = exp(*log_sum - largest);
            let sum = sum16(seen.len(), |j| seen[j]) + before;
            let inverse = 1.0 / sum;
            for x in seen.iter_mut() {
                *x *= inverse;
            }
            *factor = before * inverse;
            *log_sum = largest + sum.ln();
        }
    }

    /// Computes the gradient of [`masked_softmax`]: `scores` are turned into probabilities by their
    /// `log_sums`, and `gradient`, of the probabilities, becomes that of the scores times `scale`. `dots`
    /// has each row's sum of probability times gradient, if these are only a part of the rows.
    fn softmax_back(
        scores: &mut [f32],
        gradient: &mut [f32],
        n: usize,
        visible: &[[usize; 2]],
        log_sums: &[f32],
        dots: Option<&[f32]>,
        scale: f32,
    ) {
        let rows = scores.chunks_exact_mut(n).zip(gradient.chunks_exact_mut(n)).zip(log_sums);
        for (i, (((p, d), log_sum), [low, high])) in rows.zip(visible).enumerate() {
            p[..*low].fill(0.0);
            d[..*low].fill(0.0);
            p[*high..].fill(0.0);
            d[*high..].fill(0.0);
            let (p, d) = (&mut p[*low..*high], &mut d[*low..*high]);
            for x in p.iter_mut() {
                *x = exp(*x - *log_sum);
            }
            let dot = dots.map_or_else(|| sum16(p.len(), |j| p[j] * d[j]), |dots| dots[i]);
            for (d, p) in d.iter_mut().zip(p.iter()) {
                *d = *p * (*d - dot) * scale;
            }
        }
    }

    /// Computes the dot products of the rows of `left` and `right`, `[t, heads, width]` each, into `dots`:
    /// `[heads, t]`.
    fn head_dots(left: &[f32], right: &[f32], dots: &mut [f32], t: usize, width: usize) {
        let heads = dots.len() / t;
        for (row, (left, right)) in left.chunks_exact(width).zip(right.chunks_exact(width)).enumerate() {
            dots[row % heads * t + row / heads] = sum16(width, |j| left[j] * right[j]);
        }
    }

    /// Replaces a row of scores by the gradient of its cross-entropy (its softmax minus the target) plus that
    /// of `z_loss · log(Z)²`, where `Z` is the sum of the exponentials of the row. Returns the cross-entropy,
    /// `log(Z)`, and whether no other class has a higher score.
    fn cross_entropy_row(row: &mut [f32], target: usize, z_loss: f32) -> (f32, f32, bool) {
        let largest = max16(row);
        let wanted = row[target];
        for x in row.iter_mut() {
            *x = exp(*x - largest);
        }
        let sum = sum16(row.len(), |j| row[j]);
        let log_z = sum.ln() + largest;
        let factor = (1.0 + 2.0 * z_loss * log_z) / sum;
        for x in row.iter_mut() {
            *x *= factor;
        }
        row[target] -= 1.0;
        (log_z - wanted, log_z, wanted >= largest)
    }

    /// Returns the largest score of `row`.
    fn largest(row: &[f32]) -> f32 {
        max16(row)
    }

    /// Replaces every score by `e^(score - largest)`; returns their sum.
    fn exp_row(row: &mut [f32], largest: f32) -> f32 {
        for x in row.iter_mut() {
            *x = exp(*x - largest);
        }
        sum16(row.len(), |j| row[j])
    }
}

//! Sums and multiples of slices.

use super::scalar::sum16;

simd! {
    /// Computes `values *= factor`.
    fn scale(values: &mut [f32], factor: f32) {
        for v in values {
            *v *= factor;
        }
    }

    /// Adds each row of `rows` to `sum`, which is as long as a row.
    fn add_rows(sum: &mut [f32], rows: &[f32]) {
        for row in rows.chunks_exact(sum.len()) {
            for (s, v) in sum.iter_mut().zip(row) {
                *s += *v;
            }
        }
    }

    /// Adds `row` to each row of `rows`.
    fn add_to_rows(rows: &mut [f32], row: &[f32]) {
        for r in rows.chunks_exact_mut(row.len()) {
            for (r, v) in r.iter_mut().zip(row) {
                *r += *v;
            }
        }
    }

    /// Computes `sum += values`.
    fn add(sum: &mut [f32], values: &[f32]) {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += *v;
        }
    }

    /// Computes `sum += factor · values`.
    fn add_scaled(sum: &mut [f32], values: &[f32], factor: f32) {
        for (s, v) in sum.iter_mut().zip(values) {
            *s += factor * *v;
        }
    }

    /// Returns the sum of the squares of `values`, in f64 over blocks of 256.
    fn square_sum(values: &[f32]) -> f64 {
        values.chunks(256).map(|block| f64::from(sum16(block.len(), |i| block[i] * block[i]))).sum()
    }
}

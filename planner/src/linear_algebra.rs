//! Small dense linear algebra on row-major `Vec<f64>`: only what a Gaussian process and a Gauss-Newton step need.

/// Returns the dot product of two vectors of equal length. Adds in eight lanes of fixed order, so it is
/// deterministic.
pub fn dot(a: &[f64], b: &[f64]) -> f64 {
    const STRANDS: usize = 8;
    let mut sums = [0.0; STRANDS];
    let (a, b) = (a.chunks_exact(STRANDS), b.chunks_exact(STRANDS));
    let rest: f64 = a.remainder().iter().zip(b.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a.zip(b) {
        for strand in 0..STRANDS {
            sums[strand] += x[strand] * y[strand];
        }
    }
    sums.iter().sum::<f64>() + rest
}

/// Cholesky decomposition `A = L·Lᵀ` of a symmetric positive definite matrix.
#[derive(Clone, Debug)]
pub struct Cholesky {
    /// The factor `L`, row-major, `size × size`; the entries above the diagonal are not used.
    factor: Vec<f64>,
    size: usize,
}

impl Cholesky {
    /// Decomposes a symmetric matrix, reading only its lower triangle; `None` when it is not positive
    /// definite.
    pub fn of(mut matrix: Vec<f64>, size: usize) -> Option<Self> {
        assert_eq!(matrix.len(), size * size, "the matrix is square");
        for i in 0..size {
            let (above, row) = matrix.split_at_mut(i * size);
            for j in 0..i {
                let other = &above[j * size..];
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            let pivot = row[i] - dot(&row[..i], &row[..i]);
            if pivot.is_nan() || pivot <= 0.0 {
                return None;
            }
            row[i] = pivot.sqrt();
        }
        Some(Self { factor: matrix, size })
    }

    /// Returns row `i` of `L`; entries after the diagonal are meaningless.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.factor[i * self.size..][..self.size]
    }

    /// Solves `L·x = b` for `x`.
    pub fn solve_lower(&self, b: &[f64]) -> Vec<f64> {
        let mut x = b.to_vec();
        for i in 0..self.size {
            x[i] = (x[i] - dot(&self.row(i)[..i], &x[..i])) / self.row(i)[i];
        }
        x
    }

    /// Solves `A·x = b` for `x`.
    pub fn solve(&self, b: &[f64]) -> Vec<f64> {
        let mut x = self.solve_lower(b);
        for i in (0..self.size).rev() {
            x[i] /= self.row(i)[i];
            let (before, rest) = x.split_at_mut(i);
            for (value, weight) in before.iter_mut().zip(self.row(i)) {
                *value -= weight * rest[0];
            }
        }
        x
    }

    /// Returns the natural logarithm of the determinant of `A`.
    pub fn log_determinant(&self) -> f64 {
        2.0 * (0..self.size).map(|i| self.row(i)[i].ln()).sum::<f64>()
    }

    /// Returns the lower triangle of `A⁻¹`, row after row: entry `(i, j)`, `j ≤ i`, is at `i·(i+1)/2 + j`.
    pub fn inverse(&self) -> Vec<f64> {
        let columns = self.inverse_factor();
        let of = |i: usize, j: usize| {
            let from = i.max(j);
            dot(&columns[i * self.size..][from..self.size], &columns[j * self.size..][from..self.size])
        };
        (0..self.size).flat_map(|i| (0..=i).map(move |j| (i, j))).map(|(i, j)| of(i, j)).collect()
    }

    /// Returns the inverse of `L`, column after column.
    fn inverse_factor(&self) -> Vec<f64> {
        let n = self.size;
        let mut columns = vec![0.0; n * n];
        for (c, column) in columns.chunks_exact_mut(n.max(1)).enumerate() {
            column[c] = 1.0 / self.row(c)[c];
            for r in c + 1..n {
                column[r] = -dot(&self.row(r)[c..r], &column[c..r]) / self.row(r)[r];
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns `B·Bᵀ + I`, which is positive definite.
    fn positive(b: &[f64], size: usize) -> Vec<f64> {
        let row = |i: usize| &b[i * size..][..size];
        let entry = |i: usize, j: usize| dot(row(i), row(j)) + if i == j { 1.0 } else { 0.0 };
        (0..size).flat_map(|i| (0..size).map(move |j| (i, j))).map(|(i, j)| entry(i, j)).collect()
    }

    proptest! {
        #[test]
        fn what_is_solved_gives_the_right_side_back(
            size in 1usize..20,
            b in prop::collection::vec(-1.0f64..1.0, 400),
        ) {
            let matrix = positive(&b, size);
            let factored = Cholesky::of(matrix.clone(), size).expect("it is positive definite");
            let right = &b[..size];
            let x = factored.solve(right);
            for (row, wanted) in matrix.chunks(size).zip(right) {
                prop_assert!((dot(row, &x) - wanted).abs() < 1e-10);
            }
            let half = factored.solve_lower(right);
            prop_assert!((dot(&half, &half) - dot(right, &x)).abs() < 1e-10, "bᵀA⁻¹b two ways");
            let inverse = factored.inverse();
            let at = |i: usize, j: usize| inverse[i.max(j) * (i.max(j) + 1) / 2 + i.min(j)];
            for (i, wanted) in x.iter().enumerate() {
                let sum: f64 = (0..size).map(|j| at(i, j) * right[j]).sum();
                prop_assert!((sum - wanted).abs() < 1e-10);
            }
        }
    }

    #[test]
    fn a_determinant_is_that_of_a_known_matrix() {
        let factored = Cholesky::of(vec![4.0, 2.0, 2.0, 3.0], 2).expect("it is positive definite");
        assert!((factored.log_determinant() - 8f64.ln()).abs() < 1e-14);
    }

    #[test]
    fn what_is_not_positive_definite_has_no_factor() {
        assert!(Cholesky::of(vec![1.0, 2.0, 2.0, 1.0], 2).is_none());
        assert!(Cholesky::of(vec![f64::NAN], 1).is_none());
    }
}

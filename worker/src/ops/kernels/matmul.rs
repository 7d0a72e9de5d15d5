//! Products of matrices with any strides, which lie in slices.

use super::scale;

/// A read-only view of a matrix in a slice.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Creates the `rows × columns` matrix that starts at the first of `values`; panics if it does not fit.
    pub(crate) fn new(values: &'a [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        assert!(extent([rows, columns], strides) <= values.len(), "a matrix lies inside its values");
        Self { values, rows, columns, strides }
    }

    /// Creates a matrix of `values` whose rows are contiguous.
    pub(crate) fn dense(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, [rows, columns], [columns, 1])
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn transposed(self) -> Self {
        let Self { values, rows, columns, strides: [row, column] } = self;
        Self { values, rows: columns, columns: rows, strides: [column, row] }
    }

    /// Returns the part of shape `size` whose first value is at `row`, `column`.
    pub(crate) fn part(self, [row, column]: [usize; 2], size: [usize; 2]) -> Self {
        let offset = row * self.strides[0] + column * self.strides[1];
        Self::new(&self.values[offset.min(self.values.len())..], size, self.strides)
    }
}

/// A writable view of a matrix; several may share one slice, column beside column.
pub(crate) struct MatrixMut<'a> {
    first: *mut f32,
    rows: usize,
    columns: usize,
    strides: [usize; 2],
    owner: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: no two of these share a value (see `new` and `columns`), so each is as good as a `&mut [f32]`.
unsafe impl Send for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Creates a writable view like [`Matrix::new`].
    pub(crate) fn new(values: &'a mut [f32], [rows, columns]: [usize; 2], strides: [usize; 2]) -> Self {
        assert!(extent([rows, columns], strides) <= values.len(), "a matrix lies inside its values");
        Self { first: values.as_mut_ptr(), rows, columns, strides, owner: std::marker::PhantomData }
    }

    /// Creates a writable view like [`Matrix::dense`].
    pub(crate) fn dense(values: &'a mut [f32], [rows, columns]: [usize; 2]) -> Self {
        Self::new(values, [rows, columns], [columns, 1])
    }

    /// Splits dense rows into matrices that lie side by side, each as wide as `widths` says.
    pub(crate) fn columns(values: &'a mut [f32], rows: usize, widths: &[usize]) -> Vec<Self> {
        let row = widths.iter().sum();
        assert_eq!(values.len(), rows * row, "the widths fill a row");
        let first = values.as_mut_ptr();
        let mut before = 0;
        let matrices = widths.iter().map(|width| {
            // SAFETY: `before <= row`, and a slice with rows holds at least one; without rows nothing is
            // read.
            let first = if rows == 0 { first } else { unsafe { first.add(before) } };
            before += width;
            Self { first, rows, columns: *width, strides: [row, 1], owner: std::marker::PhantomData }
        });
        matrices.collect()
    }

    /// Multiplies each row by its factor of `factors`. Panics unless the values of a row are contiguous.
    pub(crate) fn scale_rows(&mut self, factors: &[f32]) {
        assert_eq!((factors.len(), self.strides[1]), (self.rows, 1), "a factor for each dense row");
        for (row, factor) in factors.iter().enumerate() {
            // SAFETY: the row lies inside this matrix, which no other code reads or writes.
            let values = unsafe {
                std::slice::from_raw_parts_mut(self.first.add(row * self.strides[0]), self.columns)
            };
            scale(values, *factor);
        }
    }

    /// Borrows the part of the given size whose first value is at `row`, `column`.
    pub(crate) fn part(&mut self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> MatrixMut<'_> {
        assert!(row + rows <= self.rows && column + columns <= self.columns, "a part lies inside its matrix");
        let offset = row * self.strides[0] + column * self.strides[1];
        // SAFETY: the part lies inside this matrix, which lies inside its slice.
        let first = if rows * columns == 0 { self.first } else { unsafe { self.first.add(offset) } };
        MatrixMut { first, rows, columns, strides: self.strides, owner: std::marker::PhantomData }
    }
}

/// Returns the number of values in memory from the first to the last of a matrix.
fn extent([rows, columns]: [usize; 2], strides: [usize; 2]) -> usize {
    if rows * columns == 0 { 0 } else { (rows - 1) * strides[0] + (columns - 1) * strides[1] + 1 }
}

/// The treatment of a product's previous output values: overwritten or added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accumulate {
    Overwrite,
    Add,
}

/// The threads that a product may use. The result has the same bits with either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadUse {
    One,
    Pool,
}

/// Computes `out = factor · left · right`, or `out += …`.
pub(crate) fn matmul(
    out: MatrixMut<'_>,
    into: Accumulate,
    factor: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: ThreadUse,
) {
    assert_eq!(
        [out.rows, out.columns, left.columns],
        [left.rows, right.columns, right.rows],
        "shapes of a product"
    );
    // SAFETY: all three lie inside their slices, `out` is borrowed mutably and so overlaps neither.
    unsafe { matmul_at(out.first, out.strides, into, factor, left, right, threads) }
}

/// Returns `left · right` as a new vector of contiguous rows.
pub(crate) fn matmul_to_vec(left: Matrix<'_>, right: Matrix<'_>) -> Vec<f32> {
    assert_eq!(left.columns, right.rows, "shapes of a product");
    let len = left.rows * right.columns;
    let mut out = Vec::with_capacity(len);
    // SAFETY: the product fills all `len` values of the new allocation without reading them.
    unsafe {
        matmul_at(
            out.as_mut_ptr(),
            [right.columns, 1],
            Accumulate::Overwrite,
            1.0,
            left,
            right,
            ThreadUse::Pool,
        );
        out.set_len(len);
    }
    out
}

/// # Safety
/// `out` must be valid for writes of a `left.rows × right.columns` matrix with these strides, for reads too
/// when it is added to, and must not overlap `left` or `right`, whose inner dimensions agree.
unsafe fn matmul_at(
    out: *mut f32,
    strides: [usize; 2],
    into: Accumulate,
    factor: f32,
    left: Matrix<'_>,
    right: Matrix<'_>,
    threads: ThreadUse,
) {
    let parallelism = match threads {
        ThreadUse::Pool if rayon::current_num_threads() > 1 => gemm::Parallelism::Rayon(0),
        ThreadUse::Pool | ThreadUse::One => gemm::Parallelism::None,
    };
    let signed = |stride: usize| stride.cast_signed();
    // SAFETY: promised by the caller; strides of a matrix inside a slice fit an `isize`.
    unsafe {
        gemm::gemm(
            left.rows,
            right.columns,
            left.columns,
            out,
            signed(strides[1]),
            signed(strides[0]),
            into == Accumulate::Add,
            left.values.as_ptr(),
            signed(left.strides[1]),
            signed(left.strides[0]),
            right.values.as_ptr(),
            signed(right.strides[1]),
            signed(right.strides[0]),
            1.0,
            factor,
            false,
            false,
            false,
            parallelism,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_strided_parts_are_those_of_copies() {
        let values: Vec<f32> = (0..200).map(|i| (i * 7 % 13) as f32 - 6.0).collect();
        let left = Matrix::new(&values[3..], [5, 4], [9, 2]);
        let right = Matrix::new(&values[1..], [3, 4], [11, 3]).transposed();
        let at = |m: Matrix<'_>, i: usize, j: usize| m.values[i * m.strides[0] + j * m.strides[1]];
        let mut out = vec![1.0; 5 * 7];
        let mut parts = MatrixMut::columns(&mut out, 5, &[2, 3, 2]);
        matmul(parts[1].part([0, 0], [5, 3]), Accumulate::Add, 2.0, left, right, ThreadUse::One);
        let fresh = matmul_to_vec(left, right);
        for i in 0..5 {
            for j in 0..3 {
                let wanted: f32 = (0..4).map(|k| at(left, i, k) * at(right, k, j)).sum();
                assert_eq!(out[i * 7 + 2 + j], 1.0 + 2.0 * wanted);
                assert_eq!(fresh[i * 3 + j], wanted);
            }
            assert_eq!([out[i * 7], out[i * 7 + 1], out[i * 7 + 5]], [1.0; 3]);
        }
    }
}

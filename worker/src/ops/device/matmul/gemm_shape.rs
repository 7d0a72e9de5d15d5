//! Shapes of matrix products, as far as the choice of a kernel depends on them.

use super::super::CubeValues;
use burn::tensor::DType;
use cubecl::ir::{ElemType, FloatKind};
use cubek::matmul::definition::MatmulGlobalElems;
use std::fmt;

/// The shape of a matrix product, `[rows, inner]` by `[inner, columns]`, `batch` of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct GemmShape {
    pub(super) batch: usize,
    pub(super) rows: usize,
    pub(super) inner: usize,
    pub(super) columns: usize,
    pub(super) dtype: DType,
    pub(super) lhs: OperandLayout,
    pub(super) rhs: OperandLayout,
}

/// The memory layout of one factor of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OperandLayout {
    order: MemoryOrder,
    /// True if each row, or column, starts at a multiple of 16 bytes.
    is_aligned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum MemoryOrder {
    /// Row-major: the values of a row are contiguous.
    Rows,
    /// Column-major: the values of a column are contiguous.
    Columns,
    /// Neither: the factor is copied before the product.
    Neither,
}

impl GemmShape {
    /// Returns the shape of the product of two tensors of the same type with the same number of dimensions,
    /// at least two.
    pub(super) fn of(lhs: &CubeValues, rhs: &CubeValues) -> Self {
        let [left, right] = [lhs, rhs].map(|side| side.meta.shape());
        let rank = left.num_dims();
        assert!(rank >= 2 && right.num_dims() == rank, "factors of {left:?} and {right:?}");
        assert_eq!((left[rank - 1], lhs.dtype), (right[rank - 2], rhs.dtype), "{left:?} times {right:?}");
        assert_eq!(left[..rank - 2], right[..rank - 2], "as many left factors as right ones");
        Self {
            batch: left[..rank - 2].iter().product(),
            rows: left[rank - 2],
            inner: left[rank - 1],
            columns: right[rank - 1],
            dtype: lhs.dtype,
            lhs: OperandLayout::of(lhs),
            rhs: OperandLayout::of(rhs),
        }
    }

    /// Returns `true` if the product has nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        [self.batch, self.rows, self.inner, self.columns].contains(&0)
    }

    /// Returns `true` if the tensor memory accelerator can load both factors.
    pub(super) fn is_aligned(&self) -> bool {
        self.lhs.is_aligned && self.rhs.is_aligned
    }

    /// Returns `true` if a side is shorter than a tile of tensor cores, or the product smaller than one of
    /// their cubes.
    pub(super) fn is_small(&self) -> bool {
        self.rows.min(self.columns).min(self.inner) < 16 || self.operations() < 2e7
    }

    /// Returns the number of multiplications and additions of the product.
    pub(super) fn operations(&self) -> f64 {
        2.0 * [self.batch, self.rows, self.inner, self.columns]
            .map(|side| side as f64)
            .iter()
            .product::<f64>()
    }

    /// Returns the difference in size from another product: 0 if they are equal, `None` if types or layouts
    /// differ.
    pub(super) fn distance(&self, other: &Self) -> Option<f64> {
        let is_alike = (self.dtype, self.lhs, self.rhs) == (other.dtype, other.lhs, other.rhs);
        let sides = |one: &Self| [one.batch, one.rows, one.inner, one.columns].map(|side| (side as f64).ln());
        let apart = sides(self).into_iter().zip(sides(other)).map(|(own, other)| (own - other).abs());
        is_alike.then(|| apart.sum())
    }

    /// Returns the types of the product's factors and of its result.
    pub(super) fn elements(&self) -> MatmulGlobalElems {
        let kind = match self.dtype {
            DType::BF16 => FloatKind::BF16,
            DType::F16 => FloatKind::F16,
            _ => FloatKind::F32,
        };
        let element = ElemType::Float(kind);
        MatmulGlobalElems { lhs: element, rhs: element, out: element }
    }
}

impl fmt::Display for GemmShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = match self.dtype {
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            _ => "f32",
        };
        let Self { batch, rows, inner, columns, lhs, rhs, .. } = self;
        write!(f, "{dtype} {batch}x[{rows},{inner}]{lhs}x[{inner},{columns}]{rhs}")
    }
}

impl OperandLayout {
    fn of(values: &CubeValues) -> Self {
        let (shape, strides) = (values.meta.shape(), values.meta.strides());
        let rank = shape.num_dims();
        let [row, column] = [strides[rank - 2], strides[rank - 1]];
        let (order, long) = match (row, column) {
            (row, 1) if row >= shape[rank - 1] => (MemoryOrder::Rows, row),
            (1, column) if column >= shape[rank - 2] => (MemoryOrder::Columns, column),
            _ => (MemoryOrder::Neither, 0),
        };
        let size = values.dtype.size();
        let is_even = |stride: &usize| (stride * size).is_multiple_of(16);
        let is_aligned =
            order != MemoryOrder::Neither && is_even(&long) && strides[..rank - 2].iter().all(is_even);
        Self { order, is_aligned }
    }
}

impl fmt::Display for OperandLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.order {
            MemoryOrder::Rows => "r",
            MemoryOrder::Columns => "c",
            MemoryOrder::Neither => "n",
        })?;
        f.write_str(if self.is_aligned { "" } else { "u" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(rows: usize, columns: usize) -> GemmShape {
        let side = OperandLayout { order: MemoryOrder::Rows, is_aligned: true };
        let rhs = OperandLayout { order: MemoryOrder::Columns, is_aligned: false };
        GemmShape { batch: 3, rows, inner: 64, columns, dtype: DType::BF16, lhs: side, rhs }
    }

    #[test]
    fn a_name_tells_one_product_from_another() {
        assert_eq!(problem(128, 256).to_string(), "bf16 3x[128,64]rx[64,256]cu");
        let others = [problem(128, 257), GemmShape { dtype: DType::F16, ..problem(128, 256) }]
            .map(|one| one.to_string());
        assert!(others.iter().all(|name| *name != problem(128, 256).to_string()), "{others:?}");
    }

    #[test]
    fn the_nearest_product_is_that_of_the_nearest_sides() {
        let own = problem(128, 256);
        assert_eq!(own.distance(&own), Some(0.0));
        assert!(own.distance(&problem(128, 512)) < own.distance(&problem(1024, 512)));
        assert_eq!(own.distance(&GemmShape { dtype: DType::F32, ..own }), None, "other kernels");
        assert!(problem(8, 4096).is_small() && !problem(4096, 4096).is_small());
        assert!(GemmShape { batch: 0, ..own }.is_empty());
    }
}

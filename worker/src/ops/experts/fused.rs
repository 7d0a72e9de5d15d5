//! Fused experts on the host: one matrix product for each expert and matrix, on contiguous rows.

use super::ExpertMatrices;
use crate::ops::chunks;
use crate::ops::custom_autograd::{dense, input, record, shape, slice, vector};
use crate::ops::kernels::{self, Accumulate, Matrix, MatrixMut, ThreadUse};
use burn::backend::flex::FlexTensor;
use burn::tensor::Tensor;
use dtrain_recipes::Activation;
use std::ops::Range;

/// Computes [`super::feed`] on the host, with one matrix product for each expert and matrix.
pub(in crate::ops) fn feed(
    rows: Tensor<3>,
    matrices: ExpertMatrices,
    groups: Vec<Range<usize>>,
) -> Tensor<3> {
    let ExpertMatrices { gate, up, down, activation } = matrices;
    let mut inputs = vec![input(rows)];
    inputs.extend(gate.map(input));
    inputs.extend([input(up), input(down)]);
    record(inputs, |values| {
        let mut values = values.into_iter().map(dense);
        let rows = values.next().expect("the rows are the first input");
        let mut ups: Vec<_> = values.collect();
        let down = ups.pop().expect("the last matrix is the last input");
        let [_, inner, width] = shape(&down);
        let experts = GroupedFeedForward { groups, ups, down, activation, inner, width };
        let wide = experts.widen(&rows);
        let active = experts.activate(&wide);
        let y = experts.narrow(&active);
        let gradient = move |d: FlexTensor, _: [bool; 8]| experts.back(&rows, wide, &active, &dense(d));
        (y, Box::new(gradient))
    })
}

/// The matrices of this rank's experts, and the group of rows of each expert.
struct GroupedFeedForward {
    groups: Vec<Range<usize>>,
    /// Matrices of the first layer: two with a gate, whose outputs are side by side in a wide row.
    ups: Vec<FlexTensor>,
    down: FlexTensor,
    activation: Activation,
    inner: usize,
    width: usize,
}

impl GroupedFeedForward {
    /// Returns the number of values in a wide row.
    fn wide(&self) -> usize {
        self.ups.len() * self.inner
    }

    /// Iterates over the groups that have rows, each with the index of its expert.
    fn busy(&self) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
        self.groups.iter().cloned().enumerate().filter(|(_, group)| !group.is_empty())
    }

    fn rows(&self) -> usize {
        self.groups.last().map_or(0, |group| group.end)
    }

    /// Computes the first layer of each row's expert. `[rows, w]` → `[rows, gate | up]`
    fn widen(&self, rows: &FlexTensor) -> Vec<f32> {
        let mut wide = vec![0.0; self.rows() * self.wide()];
        for (expert, group) in self.busy() {
            let left = part(slice(rows), &group, self.width);
            let out = &mut wide[values(&group, self.wide())];
            let widths = vec![self.inner; self.ups.len()];
            for (out, up) in MatrixMut::columns(out, group.len(), &widths).into_iter().zip(&self.ups) {
                kernels::matmul(out, Accumulate::Overwrite, 1.0, left, matrix(up, expert), ThreadUse::Pool);
            }
        }
        wide
    }

    /// Computes the activation between the two layers. `[rows, gate | up]` → `[rows, f]`
    fn activate(&self, wide: &[f32]) -> Vec<f32> {
        let mut active = vec![0.0; self.rows() * self.inner];
        let rows = chunks::rows(self.wide());
        let parts = wide.chunks(rows * self.wide()).zip(active.chunks_mut(rows * self.inner));
        chunks::each(parts, |(wide, active)| match self.activation {
            Activation::Swiglu => kernels::swiglu(wide, active, self.inner),
            Activation::Geglu => kernels::geglu(wide, active, self.inner),
            Activation::Gelu => kernels::gelu(wide, active),
            Activation::GeluTanh => kernels::gelu_tanh(wide, active),
        });
        active
    }

    /// Computes the second layer of each row's expert. `[rows, f]` → `[1, rows, w]`
    fn narrow(&self, active: &[f32]) -> FlexTensor {
        let mut y = vec![0.0; self.rows() * self.width];
        for (expert, group) in self.busy() {
            let out = MatrixMut::dense(&mut y[values(&group, self.width)], [group.len(), self.width]);
            let left = part(active, &group, self.inner);
            kernels::matmul(
                out,
                Accumulate::Overwrite,
                1.0,
                left,
                matrix(&self.down, expert),
                ThreadUse::Pool,
            );
        }
        vector(y, [1, self.rows(), self.width])
    }

    /// Returns the gradients of the rows and of all matrices. The gradient of an expert without rows is zero.
    fn back(
        &self,
        rows: &FlexTensor,
        mut wide: Vec<f32>,
        active: &[f32],
        d: &FlexTensor,
    ) -> Vec<Option<FlexTensor>> {
        let mut d_active = vec![0.0; active.len()];
        let mut d_down = vec![0.0; slice(&self.down).len()];
        for (expert, group) in self.busy() {
            let upstream = part(slice(d), &group, self.width);
            let out = MatrixMut::dense(&mut d_active[values(&group, self.inner)], [group.len(), self.inner]);
            let right = matrix(&self.down, expert).transposed();
            kernels::matmul(out, Accumulate::Overwrite, 1.0, upstream, right, ThreadUse::Pool);
            let left = part(active, &group, self.inner).transposed();
            add_product(&mut d_down, expert, left, upstream, [self.inner, self.width]);
        }
        let d_wide = self.activate_back(&mut wide, d_active);
        let mut d_rows = vec![0.0; slice(rows).len()];
        let mut d_ups: Vec<_> = self.ups.iter().map(|up| vec![0.0; slice(up).len()]).collect();
        for (expert, group) in self.busy() {
            let all = part(&d_wide, &group, self.wide());
            let left = part(slice(rows), &group, self.width).transposed();
            let mut out =
                MatrixMut::dense(&mut d_rows[values(&group, self.width)], [group.len(), self.width]);
            for (place, (up, d_up)) in self.ups.iter().zip(&mut d_ups).enumerate() {
                let upstream = all.part([0, place * self.inner], [group.len(), self.inner]);
                let right = matrix(up, expert).transposed();
                let out = out.part([0, 0], [group.len(), self.width]);
                kernels::matmul(out, Accumulate::Add, 1.0, upstream, right, ThreadUse::Pool);
                add_product(d_up, expert, left, upstream, [self.width, self.inner]);
            }
        }
        let mut found = vec![Some(vector(d_rows, [1, self.rows(), self.width]))];
        found.extend(d_ups.into_iter().zip(&self.ups).map(|(d, up)| Some(vector(d, shape::<3>(up)))));
        found.push(Some(vector(d_down, shape::<3>(&self.down))));
        found
    }

    /// Returns the gradient of the wide rows from that of the activation's output.
    fn activate_back(&self, wide: &mut Vec<f32>, mut d: Vec<f32>) -> Vec<f32> {
        let rows = chunks::rows(self.wide());
        let parts = wide.chunks_mut(rows * self.wide()).zip(d.chunks_mut(rows * self.inner));
        chunks::each(parts, |(wide, d)| match self.activation {
            Activation::Swiglu => kernels::swiglu_back(wide, d, self.inner),
            Activation::Geglu => kernels::geglu_back(wide, d, self.inner),
            Activation::Gelu => kernels::gelu_back(wide, d),
            Activation::GeluTanh => kernels::gelu_tanh_back(wide, d),
        });
        match self.activation {
            // The gradient overwrites the input.
            Activation::Swiglu | Activation::Geglu => std::mem::take(wide),
            Activation::Gelu | Activation::GeluTanh => d,
        }
    }
}

/// Returns the range of the values that `rows` have, with `width` values each.
fn values(rows: &Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// Returns the rows `rows` of `all`, with `width` values each, as a matrix.
fn part<'a>(all: &'a [f32], rows: &Range<usize>, width: usize) -> Matrix<'a> {
    Matrix::dense(&all[values(rows, width)], [rows.len(), width])
}

/// Returns the matrix of expert `expert`.
fn matrix(all: &FlexTensor, expert: usize) -> Matrix<'_> {
    let [_, rows, columns] = shape(all);
    Matrix::dense(&slice(all)[expert * rows * columns..][..rows * columns], [rows, columns])
}

/// Adds the product of `left` and `right` to the matrix of expert `expert`.
fn add_product(all: &mut [f32], expert: usize, left: Matrix<'_>, right: Matrix<'_>, size: [usize; 2]) {
    let length = size[0] * size[1];
    let out = MatrixMut::dense(&mut all[expert * length..][..length], size);
    kernels::matmul(out, Accumulate::Add, 1.0, left, right, ThreadUse::Pool);
}

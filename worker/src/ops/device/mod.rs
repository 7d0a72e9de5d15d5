//! Operations on the tensors of a device as kernels of our own, written once for every runtime of CubeCL.
//!
//! An operation is one node of the autodiff graph, and neither reads from the device nor waits for it. Values are f32. What has no
//! kernel here is the plain composition.
// Launches never fail: what goes wrong in one comes out where its results are read.

mod attention;
pub(super) mod collective;
mod embedding;
mod kernels;
mod linear;
mod loss;
mod norm;
mod pointwise;
pub(crate) mod product;
mod update;

use super::implementations::Ops;
use super::tape::{self, INPUTS, Input, input};
use super::{Arithmetic, Heads, Measured, Rotary, Share, plain};
use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::{CubeCount, CubeDim};
use dtrain_recipes::Precision;

pub(crate) use update::adamw;

/// A tensor on a device.
type Values = FloatTensor<Cube>;

/// Gradients of the inputs from that of the output, as far as they are wanted.
type Gradient = Box<dyn FnOnce(Values, [bool; INPUTS]) -> Vec<Option<Values>> + Send>;

/// The kernels of this module, where there is one.
pub(super) struct Device;

impl Ops for Device {
    fn project(
        &self,
        precision: Precision,
        x: Tensor<3>,
        weights: Vec<Tensor<2>>,
        biases: Vec<Tensor<1>>,
        residual: Option<Tensor<3>>,
    ) -> Tensor<3> {
        linear::project(precision, x, weights, biases, residual)
    }

    fn attention(&self, arithmetic: Arithmetic, packed: Tensor<3>, heads: Heads) -> Tensor<3> {
        attention::attention(arithmetic, packed, heads)
    }

    fn rotary(&self, packed: Tensor<3>, heads: Heads, table: &Rotary) -> Tensor<3> {
        pointwise::rotary(packed, heads, table)
    }

    fn layer_norm(&self, x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
        norm::layer_norm(x, weight, bias, epsilon)
    }

    fn rms_norm(&self, x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
        norm::rms_norm(x, weight, epsilon)
    }

    fn gelu(&self, x: Tensor<3>) -> Tensor<3> {
        pointwise::gelu(x)
    }

    fn gelu_tanh(&self, x: Tensor<3>) -> Tensor<3> {
        pointwise::gelu_tanh(x)
    }

    fn swiglu(&self, packed: Tensor<3>) -> Tensor<3> {
        pointwise::swiglu(packed)
    }

    fn embed(&self, table: Tensor<2>, share: Share, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
        embedding::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        let first = places.first().copied().unwrap_or(0);
        if places.iter().copied().eq(first..first + places.len()) {
            embedding::add_positions(x, table, first)
        } else {
            plain::add_positions(x, table, places)
        }
    }

    fn cross_entropy(&self, logits: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Measured) {
        loss::cross_entropy(logits, targets)
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        let upstream = values(upstream.inner());
        record(vec![input(output)], |_| (zeros(&upstream, [1]), Box::new(move |_, _| vec![Some(upstream)])))
    }
}

/// [`tape::record_on`] a device.
fn record<const D: usize>(
    inputs: Vec<Input>,
    run: impl FnOnce(Vec<Values>) -> (Values, Gradient),
) -> Tensor<D> {
    tape::record_on::<Cube, D>(inputs, run)
}

/// The values of a tensor that is on no tape.
fn values<const D: usize>(tensor: Tensor<D>) -> Values {
    tensor.try_into_primitive::<Cube>().expect("the tensors of a device live there")
}

/// The tensor with its values one after the other, copied where they are not.
fn dense(tensor: Values) -> Values {
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// The same values, dense and in nobody else's hands, so that a kernel may change them.
fn owned(tensor: Values) -> Values {
    let tensor = dense(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// Memory for values of this shape, beside a tensor. What is there is unknown.
fn empty<const D: usize>(near: &Values, shape: [usize; D]) -> Values {
    empty_of(near, shape, DType::F32)
}

fn empty_of<const D: usize>(near: &Values, shape: [usize; D], dtype: DType) -> Values {
    let handle = near.client.empty(shape.iter().product::<usize>() * dtype.size());
    Values::new_contiguous(near.client.clone(), near.device.clone(), shape.into(), handle, dtype)
}

/// As [`empty`], filled with zeros.
fn zeros<const D: usize>(near: &Values, shape: [usize; D]) -> Values {
    let zeros = Cube::float_zeros([shape.iter().product::<usize>()].into(), &near.device, FloatDType::F32);
    Values::new_contiguous(near.client.clone(), near.device.clone(), shape.into(), zeros.handle, DType::F32)
}

/// The dimensions of a tensor.
fn shape<const D: usize>(tensor: &Values) -> [usize; D] {
    let shape: Vec<usize> = tensor.meta.shape().iter().copied().collect();
    shape.try_into().unwrap_or_else(|shape| panic!("wanted {D} dimensions, found {shape:?}"))
}

/// Numbers beside a tensor: one copy to the device.
fn numbers(near: &Values, numbers: &[u32]) -> Values {
    let handle = near.client.create_from_slice(bytemuck::cast_slice(numbers));
    let (client, device) = (near.client.clone(), near.device.clone());
    Values::new_contiguous(client, device, [numbers.len()].into(), handle, DType::U32)
}

/// A launch with one unit for each of `count` values; some units at the end have none.
fn of_each(near: &Values, count: usize) -> (CubeCount, CubeDim) {
    let cube = CubeDim::new_1d(256);
    (calculate_cube_count_elemwise(&near.client, count, cube), cube)
}

/// A launch with one cube for each of `rows` rows of `width` values, and the units of a cube; some cubes at the end have no row.
fn of_each_row(near: &Values, rows: usize, width: usize) -> (CubeCount, CubeDim, usize) {
    let units = width.next_power_of_two().clamp(32, 256);
    let cube = CubeDim::new_1d(u32::try_from(units).unwrap_or(256));
    (calculate_cube_count_elemwise(&near.client, rows * units, cube), cube, units)
}

//! Operations on a device: custom kernels, written once for every runtime of CubeCL.
//!
//! An operation is one node of the autodiff graph, and neither reads from the device nor waits for it.
//! Values are f32. An operation without a kernel here is the composition in `reference`.
// Launches never fail: their errors appear when the results are read.

mod adamw;
mod attention;
pub(super) mod collective;
mod embedding;
mod kernels;
mod linear;
mod loss;
pub(crate) mod matmul;
mod norm;
mod pointwise;

use super::custom_autograd::{self, INPUTS, OpArgument, input};
use super::operations::Ops;
use super::{Arithmetic, AttentionHeads, AttentionMask, DeferredLossFigures, Rotary, VocabRange, reference};
use crate::data::IGNORED;
use crate::mesh::Peers;
use burn::backend::Cube;
use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, FloatDType, Tensor};
use cubecl::calculate_cube_count_elemwise;
use cubecl::prelude::{AddressType, BufferArg, CubeCount, CubeDim};
use dtrain_recipes::Precision;

pub(crate) use adamw::adamw;

/// The values of a tensor on a device.
type CubeValues = FloatTensor<Cube>;

/// A backward function on a device: returns the requested gradients of the inputs from that of the output.
type CubeBackwardFn = Box<dyn FnOnce(CubeValues, [bool; INPUTS]) -> Vec<Option<CubeValues>> + Send>;

/// The operations that have custom kernels for devices.
pub(super) struct AcceleratorOps;

impl Ops for AcceleratorOps {
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

    fn attention(
        &self,
        arithmetic: Arithmetic,
        packed: Tensor<3>,
        heads: AttentionHeads,
        mask: &AttentionMask,
    ) -> Tensor<3> {
        if !mask.is_causal(packed.dims()[1]) {
            // The kernels hide later keys only.
            return crate::ops::Implementation::Reference.ops().attention(arithmetic, packed, heads, mask);
        }
        attention::attention(arithmetic, packed, heads)
    }

    fn rotary(&self, packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
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

    fn embed(&self, table: Tensor<2>, share: VocabRange, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
        embedding::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        let first = places.first().copied().unwrap_or(0);
        if places.iter().copied().eq(first..first + places.len()) {
            embedding::add_positions(x, table, first)
        } else {
            reference::add_positions(x, table, places)
        }
    }

    fn cross_entropy(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        z_loss: f32,
    ) -> (Tensor<1>, DeferredLossFigures) {
        if targets.contains(&IGNORED) {
            // The kernels count every target.
            return reference::cross_entropy(logits, targets, z_loss);
        }
        loss::cross_entropy(logits, targets, z_loss)
    }

    fn cross_entropy_of_part(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        share: VocabRange,
        peers: &Peers,
        z_loss: f32,
    ) -> (Tensor<1>, DeferredLossFigures) {
        if targets.contains(&IGNORED) {
            return reference::cross_entropy_of_part(logits, targets, share, peers, z_loss);
        }
        loss::cross_entropy_of_part(logits, targets, share, peers, z_loss)
    }

    /// Joins the rows of all samples, without a copy if their stride is even.
    fn rows(&self, x: Tensor<3>) -> Tensor<2> {
        record(vec![input(x)], |inputs| {
            let [x] = <[_; 1]>::try_from(inputs).expect("rows have one input");
            let [b, t, _] = shape(&x);
            let gradient = move |d: CubeValues, _: [bool; INPUTS]| {
                let d = Tensor::<2>::from_primitive::<Cube>(d);
                let width = d.dims()[1];
                vec![Some(values(d.reshape([b, t, width])))]
            };
            (values(flat_rows(x)), Box::new(gradient))
        })
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        let upstream = values(upstream.inner());
        record(vec![input(output)], |_| (zeros(&upstream, [1]), Box::new(move |_, _| vec![Some(upstream)])))
    }
}

/// Computes and records an operation on a device, see [`custom_autograd::record_on`].
fn record<const D: usize>(
    inputs: Vec<OpArgument>,
    run: impl FnOnce(Vec<CubeValues>) -> (CubeValues, CubeBackwardFn),
) -> Tensor<D> {
    custom_autograd::record_on::<Cube, D>(inputs, run)
}

/// Returns the values of a tensor that autodiff does not track.
fn values<const D: usize>(tensor: Tensor<D>) -> CubeValues {
    tensor.try_into_primitive::<Cube>().expect("the tensors of a device live there")
}

/// Returns `tensor` with contiguous values, copied if they are not.
fn dense(tensor: CubeValues) -> CubeValues {
    burn_cubecl::kernel::into_contiguous(tensor)
}

/// Returns `tensor` dense and unshared, so that a kernel may change it.
fn owned(tensor: CubeValues) -> CubeValues {
    let tensor = dense(tensor);
    if tensor.can_mut() { tensor } else { tensor.copy() }
}

/// Returns `tensor` and the stride of the rows of its last dimension; copied if the stride is uneven.
///
/// If a device is fastest with aligned rows, those of a result are padded.
fn rows(tensor: CubeValues) -> (CubeValues, usize) {
    if !tensor.meta.is_tiled()
        && let Some(stride) = stride_of_rows(tensor.meta.shape(), tensor.meta.strides())
    {
        return (tensor, stride);
    }
    let tensor = dense(tensor);
    let width = tensor.meta.shape().iter().copied().next_back().unwrap_or(1);
    (tensor, width)
}

/// Returns `tensor` and the stride of its rows like [`rows`], unshared, so that a kernel may change it.
fn owned_rows(tensor: CubeValues) -> (CubeValues, usize) {
    let (tensor, stride) = rows(tensor);
    if tensor.can_mut() { (tensor, stride) } else { rows(tensor.copy()) }
}

/// Returns the stride of a tensor's rows; `None` if the values of a row are not contiguous, or the stride is
/// uneven.
fn stride_of_rows(shape: &[usize], strides: &[usize]) -> Option<usize> {
    let ((width, outer), (step, outer_strides)) = (shape.split_last()?, strides.split_last()?);
    if *step != 1 && *width != 1 {
        return None;
    }
    let mut outer = outer.iter().zip(outer_strides).rev().filter(|(length, _)| **length != 1);
    let Some((length, stride)) = outer.next() else { return Some(*width) };
    let mut end = length * stride;
    let is_even = outer.all(|(length, stride)| {
        let follows = *stride == end;
        end *= length;
        follows
    });
    (*stride >= *width && is_even).then_some(*stride)
}

/// Returns a tensor as an argument of a kernel: its memory, in which rows start `stride` values after one
/// another, up to the end of the last row.
fn buffer(tensor: &CubeValues, stride: usize) -> BufferArg {
    let width = tensor.meta.shape().iter().copied().next_back().unwrap_or(1);
    let rows = tensor.meta.shape().iter().product::<usize>() / width.max(1);
    let length = rows.checked_sub(1).map_or(0, |before| before * stride + width);
    let (client, device) = (tensor.client.clone(), tensor.device.clone());
    CubeValues::new_contiguous(client, device, [length].into(), tensor.handle.clone(), tensor.dtype)
        .into_buffer_arg()
}

/// Joins the rows of all samples, without a copy if their stride is even. `[b, t, w]` → `[b·t, w]`
fn flat_rows(tensor: CubeValues) -> Tensor<2> {
    let [b, t, width] = shape(&tensor);
    let (mut tensor, stride) = rows(tensor);
    tensor.meta.shape = [b * t, width].into();
    tensor.meta.strides = [stride, 1].into();
    Tensor::from_primitive::<Cube>(tensor)
}

/// Allocates uninitialized values of shape `shape` on the device of `near`.
fn empty<const D: usize>(near: &CubeValues, shape: [usize; D]) -> CubeValues {
    empty_of(near, shape, DType::F32)
}

fn empty_of<const D: usize>(near: &CubeValues, shape: [usize; D], dtype: DType) -> CubeValues {
    let handle = near.client.empty(shape.iter().product::<usize>() * dtype.size());
    CubeValues::new_contiguous(near.client.clone(), near.device.clone(), shape.into(), handle, dtype)
}

/// Allocates zeros of shape `shape` on the device of `near`.
fn zeros<const D: usize>(near: &CubeValues, shape: [usize; D]) -> CubeValues {
    let zeros = Cube::float_zeros([shape.iter().product::<usize>()].into(), &near.device, FloatDType::F32);
    CubeValues::new_contiguous(
        near.client.clone(),
        near.device.clone(),
        shape.into(),
        zeros.handle,
        DType::F32,
    )
}

/// Returns the dimensions of a tensor.
fn shape<const D: usize>(tensor: &CubeValues) -> [usize; D] {
    let shape: Vec<usize> = tensor.meta.shape().iter().copied().collect();
    shape.try_into().unwrap_or_else(|shape| panic!("wanted {D} dimensions, found {shape:?}"))
}

/// Copies numbers to the device of `near`.
fn numbers(near: &CubeValues, numbers: &[u32]) -> CubeValues {
    let handle = near.client.create_from_slice(bytemuck::cast_slice(numbers));
    let (client, device) = (near.client.clone(), near.device.clone());
    CubeValues::new_contiguous(client, device, [numbers.len()].into(), handle, DType::U32)
}

/// Number of units in a cube if each computes one value.
const UNITS: usize = 256;

/// Returns a launch with one unit for each of `count` values, and the index type of a kernel that uses
/// `tensors`; some units at the end have no value.
fn of_each<const N: usize>(count: usize, tensors: [&CubeValues; N]) -> (CubeCount, CubeDim, AddressType) {
    grid(count.div_ceil(UNITS), UNITS, tensors)
}

/// Returns a launch with one cube for each of `rows` rows of `width` values, the index type and the units
/// of a cube; some cubes at the end have no row.
fn of_each_row<const N: usize>(
    rows: usize,
    width: usize,
    tensors: [&CubeValues; N],
) -> (CubeCount, CubeDim, AddressType, usize) {
    let units = width.next_power_of_two().clamp(32, 256);
    let (cubes, cube, indices) = grid(rows, units, tensors);
    (cubes, cube, indices, units)
}

fn grid<const N: usize>(
    cubes: usize,
    units: usize,
    tensors: [&CubeValues; N],
) -> (CubeCount, CubeDim, AddressType) {
    assert!(u32::try_from(cubes).is_ok(), "{cubes} cubes: a device counts them with 32 bits");
    let cube = CubeDim::new_1d(u32::try_from(units).expect("a cube has a few hundred units"));
    let near = tensors.first().expect("a kernel has a tensor");
    let count = calculate_cube_count_elemwise(&near.client, cubes * units, cube);
    let launched = match &count {
        CubeCount::Static(x, y, z) => [x, y, z].map(|side| *side as usize).iter().product::<usize>() * units,
        CubeCount::Dynamic(_) => 0,
    };
    (count, cube, indices(launched, tensors))
}

/// Returns the index type of a kernel of `units` units that uses `tensors`: 64 bits if 32 are not enough.
fn indices<const N: usize>(units: usize, tensors: [&CubeValues; N]) -> AddressType {
    let types = tensors.map(CubeValues::required_address_type);
    types.into_iter().fold(AddressType::from_len(units.saturating_sub(1)), Ord::max)
}

#[cfg(test)]
mod tests;

//! Who computes an operation: the host with gradients of its own, a device with kernels of its own, or tensor operations put together.

use super::experts::{self, Matrices};
use super::late::Side;
use super::{Arithmetic, Heads, Measured, Rotary, Share};
use super::{attention, linear, loss, norm, plain, pointwise, unary};
use crate::device;
use crate::parallel::Peers;
use burn::tensor::{Device, Tensor};
use dtrain_recipes::Precision;
use std::ops::Range;

/// Where the code of the operations comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// Fused operations on f32 in host memory.
    Host,
    /// Kernels for tensors of a device.
    #[cfg(feature = "device")]
    Device,
    /// Compositions of tensor operations, for every device and precision: what the others are tested against.
    Reference,
}

impl Implementation {
    /// The fastest for tensors of `device` and matrix products of `precision`.
    pub(crate) fn of(device: &Device, precision: Precision) -> Self {
        match (device::is_host(device), precision) {
            (true, Precision::F32) => Self::Host,
            (true, Precision::Bf16 | Precision::F16 | Precision::Fp8) => Self::Reference,
            #[cfg(feature = "device")]
            (false, _) => Self::Device,
            #[cfg(not(feature = "device"))]
            (false, _) => Self::Reference,
        }
    }

    pub(super) fn ops(self) -> &'static dyn Ops {
        match self {
            Self::Host => &Host,
            #[cfg(feature = "device")]
            Self::Device => &super::device::Device,
            Self::Reference => &Reference,
        }
    }
}

/// The operations, which the functions of [`super`] describe. What an implementation does not bring is the reference.
pub(super) trait Ops: Sync {
    fn project(
        &self,
        precision: Precision,
        x: Tensor<3>,
        weights: Vec<Tensor<2>>,
        biases: Vec<Tensor<1>>,
        residual: Option<Tensor<3>>,
    ) -> Tensor<3> {
        plain::project(precision, x, weights, biases, residual)
    }

    /// The gradients of the weights of a projection from its input and the gradient of its output, flat, as the weights lie.
    fn weight_gradients(
        &self,
        precision: Precision,
        x: Tensor<3>,
        d: Tensor<3>,
        sides: &[Side],
    ) -> Vec<Tensor<1>> {
        plain::weight_gradients(precision, x, d, sides)
    }

    fn rotary(&self, packed: Tensor<3>, heads: Heads, table: &Rotary) -> Tensor<3> {
        plain::rotary(packed, heads, table)
    }

    fn attention(&self, arithmetic: Arithmetic, packed: Tensor<3>, heads: Heads) -> Tensor<3> {
        let precision = arithmetic.precision;
        if arithmetic.forgets_scores {
            unary::again(packed, move |packed| plain::attention(precision, packed, heads))
        } else {
            plain::attention(precision, packed, heads)
        }
    }

    fn layer_norm(&self, x: Tensor<3>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f32) -> Tensor<3> {
        plain::layer_norm(x, weight, bias, epsilon)
    }

    fn rms_norm(&self, x: Tensor<3>, weight: Tensor<1>, epsilon: f32) -> Tensor<3> {
        plain::rms_norm(x, weight, epsilon)
    }

    fn gelu(&self, x: Tensor<3>) -> Tensor<3> {
        burn::tensor::activation::gelu(x)
    }

    fn gelu_tanh(&self, x: Tensor<3>) -> Tensor<3> {
        plain::gelu_tanh(x)
    }

    fn swiglu(&self, packed: Tensor<3>) -> Tensor<3> {
        plain::swiglu(packed)
    }

    fn embed(&self, table: Tensor<2>, share: Share, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
        plain::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        plain::add_positions(x, table, places)
    }

    fn cross_entropy(&self, logits: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Measured) {
        plain::cross_entropy(logits, targets)
    }

    fn cross_entropy_of_part(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        share: Share,
        peers: &Peers,
    ) -> (Tensor<1>, Measured) {
        plain::cross_entropy_of_part(logits, targets, share, peers)
    }

    fn rows(&self, x: Tensor<3>) -> Tensor<2> {
        x.flatten(0, 1)
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        plain::inject(output, upstream)
    }

    /// Each group of rows through the matrices of its expert.
    fn feed(
        &self,
        arithmetic: Arithmetic,
        rows: Tensor<3>,
        matrices: Matrices,
        groups: Vec<Range<usize>>,
    ) -> Tensor<3> {
        experts::feed_one_by_one(arithmetic, rows, matrices, groups)
    }
}

struct Reference;

impl Ops for Reference {}

struct Host;

impl Ops for Host {
    fn project(
        &self,
        _: Precision,
        x: Tensor<3>,
        weights: Vec<Tensor<2>>,
        biases: Vec<Tensor<1>>,
        residual: Option<Tensor<3>>,
    ) -> Tensor<3> {
        linear::project(x, weights, biases, residual)
    }

    fn weight_gradients(&self, _: Precision, x: Tensor<3>, d: Tensor<3>, sides: &[Side]) -> Vec<Tensor<1>> {
        linear::weight_gradients(x, d, sides)
    }

    fn rotary(&self, packed: Tensor<3>, heads: Heads, table: &Rotary) -> Tensor<3> {
        attention::rotary(packed, heads, table)
    }

    /// It never keeps its scores.
    fn attention(&self, _: Arithmetic, packed: Tensor<3>, heads: Heads) -> Tensor<3> {
        attention::attention(packed, heads)
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
        pointwise::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        pointwise::add_positions(x, table, places)
    }

    fn cross_entropy(&self, logits: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Measured) {
        loss::cross_entropy(logits, targets)
    }

    fn cross_entropy_of_part(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        share: Share,
        peers: &Peers,
    ) -> (Tensor<1>, Measured) {
        loss::cross_entropy_of_part(logits, targets, share, peers)
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        pointwise::inject(output, upstream)
    }

    fn feed(
        &self,
        _: Arithmetic,
        rows: Tensor<3>,
        matrices: Matrices,
        groups: Vec<Range<usize>>,
    ) -> Tensor<3> {
        experts::fused::feed(rows, matrices, groups)
    }
}

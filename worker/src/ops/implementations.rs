//! Implementations of the models' operations: fused on the host, kernels on a device, or compositions of
//! tensor operations.

use super::deferred_weight_grad::WeightLayout;
use super::experts::{self, ExpertMatrices};
use super::operations::Ops;
use super::{Arithmetic, AttentionHeads, AttentionMask, DeferredLossFigures, Rotary, VocabRange};
use super::{attention, linear, loss, norm, pointwise, rotary};
use crate::device;
use crate::mesh::Peers;
use burn::tensor::{Device, Tensor};
use dtrain_recipes::Precision;
use std::ops::Range;

/// The implementation that computes the operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Implementation {
    /// Fused operations on f32 in host memory.
    Host,
    /// Kernels for tensors in device memory.
    #[cfg(feature = "device")]
    Device,
    /// Compositions of tensor operations, for every device and precision; the others are tested against
    /// them.
    Reference,
}

impl Implementation {
    /// Returns the fastest implementation for tensors of `device` and matrix products of `precision`.
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
            Self::Host => &HostOps,
            #[cfg(feature = "device")]
            Self::Device => &super::device::AcceleratorOps,
            Self::Reference => &ReferenceOps,
        }
    }
}

struct ReferenceOps;

impl Ops for ReferenceOps {}

struct HostOps;

impl Ops for HostOps {
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

    fn weight_gradients(
        &self,
        _: Precision,
        x: Tensor<3>,
        d: Tensor<3>,
        sides: &[WeightLayout],
    ) -> Vec<Tensor<1>> {
        linear::weight_gradients(x, d, sides)
    }

    fn rotary(&self, packed: Tensor<3>, heads: AttentionHeads, table: &Rotary) -> Tensor<3> {
        rotary::rotary(packed, heads, table)
    }

    /// Computes attention; its scores are recomputed in the backward pass for any `Arithmetic`.
    fn attention(
        &self,
        _: Arithmetic,
        packed: Tensor<3>,
        heads: AttentionHeads,
        mask: &AttentionMask,
    ) -> Tensor<3> {
        attention::attention(packed, heads, mask)
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

    fn geglu(&self, packed: Tensor<3>) -> Tensor<3> {
        pointwise::geglu(packed)
    }

    fn embed(&self, table: Tensor<2>, share: VocabRange, tokens: &[u32], shape: [usize; 2]) -> Tensor<3> {
        pointwise::embed(table, share, tokens, shape)
    }

    fn add_positions(&self, x: Tensor<3>, table: Tensor<2>, places: &[usize]) -> Tensor<3> {
        pointwise::add_positions(x, table, places)
    }

    fn cross_entropy(
        &self,
        logits: Tensor<2>,
        targets: &[u32],
        z_loss: f32,
    ) -> (Tensor<1>, DeferredLossFigures) {
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
        loss::cross_entropy_of_part(logits, targets, share, peers, z_loss)
    }

    fn inject(&self, output: Tensor<3>, upstream: Tensor<3>) -> Tensor<1> {
        pointwise::inject(output, upstream)
    }

    fn feed(
        &self,
        _: Arithmetic,
        rows: Tensor<3>,
        matrices: ExpertMatrices,
        groups: Vec<Range<usize>>,
    ) -> Tensor<3> {
        experts::fused::feed(rows, matrices, groups)
    }
}

//! Sustained throughput of one device: the share of its peak that large matrix products and attention reach.

use super::constants::{Constants, GeneralConstants};
use crate::engine::AttentionKernel;
use crate::hardware::{GpuGeneration, GpuSpec};
use dtrain_recipes::Precision;

/// Number format in which the linear layers of a model are multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// f32, or TF32 on devices that have it.
    Bits32,
    /// bf16.
    Bits16,
    /// f16, with a scaled loss; as fast as bf16.
    F16,
    /// fp8, with a scale for each tensor.
    Bits8,
    /// fp8, with a scale for each block.
    Blocks8,
    /// fp4, with a scale for each block.
    Blocks4,
}

impl MatmulPrecision {
    /// Returns the bytes per element of a layer input that is saved for the backward.
    pub fn saved_bytes(self) -> f64 {
        if self.are_small() { 1.0 } else { 2.0 }
    }

    /// Returns the precision that layouts name.
    pub fn precision(self) -> Precision {
        match self {
            Self::Bits32 => Precision::F32,
            Self::Bits16 => Precision::Bf16,
            Self::F16 => Precision::F16,
            Self::Bits8 | Self::Blocks8 | Self::Blocks4 => Precision::Fp8,
        }
    }

    fn are_small(self) -> bool {
        matches!(self, Self::Bits8 | Self::Blocks8 | Self::Blocks4)
    }
}

/// Sustained throughput of one device, for one precision and attention kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceThroughput {
    /// FLOP/s of large matrix products in 16 bits (in 32 bits if the model is trained in 32).
    pub products: f64,
    /// Throughput of fp8 and fp4 products; `None` unless linear layers use them.
    pub small: Option<LowPrecisionThroughput>,
    /// FLOP/s of fused attention in the forward: scores, softmax and weighted values.
    pub attention: f64,
    /// Bytes/s of memory traffic in element-wise passes.
    pub stream: f64,
    /// Number of multiprocessors of the device, which share the tiles of a product.
    pub multiprocessors: f64,
    /// Exponent of the loss from wave quantization in large products.
    pub wave: f64,
    /// Efficiency of products whose dimension is a multiple of 8, 4, 2 or 1, in this order.
    pub align: [f64; 4],
    /// Share of its usual clock at which the device runs under its power limit.
    pub power: f64,
}

/// Throughput of matrix products in 8 bits or fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowPrecisionThroughput {
    /// FLOP/s of large products in low precision.
    pub products: f64,
    /// Number of passes over an operand to quantize it.
    pub passes: f64,
}

/// Share of the data sheet that products of f32 reach outside of tensor cores.
const F32_REACHED: f64 = 0.85;

impl DeviceThroughput {
    /// Computes the throughput of `gpu` for a precision and an attention kernel whose heads have `head`
    /// channels. `power` is the share of its usual clock at which the device runs under its power limit.
    pub fn of(
        gpu: &GpuSpec,
        products: MatmulPrecision,
        kernel: AttentionKernel,
        head: f64,
        power: f64,
        constants: &Constants,
    ) -> Self {
        let (c, generation) = (&constants.general, constants.generation(gpu));
        let reached = gpu.measured_16.map_or(gpu.peak() * generation.ceiling_16, |tflops| tflops * 1e12);
        let half = reached * generation.sustained_16 * power;
        let wide = match products {
            // Without TF32, products of f32 do not use tensor cores, and reach most of the rate.
            MatmulPrecision::Bits32 if !generation.has_bf16 => F32_REACHED * gpu.dense_32 * 1e12 / half,
            MatmulPrecision::Bits32 => gpu.dense_32 / gpu.dense_16,
            MatmulPrecision::Bits16
            | MatmulPrecision::F16
            | MatmulPrecision::Bits8
            | MatmulPrecision::Blocks8
            | MatmulPrecision::Blocks4 => 1.0,
        };
        Self {
            products: half * wide,
            small: small(gpu, products, power, constants),
            attention: gpu.peak() * attention(generation, c, kernel, head) * power,
            stream: gpu.memory_gbs * 1e9 * c.stream,
            multiprocessors: gpu.multiprocessors,
            wave: c.wave,
            align: [c.align_8, c.align_4, c.align_2, c.align_1],
            power,
        }
    }
}

/// Returns the throughput in low precision, if it is requested and `gpu` has it.
fn small(
    gpu: &GpuSpec,
    products: MatmulPrecision,
    power: f64,
    constants: &Constants,
) -> Option<LowPrecisionThroughput> {
    let (c, generation) = (&constants.general, constants.generation(gpu));
    if !products.are_small() || gpu.dense_8 <= 0.0 {
        return None;
    }
    let fourth = if products == MatmulPrecision::Blocks4 && gpu.generation.starts_with("blackwell") {
        1.5
    } else {
        1.0
    };
    let scales = if products == MatmulPrecision::Bits8 { 1.0 } else { c.blocks };
    Some(LowPrecisionThroughput {
        products: gpu.dense_8 * 1e12 * generation.ceiling_8 * generation.sustained_8 * power * fourth,
        passes: 0.5 * c.quantise * scales,
    })
}

/// Returns the share of the 16-bit peak that fused attention reaches in the forward.
fn attention(generation: &GpuGeneration, c: &GeneralConstants, kernel: AttentionKernel, head: f64) -> f64 {
    let share = match kernel {
        AttentionKernel::Fused => generation.fused * c.fused,
        AttentionKernel::Flash2 => generation.flash * c.flash_2,
        AttentionKernel::Flash1 | AttentionKernel::Unfused | AttentionKernel::Plain => {
            generation.flash * c.flash_1
        }
    };
    // FlashAttention 1 was tuned for heads of 64 channels.
    let is_narrow = head < 128.0 && matches!(kernel, AttentionKernel::Fused | AttentionKernel::Flash2);
    if is_narrow { share * c.narrow_head } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::gpu;

    #[test]
    fn products_of_32_bits_run_at_the_rate_of_the_data_sheet() {
        let of = |name, products| {
            let part = gpu(name).expect("it is in the table");
            DeviceThroughput::of(part, products, AttentionKernel::Fused, 128.0, 1.0, Constants::shipped())
                .products
        };
        let ratio = |name| of(name, MatmulPrecision::Bits32) / of(name, MatmulPrecision::Bits16);
        assert!((of("T4", MatmulPrecision::Bits32) / 1e12 - 0.85 * 8.1).abs() < 1e-9);
        assert!((ratio("H100") - 494.5 / 989.0).abs() < 1e-9);
    }
}

//! Seconds of matrix products by a roofline of arithmetic and memory traffic, with the losses from tile
//! quantization, alignment and padding.

use super::device_throughput::DeviceThroughput;
use std::ops::{Add, Mul};

/// Seconds of a forward pass and of its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ForwardBackward {
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass, without recomputation.
    pub backward: f64,
}

impl ForwardBackward {
    /// Returns the seconds of both passes together.
    pub fn sum(self) -> f64 {
        self.forward + self.backward
    }

    /// Returns the longer of the two forward passes, and the longer of the two backward passes.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { forward: self.forward.max(other.forward), backward: self.backward.max(other.backward) }
    }
}

impl Add for ForwardBackward {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { forward: self.forward + other.forward, backward: self.backward + other.backward }
    }
}

impl Mul<f64> for ForwardBackward {
    type Output = Self;

    fn mul(self, factor: f64) -> Self {
        Self { forward: self.forward * factor, backward: self.backward * factor }
    }
}

/// Number of rows, and of columns, in one tile of a matrix product.
const TILE: f64 = 128.0;

/// Rounds `x` up, with a tolerance for rounding errors of quotients.
pub(super) fn ceiling(x: f64) -> f64 {
    (x - 1e-9).ceil()
}

/// Returns the efficiency of a product from the largest power of two that divides `dimension`: tensor cores
/// read 16 bytes (eight 16-bit elements) at a time.
pub(super) fn alignment(dimension: f64, device: &DeviceThroughput) -> f64 {
    let [by_8, by_4, by_2, by_1] = device.align;
    let divides = |power: f64| dimension.round() % power == 0.0;
    match () {
        () if divides(64.0) => 1.0,
        () if divides(8.0) => by_8,
        () if divides(4.0) => by_4,
        () if divides(2.0) => by_2,
        () => by_1,
    }
}

/// A sequence of matrix products of the same shape, `(m × k)(k × n)`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Matmul {
    pub(super) m: f64,
    pub(super) n: f64,
    pub(super) k: f64,
    /// Number of products in the sequence.
    pub(super) groups: f64,
}

impl Matmul {
    /// Returns the share of the throughput of large products that these products reach, given wave
    /// quantization, the alignment of dimensions and padded rows.
    fn efficiency(&self, device: &DeviceThroughput) -> f64 {
        let multiprocessors = device.multiprocessors;
        let tiles = ceiling(self.m / TILE) * ceiling(self.n / TILE) * self.groups;
        // Below one wave, libraries split along k and recover part of the loss.
        let waves = (tiles / (ceiling(tiles / multiprocessors) * multiprocessors)).max(0.02);
        let rows = self.m / TILE;
        let padding = if rows < 1.0 { rows.max(0.25) } else { (rows / ceiling(rows)).sqrt() };
        waves.powf(device.wave) * alignment(self.n, device).min(alignment(self.k, device)) * padding
    }

    /// Returns the number of elements of both operands and the result, of all products together.
    fn elements(&self) -> f64 {
        self.groups * (self.m * self.k + self.k * self.n + self.m * self.n)
    }

    /// Returns the seconds by the roofline: the longer of arithmetic at `rate` FLOP/s (that of large
    /// products) and memory traffic at `bytes` per element.
    fn seconds(&self, rate: f64, bytes: f64, device: &DeviceThroughput) -> f64 {
        let arithmetic = 2.0 * self.m * self.n * self.k * self.groups / (rate * self.efficiency(device));
        arithmetic.max(bytes * self.elements() / device.stream)
    }

    /// Returns the seconds on `device`, in the fastest precision that linear layers may use.
    fn on(&self, device: &DeviceThroughput) -> f64 {
        match device.small {
            None => self.seconds(device.products, 2.0, device),
            Some(small) => {
                let operands = self.groups * (self.m * self.k + 0.3 * self.n * self.k);
                let quantised = small.passes * operands * 2.0 / device.stream;
                self.seconds(small.products, 1.3, device) + quantised
            }
        }
    }
}

/// Returns the seconds of a linear layer over `tokens`; its backward is two products of different shapes.
pub fn linear(tokens: f64, outputs: f64, inputs: f64, device: &DeviceThroughput) -> ForwardBackward {
    grouped_linear(tokens, outputs, inputs, 1.0, 0.0, device)
}

/// Returns the seconds of `groups` linear layers, each over `tokens`. Each product after the first takes
/// `start` seconds more, so many small experts cost more than a few large ones.
pub fn grouped_linear(
    tokens: f64,
    outputs: f64,
    inputs: f64,
    groups: f64,
    start: f64,
    device: &DeviceThroughput,
) -> ForwardBackward {
    let product = |m, n, k| Matmul { m, n, k, groups }.on(device) + (groups - 1.0) * start;
    ForwardBackward {
        forward: product(tokens, outputs, inputs),
        backward: product(tokens, inputs, outputs) + product(outputs, inputs, tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Constants;
    use super::super::device_throughput::MatmulPrecision;
    use super::*;
    use crate::engine::AttentionKernel;
    use crate::hardware::gpu;

    fn a100() -> DeviceThroughput {
        let part = gpu("A100-SXM-80GB").expect("it is in the table");
        DeviceThroughput::of(
            part,
            MatmulPrecision::Bits16,
            AttentionKernel::Flash2,
            128.0,
            1.0,
            Constants::shipped(),
        )
    }

    #[test]
    fn a_large_product_runs_at_its_rate_and_an_odd_one_does_not() {
        let device = a100();
        let flops = |n: f64| 3.0 * 2.0 * 8192.0 * n * 8192.0 / linear(8192.0, n, 8192.0, &device).sum();
        assert!(flops(8192.0) / device.products > 0.95, "{}", flops(8192.0));
        assert!(flops(8191.0) / device.products < 0.6, "{}", flops(8191.0));
    }

    #[test]
    fn a_few_tokens_cost_what_reading_the_weights_costs() {
        let device = a100();
        let read = 2.0 * 8192.0 * 8192.0 / device.stream;
        let found = linear(1.0, 8192.0, 8192.0, &device).forward;
        assert!((found / read - 1.0).abs() < 0.01, "{found} {read}");
    }

    #[test]
    fn one_large_expert_costs_what_one_large_product_costs_and_many_small_ones_more() {
        let device = a100();
        let start = Constants::shipped().general.grouped;
        let one = grouped_linear(8192.0, 14336.0, 4096.0, 1.0, start, &device).sum();
        assert!((one / linear(8192.0, 14336.0, 4096.0, &device).sum() - 1.0).abs() < 1e-12);
        let many = grouped_linear(256.0, 768.0, 2048.0, 32.0, start, &device).sum();
        assert!(many > 1.2 * grouped_linear(256.0, 768.0, 2048.0, 32.0, 0.0, &device).sum());
    }

    #[test]
    fn products_of_eight_bits_are_faster_by_less_than_twice() {
        let part = gpu("H100").expect("it is in the table");
        let seconds = |products| {
            linear(
                16384.0,
                8192.0,
                8192.0,
                &DeviceThroughput::of(
                    part,
                    products,
                    AttentionKernel::Fused,
                    128.0,
                    1.0,
                    Constants::shipped(),
                ),
            )
            .sum()
        };
        let ratio = seconds(MatmulPrecision::Bits16) / seconds(MatmulPrecision::Bits8);
        assert!(ratio > 1.5 && ratio < 2.0, "{ratio}");
        assert!(
            seconds(MatmulPrecision::Blocks8) > seconds(MatmulPrecision::Bits8),
            "scales by block cost passes"
        );
    }
}

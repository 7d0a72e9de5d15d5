//! Peak figures of one rank's device on the hosts of a recipe, which a probe then replaces by measured rates.

use super::{GpuSpec, HostGroup, Link, LinkClass};
use dtrain_protocol::DeviceKind;
use dtrain_recipes::Precision;

/// Share of the bandwidth of a link that a collective reaches.
const REACHED: f64 = 0.8;

/// Peak figures of the device of one rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DevicePeak {
    /// FLOP/s of f32 matrix products (TF32 on a GPU that has it); a multiply-add counts as two.
    pub f32_flops: f64,
    /// FLOP/s of matrix products in 16 bits: bf16, or f16 on a device without bf16.
    pub half_flops: f64,
    /// Bytes per second between the device and its memory.
    pub memory_bandwidth: f64,
    /// Fraction of the peak FLOP/s that large matrix products reach in practice.
    pub efficiency: f64,
    /// Seconds to launch one operation.
    pub launch: f64,
    /// Link to the other devices of the host.
    pub link: Link,
    /// Network to devices of other hosts; `None` for CPU cores, whose network no data sheet gives.
    pub network: Option<Link>,
    /// Factor, in either direction, within which 80 % of predictions from the data sheet lie.
    pub doubt: f64,
}

impl DevicePeak {
    /// Returns the peak figures of a rank: of `threads` CPU cores, or of a GPU of `group`.
    pub fn of_rank(group: Option<&HostGroup>, device: DeviceKind, threads: u32) -> Self {
        match (device, group) {
            (DeviceKind::Cuda | DeviceKind::Wgpu, Some(group)) => Self::of_gpu(group),
            (DeviceKind::Cpu, _) | (_, None) => Self::of_cores(threads),
        }
    }

    /// Returns figures for `threads` CPU cores, each with two 256-bit multiply-add units at 2.5 GHz: only a
    /// typical core, so the uncertainty is large.
    pub fn of_cores(threads: u32) -> Self {
        let cores = f64::from(threads);
        Self {
            f32_flops: cores * 80e9,
            half_flops: cores * 40e9,
            memory_bandwidth: 8e9 * cores.min(8.0),
            efficiency: 0.5,
            launch: 2e-6,
            link: Link { class: LinkClass::ThroughHost, bandwidth: 3e9, latency: 20e-6 },
            network: None,
            doubt: 2.5,
        }
    }

    /// Returns the figures of one GPU of `group`, at the clock that its power limit allows.
    pub fn of_gpu(group: &HostGroup) -> Self {
        let part: &GpuSpec = group.gpu;
        let generation = part.generation();
        let is_known = part != super::unknown();
        let clock = group.watts.map_or(1.0, |watts| part.clock_at(watts));
        let reached = |link: Link| Link { bandwidth: REACHED * link.bandwidth, ..link };
        Self {
            f32_flops: part.dense_32 * 1e12 * clock,
            half_flops: part.dense_16 * 1e12 * clock,
            memory_bandwidth: part.memory_gbs * 1e9,
            efficiency: generation.ceiling_16 * generation.sustained_16,
            launch: 6e-6,
            link: reached(group.link),
            network: Some(reached(group.network)),
            doubt: if is_known { 1.8 } else { 3.0 },
        }
    }

    /// Returns the peak FLOP/s of matrix products in `precision`.
    pub fn flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.f32_flops,
            Precision::F16 | Precision::Bf16 | Precision::Fp8 => self.half_flops,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::{gpu, unknown};

    fn peak(name: &str) -> DevicePeak {
        DevicePeak::of_gpu(&HostGroup::of(gpu(name).unwrap_or_else(unknown), 1, 1))
    }

    #[test]
    fn both_planners_read_the_same_figures_of_a_part() {
        assert!((peak("NVIDIA H200").flops(Precision::Bf16) - 989e12).abs() < 1e12);
        assert!((peak("Tesla V100-SXM2-16GB").flops(Precision::F16) - 125e12).abs() < 1e12);
    }

    #[test]
    fn an_unknown_device_is_doubted_more() {
        assert!(peak("Frobnicator 9").doubt > peak("NVIDIA H200").doubt);
    }
}

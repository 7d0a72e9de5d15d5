//! Data sheets of devices, for hosts that have not been measured; measured rates take precedence.

use crate::hardware;
use dtrain_protocol::DeviceKind;
use dtrain_recipes::Precision;

/// Peak figures of one device, from its data sheet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Datasheet {
    /// FLOP/s of f32 matrix products (TF32 on a GPU); a multiply-add counts as two.
    pub f32_flops: f64,
    /// FLOP/s of matrix products in 16 bits.
    pub bf16_flops: f64,
    /// Bytes per second between the device and its memory.
    pub memory_bandwidth: f64,
    /// Fraction of the peak FLOP/s that large matrix products reach in practice.
    pub efficiency: f64,
    /// Seconds to launch one operation.
    pub launch: f64,
    /// Bytes per second of the link between two devices of one host.
    pub link_bandwidth: f64,
    /// Seconds of latency per hop between two devices of one host.
    pub link_latency: f64,
    /// Factor, in either direction, within which 80 % of predictions from the data sheet lie.
    pub doubt: f64,
}

impl Datasheet {
    /// Returns the peak FLOP/s of matrix products in `precision`.
    pub fn flops(&self, precision: Precision) -> f64 {
        match precision {
            Precision::F32 => self.f32_flops,
            Precision::Bf16 | Precision::F16 | Precision::Fp8 => self.bf16_flops,
        }
    }
}

/// Returns the peak figures of one rank: `threads` CPU cores, or the GPU called `name`.
pub fn datasheet(device: DeviceKind, name: &str, threads: u32) -> Datasheet {
    match device {
        DeviceKind::Cpu => processor(threads),
        DeviceKind::Cuda | DeviceKind::Wgpu => gpu(name),
    }
}

/// Returns figures for `threads` CPU cores, each with two 256-bit multiply-add units at 2.5 GHz: only a
/// typical core, so the uncertainty is large.
fn processor(threads: u32) -> Datasheet {
    let cores = f64::from(threads);
    Datasheet {
        f32_flops: cores * 80e9,
        bf16_flops: cores * 40e9,
        memory_bandwidth: 8e9 * cores.min(8.0),
        efficiency: 0.5,
        launch: 2e-6,
        link_bandwidth: 3e9,
        link_latency: 20e-6,
        doubt: 2.5,
    }
}

fn gpu(name: &str) -> Datasheet {
    let known = hardware::gpu(name);
    let part = known.unwrap_or_else(|| hardware::unknown());
    // Neither has bf16: 16-bit products run at the f32 rate.
    let is_old = matches!(part.generation.as_str(), "volta" | "turing");
    Datasheet {
        f32_flops: part.dense_32 * 1e12,
        bf16_flops: if is_old { part.dense_32 } else { part.dense_16 } * 1e12,
        memory_bandwidth: part.memory * 1e12,
        efficiency: 0.6,
        launch: 6e-6,
        link_bandwidth: part.link * 1e9 * 0.8,
        link_latency: 10e-6,
        doubt: if known.is_some() { 1.8 } else { 3.0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_is_found_first() {
        let flops = |name| datasheet(DeviceKind::Cuda, name, 1).flops(Precision::Bf16);
        assert!((flops("NVIDIA H200") - 989e12).abs() < 1.0);
        assert!((flops("NVIDIA H100 PCIe") - 756e12).abs() < 1.0);
        assert!((flops("NVIDIA GB200") - 2500e12).abs() < 1.0);
        assert!((flops("NVIDIA L40S") - 362e12).abs() < 1.0);
    }

    #[test]
    fn an_unknown_device_is_doubted_more() {
        let doubt = |name| datasheet(DeviceKind::Cuda, name, 1).doubt;
        assert!(doubt("Frobnicator 9") > doubt("NVIDIA H200"));
    }
}

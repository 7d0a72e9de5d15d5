//! Picks the backend a rank computes on. Nothing else in the worker knows which one it is.

use burn::tensor::{Device, DeviceType};
use dtrain_protocol::{DeviceKind, Gpu, Placement};

/// Why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The binary has no CUDA backend.
    #[error(
        "a CUDA device was assigned, but this binary was built without CUDA; build it with `cargo build --release --features cuda`"
    )]
    NotBuilt,
    /// The index is beyond the devices that CUDA shows.
    #[error("CUDA device {wanted} was assigned, but CUDA shows {found} devices on this host")]
    Absent {
        /// Index that was assigned.
        wanted: u32,
        /// Number of devices seen.
        found: usize,
    },
}

/// Opens the device of `placement` and sizes the process-wide pool of compute threads.
///
/// The pool is built once; a later call with another number of threads leaves it as it is.
/// An `Err` means that the device is not there; it never falls back to another one.
pub fn open(placement: &Placement) -> Result<Device, DeviceError> {
    let threads = usize::try_from(placement.threads.max(1)).unwrap_or(1);
    // Fails only when the pool exists already, which is what the doc promises.
    drop(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global());
    match placement.device {
        DeviceKind::Cpu => Ok(Device::flex()),
        DeviceKind::Cuda => cuda(placement.index),
    }
}

#[cfg(feature = "cuda")]
fn cuda(index: u32) -> Result<Device, DeviceError> {
    let found = Device::enumerate(DeviceType::Cuda).into_vec().len();
    match usize::try_from(index) {
        Ok(position) if position < found => Ok(Device::cuda(position)),
        _ => Err(DeviceError::Absent { wanted: index, found }),
    }
}

#[cfg(not(feature = "cuda"))]
fn cuda(_index: u32) -> Result<Device, DeviceError> {
    Err(DeviceError::NotBuilt)
}

/// Whether tensors of `device` lie in host memory, where the fused operations can reach them.
pub(crate) fn is_host(device: &Device) -> bool {
    Device::enumerate(DeviceType::Flex).into_vec().contains(device)
}

/// Device in words, such as `cpu (flex, 2 threads)`.
pub fn words(placement: &Placement) -> String {
    match placement.device {
        DeviceKind::Cpu => {
            let plural = if placement.threads == 1 { "" } else { "s" };
            format!("cpu (flex, {} thread{plural})", placement.threads)
        }
        DeviceKind::Cuda => format!("cuda:{}", placement.index),
    }
}

/// CUDA devices that this binary can use: none without the feature `cuda` or without a driver.
#[cfg(feature = "cuda")]
pub fn gpus() -> Vec<Gpu> {
    let devices = Device::enumerate(DeviceType::Cuda).into_vec();
    devices.iter().enumerate().map(|(index, device)| gpu(index, device)).collect()
}

/// CUDA devices that this binary can use: none without the feature `cuda` or without a driver.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> Vec<Gpu> {
    Vec::new()
}

/// Name by the runtime, memory by the driver's own tool; 0 bytes when that does not say.
#[cfg(feature = "cuda")]
fn gpu(index: usize, device: &Device) -> Gpu {
    let name = device.identity().map_or_else(|| format!("cuda:{index}"), |identity| identity.name);
    Gpu { name, memory_bytes: memory_bytes(index) }
}

/// Total memory of GPU `index` by `nvidia-smi`, which every driver brings.
#[cfg(feature = "cuda")]
fn memory_bytes(index: usize) -> u64 {
    let arguments = ["--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", &index.to_string()];
    let mebibytes = std::process::Command::new("nvidia-smi")
        .args(arguments)
        .output()
        .ok()
        .and_then(|output| String::from_utf8(output.stdout).ok())
        .and_then(|text| text.trim().parse::<u64>().ok());
    mebibytes.unwrap_or(0) << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_opens_and_says_so() {
        let placement = Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 2 };
        let device = open(&placement).unwrap();
        assert!(is_host(&device));
        assert!(is_host(&device.autodiff()));
        assert_eq!(words(&placement), "cpu (flex, 2 threads)");
        assert_eq!(words(&Placement { threads: 1, ..placement }), "cpu (flex, 1 thread)");
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_without_the_feature_is_refused_with_the_command_to_build_it() {
        let refused =
            open(&Placement { host: 0, device: DeviceKind::Cuda, index: 0, threads: 1 }).unwrap_err();
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
        assert_eq!(gpus(), []);
    }
}

//! Device selection: opens the backend that a rank computes on. No other module of the worker depends on
//! which one it is.

#[cfg(feature = "device")]
pub(crate) mod kernel_cache;

use burn::BurnConfig;
use burn::tensor::Device;
use cubecl_environment::config::RuntimeConfig;
use dtrain_protocol::{DeviceKind, Gpu, Placement};

/// Environment variable with the number of GPUs that Mesa's software device counts as, for tests; 0 by
/// default, because it is slower than the CPU backend.
pub const SOFTWARE_GPUS: &str = "DTRAIN_SOFTWARE_GPUS";

/// Environment variable with the folder of compiled GPU kernels, an absolute path; `off` disables the
/// cache.
pub const KERNEL_CACHE: &str = "DTRAIN_KERNEL_CACHE";

/// Environment variable with the seconds that a process may spend on choosing kernels for matrix products;
/// 0 disables it.
pub const TUNING_SECONDS: &str = "DTRAIN_TUNING_SECONDS";

/// Version of burn, as in `Cargo.lock`.
pub(crate) const BURN: &str = "0.22.1";

/// Version of CubeCL, as in `Cargo.lock`.
pub(crate) const CUBECL: &str = "0.11.3";

/// The reason why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The binary was built without the backend of the assigned device.
    #[error(
        "a {device} device was assigned, but this binary was built without {device}; build it with \
         `cargo build --release --features {device}`"
    )]
    NotBuilt {
        /// Name of the backend, and of the feature that builds it.
        device: &'static str,
    },
    /// The assigned index is beyond the devices of this host.
    #[error("{device} device {wanted} was assigned, but {device} shows {found} devices on this host")]
    Absent {
        /// Name of the backend.
        device: &'static str,
        /// Index of the assigned device.
        wanted: u32,
        /// Number of devices found.
        found: usize,
    },
}

/// Opens the device of `placement` and sizes the process-wide pool of compute threads.
///
/// The pool is built once; a later call with another number of threads leaves it as it is. `Err` if the
/// device does not exist; there is no fallback to another one.
pub fn open(placement: &Placement) -> Result<Device, DeviceError> {
    read_no_files();
    let threads = usize::try_from(placement.threads.max(1)).unwrap_or(1);
    // Fails only if the pool exists already, as documented above.
    drop(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global());
    if placement.device == DeviceKind::Cpu {
        return Ok(Device::flex());
    }
    let device = placement.device.word();
    if !is_built(placement.device) {
        return Err(DeviceError::NotBuilt { device });
    }
    let index = placement.index as usize;
    #[cfg(feature = "device")]
    kernel_cache::configure(index);
    let found = devices(placement.device, index + 1);
    let absent = DeviceError::Absent { device, wanted: placement.index, found: found.len() };
    found.into_iter().nth(index).ok_or(absent)
}

/// Keeps burn from reading a `burn.toml` of the current folder or of one above: its logs go to any file
/// that it names. `kernel_cache` does the same for CubeCL.
fn read_no_files() {
    BurnConfig::try_set(BurnConfig::default());
}

/// Returns `true` if `device` is a software device, which tests use.
#[cfg(feature = "device")]
#[cfg_attr(not(feature = "wgpu"), expect(unused_variables, reason = "only wgpu has a software device"))]
pub(crate) fn is_software(device: &Device) -> bool {
    #[cfg(feature = "wgpu")]
    return device.clone().inner() == Device::wgpu(burn::tensor::DeviceKind::Cpu);
    #[cfg(not(feature = "wgpu"))]
    false
}

/// Returns the GPUs of a backend; none without the backend or without a driver. A software device counts as
/// `software` of them.
#[cfg_attr(not(feature = "wgpu"), expect(unused_variables, reason = "only wgpu has a software device"))]
fn devices(kind: DeviceKind, software: usize) -> Vec<Device> {
    #[cfg(feature = "device")]
    if kind != DeviceKind::Cpu {
        kernel_cache::configure(0);
    }
    match kind {
        DeviceKind::Cpu => Vec::new(),
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => cuda_devices(),
        #[cfg(feature = "wgpu")]
        DeviceKind::Wgpu => wgpu_devices(software),
        #[cfg(not(all(feature = "cuda", feature = "wgpu")))]
        _ => Vec::new(),
    }
}

/// Returns the GPUs of CUDA. `Device::enumerate` would search for those of wgpu as well.
#[cfg(feature = "cuda")]
fn cuda_devices() -> Vec<Device> {
    let first = cubecl::RuntimeId::Cuda.stamp(cubecl::device::DeviceId::new(0, 0));
    (0..cubecl::Device::enumerate(first).len()).map(Device::cuda).collect()
}

/// Returns the GPUs of wgpu; without any, `wanted` copies of the software device.
#[cfg(feature = "wgpu")]
fn wgpu_devices(wanted: usize) -> Vec<Device> {
    let software = Device::wgpu(burn::tensor::DeviceKind::Cpu);
    let (software, gpus): (Vec<_>, Vec<_>) = Device::enumerate(burn::tensor::DeviceType::Wgpu)
        .into_vec()
        .into_iter()
        .partition(|device| *device == software);
    if gpus.is_empty() { software.into_iter().cycle().take(wanted).collect() } else { gpus }
}

/// Returns every GPU of a backend, of any vendor; without any, as many software devices as
/// [`SOFTWARE_GPUS`] says.
pub(crate) fn devices_of_kind(kind: DeviceKind) -> Vec<Device> {
    devices(kind, software())
}

/// Returns the number of GPUs that a software device counts as.
fn software() -> usize {
    std::env::var(SOFTWARE_GPUS).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Checks that a device that the user names exists; a software device only if [`SOFTWARE_GPUS`] allows it.
pub fn find(kind: DeviceKind, index: u32) -> Result<(), DeviceError> {
    let device = kind.word();
    if !is_built(kind) {
        return Err(DeviceError::NotBuilt { device });
    }
    let found = if kind == DeviceKind::Cpu { 1 } else { devices_of_kind(kind).len() };
    if index as usize >= found {
        return Err(DeviceError::Absent { device, wanted: index, found });
    }
    Ok(())
}

/// Returns `true` if this binary has the backend of `kind`.
fn is_built(kind: DeviceKind) -> bool {
    match kind {
        DeviceKind::Cpu => true,
        DeviceKind::Cuda => cfg!(feature = "cuda"),
        DeviceKind::Wgpu => cfg!(feature = "wgpu"),
    }
}

/// Returns `true` if tensors of `device` are in host memory, where the fused operations can reach them.
pub(crate) fn is_host(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Describes the device of `placement`, such as `cpu (flex, 2 threads)`.
pub fn describe(placement: &Placement) -> String {
    match placement.device {
        DeviceKind::Cpu => {
            let plural = if placement.threads == 1 { "" } else { "s" };
            format!("cpu (flex, {} thread{plural})", placement.threads)
        }
        kind @ (DeviceKind::Cuda | DeviceKind::Wgpu) => format!("{}:{}", kind.word(), placement.index),
    }
}

/// Returns the GPUs that this binary can use: none without a backend for them.
#[cfg(not(feature = "device"))]
pub fn gpus() -> Vec<Gpu> {
    Vec::new()
}

/// Returns the GPUs that this binary can use: those of CUDA, and if there are none those of wgpu.
#[cfg(feature = "device")]
pub fn gpus() -> Vec<Gpu> {
    let of = |kind| {
        devices_of_kind(kind)
            .iter()
            .enumerate()
            .map(|(index, device)| gpu(kind, index, device))
            .collect::<Vec<_>>()
    };
    let gpus = of(DeviceKind::Cuda);
    // The search for Vulkan devices takes a tenth of a second, and prints warnings on a host without a
    // graphical login.
    let nodes = ["/dev/dri", "/dev/dxg", "/dev/nvidiactl"].map(std::path::Path::new);
    let may_have = software() > 0 || !cfg!(target_os = "linux") || nodes.iter().any(|node| node.exists());
    if gpus.is_empty() && may_have { of(DeviceKind::Wgpu) } else { gpus }
}

/// Returns the description of a GPU, with its name from the runtime and its memory from the driver.
#[cfg(feature = "device")]
fn gpu(kind: DeviceKind, index: usize, device: &Device) -> Gpu {
    let placement = Placement { host: 0, device: kind, index: u32::try_from(index).unwrap_or(0), threads: 1 };
    let DeviceInfo { name, memory_bytes, .. } = card(device);
    Gpu { device: kind, name: name.unwrap_or_else(|| describe(&placement)), memory_bytes }
}

/// Facts that the runtime and the driver report about a device.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceInfo {
    /// Name of the device.
    pub(crate) name: Option<String>,
    /// Target architecture of compiled kernels.
    pub(crate) target: Option<String>,
    /// PCI address, such as `0000:65:00.0`.
    pub(crate) pci_address: Option<String>,
    /// Total memory in bytes; 0 if unknown.
    pub(crate) memory_bytes: u64,
}

/// Returns the facts about a device; only the memory for the host.
#[cfg(not(feature = "device"))]
pub(crate) fn card(_: &Device) -> DeviceInfo {
    DeviceInfo { memory_bytes: host_memory_bytes().unwrap_or(0), ..DeviceInfo::default() }
}

/// Returns the facts about a device; only the memory for the host.
#[cfg(feature = "device")]
pub(crate) fn card(device: &Device) -> DeviceInfo {
    let identity = if is_host(device) { None } else { device.identity() };
    let Some(identity) = identity else {
        return DeviceInfo { memory_bytes: host_memory_bytes().unwrap_or(0), ..DeviceInfo::default() };
    };
    let (is_card, address) = match &identity.physical {
        Some(card) => (true, card.pci_address.map(|address| address.to_string())),
        None => (false, None),
    };
    let memory_bytes = if is_card && !is_integrated(device) {
        address.as_deref().and_then(memory_bytes).unwrap_or(0)
    } else {
        host_memory_bytes().unwrap_or(0)
    };
    DeviceInfo {
        name: Some(identity.name),
        target: Some(identity.fingerprint),
        pci_address: address,
        memory_bytes,
    }
}

/// Returns the total memory of the GPU at a PCI address such as `0000:65:00.0`, as its driver reports it;
/// `None` if it does not.
#[cfg(feature = "device")]
fn memory_bytes(pci_address: &str) -> Option<u64> {
    let amd = format!("/sys/bus/pci/devices/{pci_address}/mem_info_vram_total");
    if let Ok(text) = std::fs::read_to_string(amd) {
        return text.trim().parse().ok();
    }
    let mebibytes: u64 = nvidia("memory.total", pci_address)?.parse().ok()?;
    Some(mebibytes << 20)
}

/// Queries `field` of the GPU at a PCI address from `nvidia-smi`; `None` if it does not answer.
///
/// An index would not do: `nvidia-smi` counts all GPUs, CUDA those of `CUDA_VISIBLE_DEVICES` in its own
/// order.
pub(crate) fn nvidia(field: &str, pci_address: &str) -> Option<String> {
    let query = format!("--query-gpu={field}");
    let arguments = [&query, "--format=csv,noheader,nounits", "-i", pci_address];
    let output = std::process::Command::new("nvidia-smi").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    Some(text).filter(|text| output.status.success() && !text.is_empty())
}

/// Returns `true` if the GPU is part of the processor and uses the memory of the host.
#[cfg(feature = "device")]
fn is_integrated(device: &Device) -> bool {
    #[cfg(feature = "wgpu")]
    return (0..8).any(|index| *device == Device::wgpu(burn::tensor::DeviceKind::IntegratedGpu(index)));
    #[cfg(not(feature = "wgpu"))]
    {
        let _ = device;
        false
    }
}

/// Returns the memory of this host in bytes, which integrated GPUs and software devices use.
fn host_memory_bytes() -> Option<u64> {
    let facts = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = facts.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_versions_are_those_that_are_built() {
        let lock = include_str!("../../../Cargo.lock");
        for (name, version) in [("burn", BURN), ("cubecl", CUBECL)] {
            assert!(lock.contains(&format!("name = \"{name}\"\nversion = \"{version}\"")), "{name}");
        }
    }

    #[test]
    fn the_processor_opens_and_says_so() {
        let placement = Placement { host: 0, device: DeviceKind::Cpu, index: 0, threads: 2 };
        let device = open(&placement).unwrap();
        assert!(is_host(&device));
        assert!(is_host(&device.autodiff()));
        assert_eq!(describe(&placement), "cpu (flex, 2 threads)");
        assert_eq!(describe(&Placement { threads: 1, ..placement }), "cpu (flex, 1 thread)");
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_gpu_without_the_feature_is_refused_with_the_command_to_build_it() {
        let refused =
            open(&Placement { host: 0, device: DeviceKind::Cuda, index: 0, threads: 1 }).unwrap_err();
        assert!(refused.to_string().contains("--features cuda"), "{refused}");
    }

    /// Mesa's, which `tests/run` installs.
    #[cfg(feature = "wgpu")]
    #[test]
    fn a_software_device_is_no_gpu_unless_it_is_asked_for() {
        let placement = Placement { host: 0, device: DeviceKind::Wgpu, index: 1, threads: 1 };
        assert_eq!(describe(&placement), "wgpu:1");
        let Ok(second) = open(&placement) else {
            return dtrain_skip::skip("there is no Vulkan device; `tests/run` installs Mesa's");
        };
        assert!(!is_host(&second));
        assert!(!devices(DeviceKind::Wgpu, 0).contains(&Device::wgpu(burn::tensor::DeviceKind::Cpu)));
    }
}

//! GPUs that the Linux kernel reports, and the GPU backends of this build.

use dtrain_runner::cuda::HostEnvironment;
use std::fmt;
use std::fs;
use std::path::PathBuf;

/// Returns the vendor of an NVIDIA GPU on this machine that this build cannot use; `None` if there is none.
/// GPUs of other vendors may be integrated, and not faster than the processor.
pub(crate) fn unused_gpu() -> Option<GpuVendor> {
    KernelGpus::at(&HostEnvironment::current())
        .unused(BuiltBackends::HERE)
        .filter(|maker| *maker == GpuVendor::Nvidia)
}

/// Vendor of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuVendor {
    Nvidia,
    Amd,
    Intel,
    /// A vendor that dtrain does not know.
    Unknown,
}

impl GpuVendor {
    /// Returns the command that builds dtrain with the backend for this vendor's GPUs.
    pub(crate) fn build(self) -> &'static str {
        match self {
            Self::Nvidia => "cargo build --release --features cuda",
            Self::Amd | Self::Intel | Self::Unknown => "cargo build --release --features wgpu",
        }
    }
}

impl fmt::Display for GpuVendor {
    /// Formats the vendor with an article: `an AMD GPU`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nvidia => "an NVIDIA GPU",
            Self::Amd => "an AMD GPU",
            Self::Intel => "an Intel GPU",
            Self::Unknown => "a GPU",
        })
    }
}

/// GPU backends that a build of dtrain contains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BuiltBackends {
    pub(crate) cuda: bool,
    pub(crate) wgpu: bool,
}

impl BuiltBackends {
    pub(crate) const HERE: Self = Self { cuda: cfg!(feature = "cuda"), wgpu: cfg!(feature = "wgpu") };
}

/// GPUs that the kernel reports, even without a driver that lets programs use them.
#[derive(Debug)]
pub(crate) struct KernelGpus {
    pub(crate) nvidia: bool,
    /// GPUs of other vendors, each with its device file.
    pub(crate) others: Vec<(GpuVendor, PathBuf)>,
}

impl KernelGpus {
    pub(crate) fn at(place: &HostEnvironment) -> Self {
        let is_numbered = |name: &String| name["nvidia".len()..].parse::<u32>().is_ok();
        // A container may have any one of these.
        let has_node = HostEnvironment::names(&place.at("/dev"), "nvidia").iter().any(is_numbered);
        let in_windows = place.at("/dev/dxg").exists() && place.at("/usr/lib/wsl/lib/libcuda.so").exists();
        let mut seen = Self { nvidia: has_node || in_windows, others: Vec::new() };
        for name in HostEnvironment::names(&place.at("/dev/dri"), "renderD") {
            let vendor = place.at(format!("/sys/class/drm/{name}/device/vendor"));
            let maker = match fs::read_to_string(vendor).unwrap_or_default().trim() {
                "0x10de" => {
                    seen.nvidia = true;
                    continue;
                }
                // GPUs of virtual machines (virtio, VMware) can only draw.
                "0x1af4" | "0x15ad" => continue,
                "0x1002" => GpuVendor::Amd,
                "0x8086" => GpuVendor::Intel,
                _ => GpuVendor::Unknown,
            };
            seen.others.push((maker, place.at("/dev/dri").join(name)));
        }
        seen
    }

    /// Returns the vendor of a GPU that the build `built` cannot use; `None` if it can use another GPU, which
    /// it then uses alone.
    pub(crate) fn unused(&self, built: BuiltBackends) -> Option<GpuVendor> {
        let other = self.others.first().map(|(maker, _)| *maker);
        match (self.nvidia, built) {
            (_, BuiltBackends { wgpu: true, .. }) | (true, BuiltBackends { cuda: true, .. }) => None,
            (true, _) => Some(GpuVendor::Nvidia),
            (false, _) => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: BuiltBackends = BuiltBackends { cuda: false, wgpu: false };
    const CUDA: BuiltBackends = BuiltBackends { cuda: true, wgpu: false };
    const WGPU: BuiltBackends = BuiltBackends { cuda: false, wgpu: true };
    const BOTH: BuiltBackends = BuiltBackends { cuda: true, wgpu: true };

    #[test]
    fn a_run_mentions_a_gpu_only_where_no_backend_reaches_it() {
        let seen = |nvidia, other: Option<GpuVendor>| KernelGpus {
            nvidia,
            others: other.into_iter().map(|maker| (maker, PathBuf::new())).collect(),
        };
        assert_eq!(seen(true, Some(GpuVendor::Intel)).unused(NONE), Some(GpuVendor::Nvidia));
        assert_eq!(seen(true, Some(GpuVendor::Intel)).unused(CUDA), None);
        assert_eq!(seen(true, None).unused(WGPU), None, "wgpu reaches it, too");
        assert_eq!(seen(false, Some(GpuVendor::Amd)).unused(CUDA), Some(GpuVendor::Amd));
        assert_eq!(seen(false, Some(GpuVendor::Amd)).unused(BOTH), None);
        assert_eq!(seen(false, None).unused(NONE), None);
    }
}

//! Checks of GPUs: which ones this machine has, and which this build can use.

use super::place::HostEnvironment;
use super::{Finding, cuda};
use crate::kernel_gpus::{BuiltBackends, GpuVendor, KernelGpus};
use dtrain_protocol::{DeviceKind, Gpu};
use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

/// Returns all findings about GPUs; a single one if there is no GPU.
pub(super) fn checks() -> Vec<Finding> {
    let (place, usable) = (HostEnvironment::current(), dtrain_worker::device::gpus());
    let seen = KernelGpus::at(&place);
    let mut checks = vec![gpu(&place, &seen, &usable, BuiltBackends::HERE)];
    checks.extend(memory(&usable));
    let by_cuda = usable.iter().any(|gpu| gpu.device == DeviceKind::Cuda);
    if BuiltBackends::HERE.cuda && (seen.nvidia || by_cuda) {
        checks.extend(cuda::checks(&place));
    }
    checks
}

/// Checks the GPUs that this build can use (`usable`), or else those that only the kernel sees (`seen`).
fn gpu(place: &HostEnvironment, seen: &KernelGpus, usable: &[Gpu], built: BuiltBackends) -> Finding {
    let name = "gpu";
    if let Some(first) = usable.first() {
        let names = names(usable);
        return match first.device {
            DeviceKind::Wgpu if seen.nvidia && !built.cuda => Finding::poor(
                name,
                format!("{names}, by wgpu, which has no bf16"),
                format!("for CUDA, `{}`", GpuVendor::Nvidia.build()),
            ),
            DeviceKind::Wgpu => Finding::good(name, format!("{names}, by wgpu")),
            DeviceKind::Cuda | DeviceKind::Cpu => Finding::good(name, format!("{names}, by CUDA")),
        };
    }
    if let Some(maker) = seen.unused(built) {
        return Finding::poor(
            name,
            format!("{maker}, and this build has no backend for it"),
            format!("`{}`", maker.build()),
        );
    }
    match (seen.nvidia, seen.others.first()) {
        (true, _) if !built.cuda => Finding::poor(
            name,
            format!("{}, and no Vulkan driver that shows it", GpuVendor::Nvidia),
            format!("use CUDA: `{}`", GpuVendor::Nvidia.build()),
        ),
        (true, _) if cuda::has_driver(place) => Finding::poor(
            name,
            format!("{}, which the CUDA driver does not show", GpuVendor::Nvidia),
            "see whether `nvidia-smi` lists it, and whether CUDA_VISIBLE_DEVICES leaves it out",
        ),
        (true, _) => {
            let found = format!("{}, which cannot be used yet", GpuVendor::Nvidia);
            Finding::poor(name, found, "put right what the checks of CUDA below say")
        }
        (false, Some((maker, node))) => without_vulkan(place, *maker, node),
        (false, None) => Finding::good(name, "none; training uses the CPU"),
    }
}

/// Formats the names of GPUs with their numbers: `2 × NVIDIA H100, AMD Instinct MI300X`.
fn names(gpus: &[Gpu]) -> String {
    let alike = gpus.chunk_by(|one, next| one.name == next.name);
    let words = alike.map(|alike| match alike {
        [one] => one.name.clone(),
        [one, ..] => format!("{} × {}", alike.len(), one.name),
        [] => String::new(),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// Returns the finding that wgpu cannot use the GPU at `node`, with the reason and a fix.
fn without_vulkan(place: &HostEnvironment, maker: GpuVendor, node: &Path) -> Finding {
    let (name, at) = ("gpu", node.display());
    if !has_vulkan_driver(place) {
        let found = format!("{maker} ({at}), and no Vulkan driver for it");
        return Finding::poor(name, found, "install the Vulkan driver: Debian's package mesa-vulkan-drivers");
    }
    let opened = File::options().read(true).write(true).open(node);
    if opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        let found = format!("{maker}, and your user may not open {at}");
        return Finding::poor(name, found, "`sudo usermod -aG render $USER`, and log in again");
    }
    let found = format!("{maker} ({at}), which no Vulkan driver shows");
    Finding::poor(name, found, "`vulkaninfo --summary` (package vulkan-tools) lists what the drivers show")
}

/// Returns `true` if a Vulkan driver for a GPU is installed, or the environment names one.
fn has_vulkan_driver(place: &HostEnvironment) -> bool {
    let is_named = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].iter().any(|name| place.variable(name).is_some());
    let folders = ["/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    let mut installed = folders.iter().flat_map(|folder| HostEnvironment::names(&place.at(folder), ""));
    is_named || installed.any(|name| name.ends_with(".json") && !name.starts_with("lvp_icd"))
}

/// Returns the finding that the memory of a wgpu GPU is unknown, so that no plan fits; `None` if all are
/// known.
fn memory(usable: &[Gpu]) -> Option<Finding> {
    let unknown = usable.iter().find(|gpu| gpu.device == DeviceKind::Wgpu && gpu.memory_bytes == 0)?;
    let found = format!("that of {} is unknown, and no plan fits", unknown.name);
    Some(Finding::bad("GPU memory", found, "train on the CPU: `--set cluster.devices=cpu`"))
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::super::place::fake;
    use super::*;

    const NONE: BuiltBackends = BuiltBackends { cuda: false, wgpu: false };
    const CUDA: BuiltBackends = BuiltBackends { cuda: true, wgpu: false };
    const WGPU: BuiltBackends = BuiltBackends { cuda: false, wgpu: true };
    const BOTH: BuiltBackends = BuiltBackends { cuda: true, wgpu: true };
    const RENDER: &str = "/dev/dri/renderD128";

    /// Returns the GPU check of a machine with these files, a first GPU of `vendor`, and no usable GPU.
    fn said(files: &[&str], vendor: &str, built: BuiltBackends) -> (CheckStatus, String) {
        let (_folder, place) = fake::machine(files);
        fake::write(&place, "/sys/class/drm/renderD128/device/vendor", vendor);
        let finding = gpu(&place, &KernelGpus::at(&place), &[], built);
        (finding.verdict, format!("{}; {}", finding.found, finding.fix.unwrap_or_default()))
    }

    #[test]
    fn a_machine_without_a_gpu_is_fine() {
        let without: [&[&str]; 3] = [&[], &["/dev/nvidiactl", "/dev/nvidia-uvm"], &["/dev/dxg"]];
        for files in without {
            assert_eq!(said(files, "", BOTH), (CheckStatus::Good, "none; training uses the CPU; ".into()));
        }
        assert_eq!(said(&[RENDER], "0x1af4\n", NONE).0, CheckStatus::Good, "of a virtual machine");
    }

    #[test]
    fn a_gpu_without_its_backend_is_said_with_the_feature_to_build() {
        for (file, vendor, built, maker, feature) in [
            ("/dev/nvidia3", "", NONE, "an NVIDIA GPU", "cuda"),
            (RENDER, "0x10de\n", NONE, "an NVIDIA GPU", "cuda"),
            (RENDER, "0x10de\n", WGPU, "an NVIDIA GPU", "cuda"),
            (RENDER, "0x1002\n", NONE, "an AMD GPU", "wgpu"),
            (RENDER, "0x8086\n", CUDA, "an Intel GPU", "wgpu"),
            (RENDER, "", CUDA, "a GPU", "wgpu"),
        ] {
            let (verdict, words) = said(&[file], vendor, built);
            let build = format!("`cargo build --release --features {feature}`");
            assert!(words.starts_with(maker) && words.ends_with(&build), "{file} {vendor}: {words}");
            assert_eq!(verdict, CheckStatus::Poor);
        }
    }

    #[test]
    fn a_gpu_that_wgpu_does_not_find_lacks_its_vulkan_driver_or_is_hidden() {
        let software = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json";
        let (verdict, words) = said(&[RENDER, software], "0x1002\n", WGPU);
        assert!(verdict == CheckStatus::Poor && words.ends_with("mesa-vulkan-drivers"), "{words}");
        let driver = "/usr/share/vulkan/icd.d/radeon_icd.x86_64.json";
        let (_, words) = said(&[RENDER, driver], "0x1002\n", BOTH);
        assert!(words.contains("no Vulkan driver shows") && words.contains("vulkaninfo"), "{words}");
    }

    #[test]
    fn an_nvidia_gpu_that_cuda_does_not_show_is_said_with_what_hides_it() {
        let (_, words) = said(&["/dev/nvidia0", "/usr/lib64/libcuda.so.1"], "", BOTH);
        assert!(words.contains("CUDA_VISIBLE_DEVICES"), "{words}");
        let (_, words) = said(&["/dev/nvidia0"], "", CUDA);
        assert!(words.ends_with("put right what the checks of CUDA below say"), "{words}");
    }

    #[test]
    fn usable_gpus_are_named_with_their_backend_and_an_unknown_memory_is_bad() {
        let of = |device, name: &str, memory_bytes| Gpu { device, name: name.into(), memory_bytes };
        let (_folder, place) = fake::machine(&["/dev/nvidia0"]);
        let seen = KernelGpus::at(&place);
        let h100 = of(DeviceKind::Cuda, "NVIDIA H100", 1);
        let two = [h100.clone(), h100];
        let found = gpu(&place, &seen, &two, BOTH);
        assert_eq!((found.verdict, found.found.as_str()), (CheckStatus::Good, "2 × NVIDIA H100, by CUDA"));
        assert!(memory(&two).is_none());
        let arc = [of(DeviceKind::Wgpu, "Intel Arc", 0)];
        assert_eq!(gpu(&place, &seen, &arc, BOTH).verdict, CheckStatus::Good);
        let through_vulkan = gpu(&place, &seen, &arc, WGPU);
        assert!(through_vulkan.verdict == CheckStatus::Poor && through_vulkan.found.ends_with("no bf16"));
        assert_eq!(memory(&arc).map(|check| check.verdict), Some(CheckStatus::Bad));
    }
}

//! What the CUDA backend needs on a host: the driver, the compiler of kernels, and the headers that kernels include.
//! Looks at files only; nothing is loaded.

use super::Finding;
use super::place::Place;
use std::path::{Path, PathBuf};

/// The CUDA release that the backend was built for, such as `12020`; `.cargo/config.toml` says it.
///
/// Without it the backend was built for the release of `nvcc`, or for the newest that it knows.
const BUILT_FOR: Option<&str> = option_env!("CUDARC_CUDA_VERSION");

const DRIVER: &str = "CUDA driver";

/// How to get the other half of a driver.
const WHOLE_DRIVER: &str = "install the whole NVIDIA driver (on Debian: libcuda1, libnvidia-ml1 and nvidia-smi); \
                            in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// Every check of a host with an NVIDIA GPU.
pub(super) fn checks(place: &Place) -> Vec<Finding> {
    let major = BUILT_FOR.and_then(|release| release.get(..2)).unwrap_or("13");
    let mut checks = driver(place);
    checks.extend([nvrtc(place, major), headers(place)]);
    checks
}

/// Whether the driver's library can be loaded.
pub(super) fn has_driver(place: &Place) -> bool {
    cuda_library(place).is_some()
}

fn cuda_library(place: &Place) -> Option<PathBuf> {
    place.library(&["libcuda.so", "libcuda.so.1"])
}

/// The library that computes, and NVML with the program `nvidia-smi`, which tell the memory of a GPU. A container may have one
/// without the other.
fn driver(place: &Place) -> Vec<Finding> {
    let (cuda, nvml) = (cuda_library(place), place.library(&["libnvidia-ml.so.1"]));
    let mut checks = vec![match (&cuda, &nvml) {
        (Some(path), _) => Finding::good(DRIVER, path.display().to_string()),
        (None, Some(_)) => {
            Finding::bad(DRIVER, "libnvidia-ml.so.1 is there, libcuda.so.1 is missing", WHOLE_DRIVER)
        }
        (None, None) => Finding::bad(
            DRIVER,
            "neither libcuda.so.1 nor libnvidia-ml.so.1 was found",
            "install the NVIDIA driver; start a container with its GPUs, such as `docker run --gpus all`",
        ),
    }];
    match (cuda, nvml) {
        (_, Some(path)) if place.has_program("nvidia-smi") => {
            checks.push(Finding::good("NVML", path.display().to_string()));
        }
        (_, Some(_)) => {
            let found = "libnvidia-ml.so.1 is there, nvidia-smi is not in PATH: the memory of the GPUs is unknown, and \
                         no plan fits";
            checks.push(Finding::bad("NVML", found, WHOLE_DRIVER));
        }
        (Some(_), None) => {
            let found = "libcuda.so.1 is there, libnvidia-ml.so.1 is missing: the memory of the GPUs is unknown, and no \
                         plan fits";
            checks.push(Finding::bad("NVML", found, WHOLE_DRIVER));
        }
        // Said of the driver.
        (None, None) => {}
    }
    checks
}

/// The compiler of kernels. A backend that was built for CUDA `major` asks for it by these names only.
fn nvrtc(place: &Place, major: &str) -> Finding {
    let name = "NVRTC";
    let mut names = vec!["libnvrtc.so".to_owned()];
    let releases = [major, "12", "11"];
    let wanted = releases.iter().enumerate().filter(|(at, release)| !releases[..*at].contains(release));
    names.extend(wanted.map(|(_, release)| format!("libnvrtc.so.{release}")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    if let Some(path) = place.library(&names) {
        return Finding::good(name, path.display().to_string());
    }
    let Some((folder, file)) = stray_nvrtc(place) else {
        let fix = format!("install the CUDA toolkit {major}, or its package cuda-nvrtc-{major}-*");
        return Finding::bad(name, format!("none of {} was found", names.join(", ")), fix);
    };
    let folder_words = folder.display();
    let mut steps = Vec::new();
    if !names.contains(&file.as_str()) {
        steps.push(format!("`ln -s {file} {folder_words}/libnvrtc.so`"));
    }
    if !place.loader_folders().contains(&folder) {
        steps.push(format!("add {folder_words} to LD_LIBRARY_PATH"));
    }
    let found = format!("{folder_words}/{file} is there, and this build finds only {}", names.join(", "));
    Finding::bad(name, found, steps.join(", and "))
}

/// Folder and name of an NVRTC that the loader does not find by the names that are asked for.
fn stray_nvrtc(place: &Place) -> Option<(PathBuf, String)> {
    let mut folders = place.loader_folders();
    if let Some((cuda, _)) = cuda_folder(place) {
        folders.extend(["lib64", "lib", "targets/x86_64-linux/lib"].map(|below| cuda.join(below)));
    }
    let is_nvrtc = |path: &PathBuf| path.to_string_lossy().contains("/libnvrtc.so");
    let cached = place.loader_cache().into_iter().filter(is_nvrtc);
    folders.extend(cached.filter_map(|path| path.parent().map(Path::to_path_buf)));
    let first = |folder: &PathBuf| Place::names(folder, "libnvrtc.so").into_iter().next();
    folders.into_iter().find_map(|folder| first(&folder).map(|file| (folder, file)))
}

/// Where the backend takes the headers from, and how it came to be that folder.
fn cuda_folder(place: &Place) -> Option<(PathBuf, &'static str)> {
    if let Some(path) = place.variable("CUDA_PATH") {
        return Some((path.into(), "CUDA_PATH"));
    }
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(|path| place.at(path));
    let usual = usual.into_iter().find(|path| path.exists());
    usual
        .or_else(|| place.at("/usr/bin/nvcc").exists().then(|| place.at("/usr")))
        .map(|path| (path, "CUDA_PATH is not set"))
}

/// Headers that kernels include, each with the packages that have it: of NVIDIA's repository for Debian, and of PyPI.
const HEADERS: [(&str, &str, &str); 3] = [
    ("cuda_fp16.h", "cuda-cudart-dev-*", "nvidia-cuda-runtime"),
    ("mma.h", "cuda-cudart-dev-*", "nvidia-cuda-runtime"),
    ("crt/mma.h", "cuda-crt-*", "nvidia-cuda-crt"),
];

fn headers(place: &Place) -> Finding {
    let name = "CUDA headers";
    let Some((folder, origin)) = cuda_folder(place) else {
        return Finding::bad(
            name,
            "CUDA_PATH is not set, and neither /usr/local/cuda, /opt/cuda nor /usr/bin/nvcc is there",
            "install the CUDA toolkit, or set CUDA_PATH to the folder that holds its `include`",
        );
    };
    let include = folder.join("include");
    let words = format!("{} ({origin})", include.display());
    if !include.is_dir() {
        return Finding::bad(
            name,
            format!("{words} is no folder"),
            "set CUDA_PATH to the folder that holds `include` of the CUDA toolkit",
        );
    }
    let missing: Vec<_> = HEADERS.iter().filter(|(header, ..)| !include.join(header).exists()).collect();
    if missing.is_empty() {
        return barriers(&include, words);
    }
    let list = missing.iter().map(|(header, ..)| *header).collect::<Vec<_>>().join(", ");
    let mut packages: Vec<_> =
        missing.iter().map(|(_, debian, python)| format!("{debian} (PyPI: {python})")).collect();
    packages.dedup();
    let fix = format!("install the CUDA toolkit, or of the release of NVRTC {}", packages.join(" and "));
    Finding::bad(name, format!("{words} lacks {list}"), fix)
}

/// Kernels that wait for copies in the background include a header of CUDA's C++ library; most do not.
fn barriers(include: &Path, words: String) -> Finding {
    let name = "CUDA headers";
    if ["cuda/barrier", "cccl/cuda/barrier"].iter().any(|header| include.join(header).exists()) {
        return Finding::good(name, words);
    }
    let found = format!("{words} lacks cuda/barrier, which some kernels include");
    Finding::poor(name, found, "install cuda-cccl-* (PyPI: nvidia-cuda-cccl)")
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::super::place::fake;
    use super::*;

    const CUDA: &str = "/usr/lib64/libcuda.so.1";
    const NVML: &str = "/usr/lib64/libnvidia-ml.so.1";

    /// Verdict, what was found and how it is put right, of every check of the driver.
    fn of_driver(files: &[&str]) -> Vec<(Verdict, String, String)> {
        let (_folder, mut place) = fake::machine(files);
        fake::set(&mut place, "PATH", "/usr/bin");
        let checks = driver(&place).into_iter();
        checks.map(|check| (check.verdict, check.found, check.fix.unwrap_or_default())).collect()
    }

    #[test]
    fn of_a_driver_the_half_that_is_missing_is_named() {
        let whole = of_driver(&[CUDA, NVML, "/usr/bin/nvidia-smi"]);
        assert!(whole.len() == 2 && whole.iter().all(|check| check.0 == Verdict::Good), "{whole:?}");
        let nothing = of_driver(&[]);
        assert_eq!(nothing.len(), 1, "said once: {nothing:?}");
        assert!(nothing[0].2.contains("install the NVIDIA driver"), "{nothing:?}");
        let blind = of_driver(&[CUDA, "/usr/bin/nvidia-smi"]);
        assert_eq!((blind[0].0, blind[1].0), (Verdict::Good, Verdict::Bad), "{blind:?}");
        assert!(blind[1].1.contains("libnvidia-ml.so.1 is missing"), "{blind:?}");
        let idle = of_driver(&[NVML, "/usr/bin/nvidia-smi"]);
        assert_eq!((idle[0].0, idle[1].0), (Verdict::Bad, Verdict::Good), "{idle:?}");
        assert!(idle[0].1.contains("libcuda.so.1 is missing") && idle[0].2.contains("compute,utility"));
        let mute = of_driver(&[CUDA, NVML]);
        assert!(mute[1].0 == Verdict::Bad && mute[1].1.contains("nvidia-smi is not in PATH"), "{mute:?}");
    }

    #[test]
    fn nvrtc_counts_only_under_a_name_that_the_backend_asks_for() {
        let wheel = "/opt/cu13/lib/libnvrtc.so.13";
        let (_folder, mut place) = fake::machine(&[]);
        let nothing = nvrtc(&place, "12");
        assert_eq!(nothing.found, "none of libnvrtc.so, libnvrtc.so.12, libnvrtc.so.11 was found");
        assert!(nothing.fix.is_some_and(|fix| fix.contains("cuda-nvrtc-12-*")));

        fake::write(&place, wheel, "");
        fake::set(&mut place, "LD_LIBRARY_PATH", "/opt/cu13/lib");
        let newer = nvrtc(&place, "12");
        let folder = place.at("/opt/cu13/lib");
        assert_eq!(newer.verdict, Verdict::Bad);
        let link = format!("`ln -s libnvrtc.so.13 {}/libnvrtc.so`", folder.display());
        assert_eq!(newer.fix.as_deref(), Some(link.as_str()));
        assert_eq!(nvrtc(&place, "13").verdict, Verdict::Good, "a backend that was built for it finds it");
        fake::write(&place, "/opt/cu13/lib/libnvrtc.so", "");
        assert_eq!(nvrtc(&place, "12").verdict, Verdict::Good);
    }

    #[test]
    fn nvrtc_in_a_folder_that_the_loader_does_not_know_is_said_with_the_folder() {
        let (_folder, place) = fake::machine(&["/usr/local/cuda/lib64/libnvrtc.so.12"]);
        let hidden = nvrtc(&place, "12");
        let fix = format!("add {} to LD_LIBRARY_PATH", place.at("/usr/local/cuda/lib64").display());
        assert_eq!((hidden.verdict, hidden.fix), (Verdict::Bad, Some(fix)));
    }

    #[test]
    fn a_header_that_is_missing_is_named_with_its_package() {
        let (_folder, mut place) = fake::machine(&[]);
        assert!(headers(&place).found.contains("CUDA_PATH is not set"));

        fake::write(&place, "/usr/local/cuda/include/cuda_fp16.h", "");
        let few = headers(&place);
        assert!(few.found.ends_with("(CUDA_PATH is not set) lacks mma.h, crt/mma.h"), "{}", few.found);
        fake::write(&place, "/usr/local/cuda/include/mma.h", "");
        let fix = headers(&place).fix.expect("it fails");
        assert!(fix.contains("cuda-crt-* (PyPI: nvidia-cuda-crt)") && !fix.contains("cudart"), "{fix}");
        fake::write(&place, "/usr/local/cuda/include/crt/mma.h", "");
        assert_eq!(headers(&place).verdict, Verdict::Poor, "without cuda/barrier");
        fake::write(&place, "/usr/local/cuda/include/cccl/cuda/barrier", "");
        assert_eq!(headers(&place).verdict, Verdict::Good);

        fake::set(&mut place, "CUDA_PATH", "/opt/elsewhere");
        let elsewhere = headers(&place);
        assert!(
            elsewhere.found.ends_with("/opt/elsewhere/include (CUDA_PATH) is no folder"),
            "{elsewhere:?}"
        );
    }
}

//! Checks of the CUDA backend: driver, NVRTC (the kernel compiler), the headers that kernels include, and
//! NCCL for several GPUs. Only looks at files, but loads NCCL to ask its version.

use super::Finding;
use super::place::HostEnvironment;
use dtrain_runner::cuda::{HeaderFolders, Release, RequiredHeader, Toolkit, driver_release, nvrtc_names};
use std::path::PathBuf;

const DRIVER: &str = "CUDA driver";

/// Advice for a driver that is only partly installed.
const WHOLE_DRIVER: &str = "install the whole NVIDIA driver (on Debian: libcuda1, libnvidia-ml1 and nvidia-smi); \
                            in a container, set NVIDIA_DRIVER_CAPABILITIES=compute,utility";

/// Returns all CUDA checks of a host with an NVIDIA GPU.
pub(super) fn checks(place: &HostEnvironment) -> Vec<Finding> {
    let found = Toolkit::with_driver(place, driver_release());
    let mut checks = driver(place, found.driver.as_ref());
    checks.extend([nvrtc(&found), headers(&found, place)]);
    checks.extend(nccl(&found));
    checks
}

/// Returns `true` if the library of the NVIDIA driver can be loaded.
pub(super) fn has_driver(place: &HostEnvironment) -> bool {
    cuda_library(place).is_some()
}

fn cuda_library(place: &HostEnvironment) -> Option<PathBuf> {
    place.library(&["libcuda.so", "libcuda.so.1"])
}

/// Checks the driver's compute library, and NVML with `nvidia-smi`, which report the memory of a GPU. A
/// container may have only one of them.
fn driver(place: &HostEnvironment, release: Option<&Release>) -> Vec<Finding> {
    let (cuda, nvml) = (cuda_library(place), place.library(&["libnvidia-ml.so.1"]));
    let mut checks = vec![match (&cuda, &nvml) {
        (Some(path), _) => {
            let release = release.map_or_else(String::new, |release| format!(", CUDA {release}"));
            Finding::good(DRIVER, format!("{}{release}", path.display()))
        }
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
        (_, Some(path)) if place.program("nvidia-smi").is_some() => {
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
        // Reported by the driver's check.
        (None, None) => {}
    }
    checks
}

/// Checks NVRTC, the compiler with which workers build kernels.
fn nvrtc(found: &Toolkit) -> Finding {
    let name = "NVRTC";
    let Some(taken) = &found.nvrtc.taken else {
        let looked = format!(
            "none of {} was found by the loader, and none in a CUDA toolkit or in wheels of Python",
            nvrtc_names().join(", ")
        );
        let fix = format!("{}, or install the CUDA toolkit", install(&PARTS, found.driver.as_ref()));
        return Finding::bad(name, looked, fix);
    };
    let finding = match (&taken.release, &found.driver) {
        (Some(release), Some(driver)) if release > driver => {
            let found = format!("{taken}: newer than the driver's CUDA {driver}, which refuses its kernels");
            let fix = format!("{}, or install a newer driver", install(&PARTS, Some(driver)));
            Finding::bad(name, found, fix)
        }
        _ => Finding::good(name, taken.to_string()),
    };
    finding.with_part(taken, &found.nvrtc.passed_over)
}

/// Checks the CUDA headers that kernels of workers include.
fn headers(found: &Toolkit, place: &HostEnvironment) -> Finding {
    let name = "CUDA headers";
    let release =
        found.nvrtc.taken.as_ref().and_then(|nvrtc| nvrtc.release.as_ref()).or(found.driver.as_ref());
    let Some(taken) = &found.headers.taken else {
        let named = place
            .folder("CUDA_PATH")
            .map(|path| format!("CUDA_PATH is {}, which has none; ", path.display()));
        let looked =
            format!("{}none are in a CUDA toolkit or in wheels of Python", named.unwrap_or_default());
        let fix = format!("{}, or install the CUDA toolkit", install(&PARTS[1..], release));
        return Finding::bad(name, looked, fix);
    };
    headers_finding(name, taken, release).with_part(&taken.part, &found.headers.passed_over)
}

fn headers_finding(name: &'static str, taken: &HeaderFolders, nvrtc: Option<&Release>) -> Finding {
    let HeaderFolders { part, missing, cccl, .. } = taken;
    let release = part.release.as_ref().or(nvrtc);
    if !missing.is_empty() {
        let list = missing.iter().map(|header| header.name).collect::<Vec<_>>().join(", ");
        let fix = if part.from.is_wheels() {
            install(&packages(missing), release)
        } else {
            let mut debian: Vec<_> = missing.iter().map(|header| format!("{}-*", header.debian)).collect();
            debian.dedup();
            format!("install {} of the same release, or {}", debian.join(" and "), install(&PARTS, nvrtc))
        };
        return Finding::bad(name, format!("{part}, lacks {list}"), fix);
    }
    if let Some((nvrtc, release)) =
        nvrtc.zip(part.release.as_ref()).filter(|(nvrtc, own)| nvrtc.major() != own.major())
    {
        let found =
            format!("{part}; NVRTC is of {nvrtc}, and kernels may not compile with headers of {release}");
        return Finding::poor(name, found, install(&PARTS[1..], Some(nvrtc)));
    }
    match cccl {
        Some(cccl) if taken.includes.iter().any(|include| cccl.starts_with(include)) => {
            Finding::good(name, part.to_string())
        }
        Some(cccl) => Finding::good(name, format!("{part}, with cuda/barrier of {}", cccl.display())),
        None => {
            let found = format!("{part}, lacks cuda/barrier, which some kernels include");
            Finding::poor(name, found, format!("install cuda-cccl-*, or {}", install(&PARTS[3..], release)))
        }
    }
}

/// PyPI packages that contain NVRTC and all headers: name for CUDA 13, and name for CUDA 12.
const PARTS: [(&str, &str); 4] = [
    ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    ("nvidia-cuda-crt", "nvidia-cuda-nvcc-cu12"),
    ("nvidia-cuda-cccl", "nvidia-cuda-cccl-cu12"),
];

/// Returns the PyPI packages that contain the missing headers, each once.
fn packages(missing: &[&RequiredHeader]) -> Vec<(&'static str, &'static str)> {
    let is_there =
        |part: &(&str, &str)| missing.iter().any(|header| (header.python, header.python_12) == *part);
    PARTS.into_iter().filter(is_there).collect()
}

/// Returns the command that installs the packages for a CUDA release; without a release, the newest packages
/// might be newer than the driver.
fn install(parts: &[(&str, &str)], release: Option<&Release>) -> String {
    let is_old = release.is_some_and(|release| release.major() <= 12);
    let package = |(since_13, of_12): &(&str, &str)| {
        let name = if is_old { of_12 } else { since_13 };
        match release {
            // CCCL has its own version numbers after the major one.
            Some(release) if *name == PARTS[3].0 => format!("'{name}=={}.*'", release.major()),
            Some(release) => format!("'{name}=={release}.*'"),
            None => (*name).to_owned(),
        }
    };
    format!("`pip install {}`", parts.iter().map(package).collect::<Vec<_>>().join(" "))
}

/// Checks NCCL, through which GPUs on this and other hosts communicate directly; `None` if there is nothing
/// to check.
#[cfg(feature = "cuda")]
fn nccl(found: &Toolkit) -> Option<Finding> {
    let name = "NCCL";
    let major = found.driver.as_ref().map(Release::major);
    let package = match major {
        Some(..=12) => "nvidia-nccl-cu12",
        Some(_) => "nvidia-nccl-cu13",
        None => "nvidia-nccl-cu12` or `nvidia-nccl-cu13",
    };
    let fix = format!("for more than one GPU, on every host `pip install {package}`, or install libnccl2");
    let through_host = "several GPUs exchange values through host memory";
    let Some(taken) = &found.nccl.taken else {
        let words = format!("libnccl.so.2 was not found; {through_host}");
        return Some(Finding {
            passed_over: found.nccl.passed_over.clone(),
            ..Finding::poor(name, words, fix)
        });
    };
    let finding = match dtrain_worker::comm::nccl::version_at(&taken.path) {
        Ok(version) => Finding::good(name, format!("NCCL {version}: {taken}")),
        Err(reason) => Finding::poor(name, format!("{taken}: {reason}; {through_host}"), fix),
    };
    Some(finding.with_part(taken, &found.nccl.passed_over))
}

#[cfg(not(feature = "cuda"))]
fn nccl(_: &Toolkit) -> Option<Finding> {
    None
}

#[cfg(test)]
mod tests {
    use super::super::CheckStatus;
    use super::super::place::fake;
    use super::*;

    const CUDA: &str = "/usr/lib64/libcuda.so.1";
    const NVML: &str = "/usr/lib64/libnvidia-ml.so.1";

    /// Returns status, finding and fix of every check of the driver.
    fn of_driver(files: &[&str]) -> Vec<(CheckStatus, String, String)> {
        let (_folder, mut place) = fake::machine(files);
        fake::set(&mut place, "PATH", "/usr/bin");
        let checks = driver(&place, None).into_iter();
        checks.map(|check| (check.verdict, check.found, check.fix.unwrap_or_default())).collect()
    }

    #[test]
    fn of_a_driver_the_half_that_is_missing_is_named() {
        let whole = of_driver(&[CUDA, NVML, "/usr/bin/nvidia-smi"]);
        assert!(whole.len() == 2 && whole.iter().all(|check| check.0 == CheckStatus::Good), "{whole:?}");
        let nothing = of_driver(&[]);
        assert_eq!(nothing.len(), 1, "said once: {nothing:?}");
        assert!(nothing[0].2.contains("install the NVIDIA driver"), "{nothing:?}");
        let blind = of_driver(&[CUDA, "/usr/bin/nvidia-smi"]);
        assert_eq!((blind[0].0, blind[1].0), (CheckStatus::Good, CheckStatus::Bad), "{blind:?}");
        assert!(blind[1].1.contains("libnvidia-ml.so.1 is missing"), "{blind:?}");
        let idle = of_driver(&[NVML, "/usr/bin/nvidia-smi"]);
        assert_eq!((idle[0].0, idle[1].0), (CheckStatus::Bad, CheckStatus::Good), "{idle:?}");
        assert!(idle[0].1.contains("libcuda.so.1 is missing") && idle[0].2.contains("compute,utility"));
        let mute = of_driver(&[CUDA, NVML]);
        assert!(mute[1].0 == CheckStatus::Bad && mute[1].1.contains("nvidia-smi is not in PATH"), "{mute:?}");
    }

    const TOOLKIT: [&str; 4] = ["cuda_fp16.h", "mma.h", "crt/mma.h", "cuda/barrier"];

    /// Returns the checks of NVRTC and the headers on a machine with a driver of this release.
    fn said(place: &HostEnvironment, driver: u32) -> [Finding; 2] {
        let found = Toolkit::with_driver(place, Some(Release::of_number(driver)));
        [nvrtc(&found), headers(&found, place)]
    }

    /// Returns a Python environment with these package files.
    fn packages_with(files: &[&str]) -> (tempfile::TempDir, HostEnvironment) {
        let site = "/env/lib/python3.12/site-packages";
        let files: Vec<String> = files.iter().map(|file| format!("{site}/{file}")).collect();
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        let (folder, mut place) = fake::machine(&files);
        fake::set(&mut place, "VIRTUAL_ENV", "/env");
        (folder, place)
    }

    #[test]
    fn a_whole_toolkit_is_good_and_named() {
        let (_folder, place) = fake::machine(&["/usr/local/cuda/lib64/libnvrtc.so.12.4.127"]);
        TOOLKIT
            .iter()
            .for_each(|header| fake::write(&place, &format!("/usr/local/cuda/include/{header}"), ""));
        let [nvrtc, headers] = said(&place, 12040);
        assert_eq!(
            (nvrtc.verdict, headers.verdict),
            (CheckStatus::Good, CheckStatus::Good),
            "{nvrtc:?} {headers:?}"
        );
        let cuda = place.at("/usr/local/cuda");
        let words = format!("{0}/lib64/libnvrtc.so.12.4.127, 12.4, of toolkit {0}", cuda.display());
        assert_eq!(nvrtc.found, words);
        assert_eq!(nvrtc.taken.map(|part| part.path), Some(cuda.join("lib64/libnvrtc.so.12.4.127")));
    }

    #[test]
    fn where_nothing_is_found_the_packages_of_the_drivers_release_are_named() {
        let (_folder, mut place) = fake::machine(&[]);
        let [nvrtc, headers] = said(&place, 13000);
        assert_eq!((nvrtc.verdict, headers.verdict), (CheckStatus::Bad, CheckStatus::Bad));
        let fix = nvrtc.fix.expect("it fails");
        assert!(
            fix.contains("'nvidia-cuda-nvrtc==13.0.*'") && fix.contains("'nvidia-cuda-cccl==13.*'"),
            "{fix}"
        );
        let [nvrtc, _] = said(&place, 12020);
        let fix = nvrtc.fix.expect("it fails");
        assert!(
            fix.contains("'nvidia-cuda-nvcc-cu12==12.2.*'")
                && fix.contains("'nvidia-cuda-cccl-cu12==12.2.*'"),
            "{fix}"
        );
        fake::set(&mut place, "CUDA_PATH", "/opt/elsewhere");
        let [_, headers] = said(&place, 13000);
        assert!(headers.found.contains("/opt/elsewhere, which has none"), "{}", headers.found);
    }

    #[test]
    fn an_nvrtc_newer_than_the_driver_is_bad_where_it_is_the_only_one_and_told_where_it_is_not() {
        let (_folder, place) =
            packages_with(&["nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc-builtins.so.13.5"]);
        let [only, _] = said(&place, 13000);
        assert!(
            only.verdict == CheckStatus::Bad && only.found.contains("newer than the driver's CUDA 13.0"),
            "{only:?}"
        );
        assert!(only.fix.is_some_and(|fix| fix.contains("'nvidia-cuda-nvrtc==13.0.*'")));

        fake::write(&place, "/usr/local/cuda/lib64/libnvrtc.so.12.4.127", "");
        let [older, _] = said(&place, 13000);
        assert_eq!(older.verdict, CheckStatus::Good);
        let [newer] = older.passed_over.as_slice() else { panic!("one is passed over: {older:?}") };
        assert_eq!(newer.reason, "newer than the driver's CUDA 13.0");
        let json = serde_json::to_value(&older).expect("a check is JSON");
        assert_eq!(json["taken"]["release"], "12.4");
        assert!(
            json["passed_over"][0]["from"]
                .as_str()
                .is_some_and(|from| from.starts_with("NVIDIA's wheels in")),
            "{json}"
        );
    }

    #[test]
    fn wheels_without_a_header_name_the_package_that_has_it() {
        let (_folder, place) = packages_with(&[
            "torch/version.py",
            "nvidia/cu13/lib/libnvrtc.so.13",
            "nvidia/cu13/lib/libnvrtc-builtins.so.13.0",
            "nvidia/cu13/include/cuda_fp16.h",
            "nvidia/cu13/include/mma.h",
        ]);
        let [nvrtc, headers] = said(&place, 13000);
        assert!(
            nvrtc.verdict == CheckStatus::Good && nvrtc.found.contains("PyTorch's wheels in"),
            "{nvrtc:?}"
        );
        assert!(
            headers.verdict == CheckStatus::Bad && headers.found.ends_with("lacks crt/mma.h"),
            "{headers:?}"
        );
        assert_eq!(headers.fix.as_deref(), Some("`pip install 'nvidia-cuda-crt==13.0.*'`"));
    }

    #[test]
    fn a_toolkit_without_the_cpp_library_is_poor() {
        let (_folder, place) = fake::machine(&["/usr/local/cuda/lib64/libnvrtc.so.12.4.127"]);
        TOOLKIT[..3]
            .iter()
            .for_each(|header| fake::write(&place, &format!("/usr/local/cuda/include/{header}"), ""));
        let [_, headers] = said(&place, 12040);
        assert!(
            headers.verdict == CheckStatus::Poor && headers.found.contains("lacks cuda/barrier"),
            "{headers:?}"
        );
        assert!(headers.fix.is_some_and(|fix| fix.contains("'nvidia-cuda-cccl-cu12==12.4.*'")));
        fake::write(&place, "/usr/local/cuda/include/cccl/cuda/barrier", "");
        assert_eq!(said(&place, 12040)[1].verdict, CheckStatus::Good);
    }
}

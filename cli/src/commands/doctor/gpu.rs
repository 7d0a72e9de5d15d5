//! Whether there is a GPU, and what using it needs.

use super::Finding;
use std::fs;
use std::path::{Path, PathBuf};

/// Checks that only matter where there is a GPU.
pub(super) fn checks() -> Vec<Finding> {
    if !has_gpu() {
        return vec![Finding::good("gpu", "none; training uses the CPU")];
    }
    let mut checks = Vec::new();
    checks.push(if cfg!(feature = "cuda") {
        Finding::good("gpu", "found; this build can use it")
    } else {
        Finding::poor("gpu", "found, but this build has only the CPU backend", BUILD_WITH_CUDA)
    });
    if cfg!(feature = "cuda") {
        checks.push(library("CUDA driver", "libcuda.so", "install the NVIDIA driver"));
        checks.push(library("NVRTC", "libnvrtc.so", "install the CUDA toolkit, or the package cuda-nvrtc"));
        checks.push(headers());
    }
    checks
}

/// How to build a program that uses GPUs.
pub(crate) const BUILD_WITH_CUDA: &str = "cargo build --release --features cuda";

/// Whether the driver shows an NVIDIA GPU.
pub(crate) fn has_gpu() -> bool {
    Path::new("/dev/nvidia0").exists()
        || Path::new("/dev/dxg").exists() && Path::new("/usr/lib/wsl/lib/libcuda.so").exists()
}

fn library(name: &'static str, file: &str, fix: &str) -> Finding {
    let places = library_folders();
    let found = places.iter().find_map(|folder| {
        let mut names = fs::read_dir(folder).ok()?.filter_map(Result::ok);
        names.find(|entry| entry.file_name().to_string_lossy().starts_with(file)).map(|entry| entry.path())
    });
    match found {
        Some(path) => Finding::good(name, path.display().to_string()),
        None => Finding::bad(name, format!("{file} was not found"), fix),
    }
}

fn library_folders() -> Vec<PathBuf> {
    let from_environment = std::env::var_os("LD_LIBRARY_PATH");
    let mut folders: Vec<PathBuf> =
        from_environment.iter().flat_map(std::env::split_paths).filter(|path| path.is_absolute()).collect();
    folders.extend(cuda_folder().map(|folder| folder.join("lib64")));
    let usual = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/usr/local/cuda/lib64",
        "/usr/lib/wsl/lib",
    ];
    folders.extend(usual.map(PathBuf::from));
    folders
}

/// Where the CUDA headers are looked for, in the order of the backend.
fn cuda_folder() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("CUDA_PATH") {
        return Some(path.into());
    }
    let usual = ["/usr/local/cuda", "/opt/cuda"].map(PathBuf::from);
    usual
        .into_iter()
        .find(|path| path.exists())
        .or_else(|| Path::new("/usr/bin/nvcc").exists().then(|| "/usr".into()))
}

fn headers() -> Finding {
    let name = "CUDA headers";
    let fix = "install the CUDA toolkit, or the package cuda-cudart-dev, and set CUDA_PATH to its folder";
    let Some(folder) = cuda_folder() else {
        return Finding::bad(
            name,
            "no CUDA installation: CUDA_PATH is not set and /usr/local/cuda is missing",
            fix,
        );
    };
    let header = folder.join("include").join("cuda_fp16.h");
    if header.exists() {
        Finding::good(name, header.display().to_string())
    } else {
        Finding::bad(name, format!("{} is missing", header.display()), fix)
    }
}

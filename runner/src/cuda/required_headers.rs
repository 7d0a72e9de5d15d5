//! CUDA headers that kernels include, with the packages that provide them.

use serde::Serialize;

/// CUDA header that kernels include, with the packages that provide it.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct RequiredHeader {
    /// Path of the header below `include`.
    pub name: &'static str,
    /// Name of NVIDIA's Debian package with the header, without the release at its end.
    pub debian: &'static str,
    /// Name of the PyPI package with the header, for CUDA 13 and later.
    pub python: &'static str,
    /// Name of the PyPI package with the header, for CUDA 12.
    pub python_12: &'static str,
}

/// Every header that kernels need.
pub(super) const HEADERS: [RequiredHeader; 3] = [
    RequiredHeader {
        name: "cuda_fp16.h",
        debian: "cuda-cudart-dev",
        python: "nvidia-cuda-runtime",
        python_12: "nvidia-cuda-runtime-cu12",
    },
    RequiredHeader {
        name: "mma.h",
        debian: "cuda-cudart-dev",
        python: "nvidia-cuda-runtime",
        python_12: "nvidia-cuda-runtime-cu12",
    },
    RequiredHeader {
        name: "crt/mma.h",
        debian: "cuda-crt",
        python: "nvidia-cuda-crt",
        python_12: "nvidia-cuda-nvcc-cu12",
    },
];

//! The host and device of a rank, and the kinds of devices.

use serde::{Deserialize, Serialize};

/// The host and device of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Index of the host of the rank. Ranks of one host have consecutive numbers.
    #[serde(default)]
    pub host: u32,
    /// Kind of the device.
    pub device: DeviceKind,
    /// Index of the device among the host's devices of its kind.
    pub index: u32,
    /// Number of threads that compute on the CPU.
    pub threads: u32,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's processor (CPU).
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A GPU of any vendor, through wgpu and Vulkan.
    Wgpu,
}

impl DeviceKind {
    /// Returns the name of the device's backend: `cpu`, `cuda` or `wgpu`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// Returns `true` if the device is a GPU of any vendor.
    pub fn is_gpu(self) -> bool {
        self != Self::Cpu
    }
}

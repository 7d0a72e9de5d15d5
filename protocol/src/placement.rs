//! The host and device of a rank, and the kinds of devices.

use serde::{Deserialize, Serialize};

/// The host and device of a rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// Index of the host. Ranks of one host have consecutive numbers.
    #[serde(default)]
    pub host: u32,
    /// Kind of device.
    pub device: DeviceKind,
    /// Index among the host's devices of that kind.
    pub index: u32,
    /// Compute threads on the CPU.
    pub threads: u32,
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// The host's processor.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A GPU of any vendor, through wgpu and Vulkan.
    Wgpu,
}

impl DeviceKind {
    /// Returns the name of the backend: `cpu`, `cuda` or `wgpu`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Wgpu => "wgpu",
        }
    }

    /// Returns `true` for a GPU of any vendor.
    pub fn is_gpu(self) -> bool {
        self != Self::Cpu
    }
}

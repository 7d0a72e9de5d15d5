//! Arguments of `dtrain doctor`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Hosts to check over SSH instead, each as host, user@host or user@host:port
    #[arg(value_name = "HOST")]
    pub(crate) hosts: Vec<String>,

    /// Compare a device with the host, measure it, and write all figures to a file; without a name, the first GPU
    #[arg(
        long,
        value_name = "DEVICE",
        num_args = 0..=1,
        default_missing_value = "gpu",
        conflicts_with = "hosts"
    )]
    pub(crate) device: Option<DeviceChoice>,

    /// Which of the devices, counted from 0
    #[arg(long, value_name = "N", default_value_t = 0, requires = "device")]
    pub(crate) index: u32,

    /// The file, which is replaced [default: dtrain-device-DEVICE-N.json]
    #[arg(long, short, value_name = "FILE", requires = "device", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
}

/// What `--device` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeviceChoice {
    /// The GPUs that a training would use
    Gpu,
    /// NVIDIA's, through CUDA
    Cuda,
    /// GPUs of any maker, through Vulkan
    Wgpu,
    /// The processor
    Cpu,
}

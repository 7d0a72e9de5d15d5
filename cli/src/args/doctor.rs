//! Arguments of `dtrain doctor`.

use clap::{Args, ValueEnum, ValueHint};
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Hosts to check over SSH instead, each as host, user@host or user@host:port
    #[arg(value_name = "HOST")]
    pub(crate) hosts: Vec<String>,

    /// Compare a device with the host, measure it, and write all figures to a file; without a name, the first
    /// GPU
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

    /// Only these parts of the examination, separated by commas [default: all but steps and nccl]
    #[arg(long, value_name = "PARTS", value_delimiter = ',', requires = "device")]
    pub(crate) only: Vec<PartChoice>,

    /// The decoder that `--only steps` trains [default: gpt2]
    #[arg(long, value_name = "MODEL", requires = "only")]
    pub(crate) model: Option<ModelChoice>,

    /// Arithmetic of its matrix products [default: bf16 where the device has it]
    #[arg(long, value_name = "PRECISION", requires = "only")]
    pub(crate) precision: Option<PrecisionChoice>,

    /// Steps that it takes [default: 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000), requires = "only")]
    pub(crate) steps: Option<u32>,

    /// Sequences of a step [default: tiny 4, gpt2 8, llama-1b 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), requires = "only")]
    pub(crate) batch: Option<u32>,

    /// Show the last step alone to `ncu --profile-from-start off`
    #[arg(long, requires = "only")]
    pub(crate) profile: bool,
}

/// Device that `--device` selects.
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

/// Part of the examination that `--only` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartChoice {
    /// Small trainings on the device beside the same ones on the host
    Parity,
    /// The speed of a training as large as the device is worth
    Training,
    /// Matrix products
    Products,
    /// Attention
    Attention,
    /// Copies between host and device
    Copies,
    /// Copies to the other devices of this machine
    Links,
    /// Steps of a decoder of a known size: losses, seconds, memory after each
    Steps,
    /// Every call of NCCL with one rank, for CUDA
    Nccl,
}

/// Decoder that `--model` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelChoice {
    /// 2 layers of the Llama family, 0.1 M parameters
    Tiny,
    /// GPT-2 small, 124 M parameters, 1024 tokens
    Gpt2,
    /// The shape of TinyLlama, 1.1 B parameters, 2048 tokens
    #[value(name = "llama-1b")]
    Llama1b,
}

/// Precision that `--precision` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PrecisionChoice {
    /// 32-bit floats; with CUDA, TF32
    F32,
    /// bfloat16
    Bf16,
    /// Half precision, with a loss scale
    F16,
}

//! Messages of `dtrain worker device`, which checks that a device computes the same as the host, and how
//! fast.
//!
//! Figures that are not finite are stored as [`f64::MAX`], since JSON has no such numbers.

use crate::{DeviceKind, Placement};
use dtrain_recipes::{Decoder, Precision};
use serde::{Deserialize, Serialize};

/// A request to `dtrain worker device`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// Device to check.
    pub placement: Placement,
    /// Tests to run, in any order.
    pub parts: Vec<DeviceTest>,
    /// Settings of [`DeviceTest::Steps`].
    pub steps: StepsRequest,
}

/// A test of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTest {
    /// Comparison of small trainings on the device and on the host.
    Parity,
    /// Speed of a training of a size that suits the device.
    Training,
    /// Speed of matrix products.
    Products,
    /// Speed of attention.
    Attention,
    /// Speed of copies between host and device.
    Copies,
    /// Speed of copies to the other devices of the host.
    Links,
    /// Training steps of a model of a known size.
    Steps,
    /// Every NCCL call, with one rank.
    Nccl,
}

impl DeviceTest {
    /// The default tests.
    pub const USUAL: [Self; 6] =
        [Self::Parity, Self::Training, Self::Products, Self::Attention, Self::Copies, Self::Links];
}

/// A training of some steps, on a model of a known size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsRequest {
    /// Size of the model.
    pub model: StepsModel,
    /// Precision of matrix products; `None` is bf16 if the device supports it, otherwise f32.
    pub precision: Option<Precision>,
    /// Sequences per step; `None` for the model's default.
    pub batch: Option<u32>,
    /// Number of steps.
    pub count: u32,
    /// `true` to let a profiler that waits for `cudaProfilerStart` record the last step.
    pub is_profiled: bool,
}

/// Decoders of known sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepsModel {
    /// 2 layers of the Llama family, 0.1 M parameters.
    Tiny,
    /// GPT-2 small: 124 M parameters.
    Gpt2,
    /// The shape of TinyLlama: 1.1 B parameters.
    #[serde(rename = "llama-1b")]
    Llama1b,
}

/// An answer to a [`DeviceRequest`]; any number of `Doing` and `Found`, then `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceResponse {
    /// The current activity, in words.
    Doing(String),
    /// All findings so far.
    Found(Box<DeviceFindings>),
    /// All tests were tried.
    Done,
    /// Nothing can be measured, with the reason.
    Failed(String),
}

/// The findings about a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFindings {
    /// Kind of device.
    pub device: DeviceKind,
    /// Index among the devices of this kind.
    pub index: u32,
    /// Number of devices of this kind on the host.
    pub devices: u32,
    /// Name that the device reports.
    pub name: String,
    /// Compilation target of kernels, such as `ptx_sm90`.
    pub target: Option<String>,
    /// Driver version, if the driver reports it.
    pub driver: Option<String>,
    /// Memory in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Version of burn.
    pub burn: String,
    /// Version of cubecl, which compiles the kernels.
    pub cubecl: String,
    /// Tuning of matrix-product kernels; `None` if it is off, and on the host.
    #[serde(default)]
    pub tuning: Option<KernelTuning>,
    /// Supported precisions of matrix products.
    pub precisions: Vec<Precision>,
    /// Requested tests.
    pub parts: Vec<DeviceTest>,
    /// Comparisons with trainings on the host.
    pub parity: Vec<Parity>,
    /// Training speeds of one decoder.
    pub training: Vec<TrainingSpeed>,
    /// Speeds of matrix products.
    pub products: Vec<ProductSpeed>,
    /// Speeds of attention.
    pub attention: Vec<AttentionSpeed>,
    /// Speeds of copies between host and device; empty if the device is the host.
    pub copies: Vec<CopySpeed>,
    /// Speeds of copies to the other devices of the host, through its memory.
    pub links: Vec<LinkSpeed>,
    /// Training steps of a model of a known size.
    pub steps: Option<StepSeries>,
    /// NCCL calls with one rank.
    pub nccl: Vec<NcclCall>,
    /// Failed measurements.
    pub faults: Vec<MeasurementError>,
}

impl DeviceFindings {
    /// Returns `true` if all requested comparisons were made and are within their tolerance.
    pub fn agrees(&self) -> bool {
        self.is_compared()
            && self.parity.iter().all(Parity::is_within)
            && self.nccl.iter().all(|call| call.agrees)
            && self.faults.is_empty()
    }

    /// Returns `true` if the comparison with the host was made, or was not requested.
    pub fn is_compared(&self) -> bool {
        !self.parity.is_empty() || !self.parts.contains(&DeviceTest::Parity)
    }
}

/// Autotuning of the kernels of matrix products.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTuning {
    /// Time limit in seconds.
    pub limit_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Products whose kernel was chosen now.
    pub tuned: u32,
    /// Products whose kernel was chosen by an earlier process.
    pub known: u32,
    /// Products that use the kernel of a similar one, because the time limit was reached.
    pub untuned: u32,
    /// Cache folder of kernels and choices; `None` without a cache.
    pub folder: Option<String>,
}

/// A comparison of the same training on device and host: plain operations, the same weights and samples; f32
/// on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// `gpt` (layer norm, GELU, learned positions, biases) or `llama` (RMS norm, SwiGLU, rotary positions,
    /// grouped heads).
    pub family: String,
    /// Precision on the device.
    pub precision: Precision,
    /// Loss per step on the device.
    pub losses: Vec<f64>,
    /// Loss per step on the host.
    pub reference: Vec<f64>,
    /// Largest relative difference of a loss.
    pub loss_difference: f64,
    /// Largest relative difference of a gradient in the first step: per parameter, the norm of the difference
    /// divided by the norm, or by one thousandth of the global norm if that is more.
    pub gradient_difference: f64,
    /// Name of the parameter with that difference.
    pub parameter: String,
    /// Tolerance of the loss difference.
    pub loss_tolerance: f64,
    /// Tolerance of the gradient difference.
    pub gradient_tolerance: f64,
    /// Seconds of the first step, which includes the compilation of kernels.
    pub first_step_seconds: f64,
    /// Median seconds of a later step.
    pub step_seconds: f64,
}

impl Parity {
    /// Returns `true` if both differences are within tolerance.
    pub fn is_within(&self) -> bool {
        self.loss_difference <= self.loss_tolerance && self.gradient_difference <= self.gradient_tolerance
    }
}

/// The training speed of a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpeed {
    /// Sizes of the decoder.
    pub decoder: Decoder,
    /// Number of its parameters.
    pub parameters: u64,
    /// Sequences per step.
    pub batch: u32,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Seconds of the first step.
    pub first_step_seconds: f64,
    /// Number of later steps that were measured.
    pub steps: u32,
    /// Median seconds of a later step.
    pub step_seconds: f64,
    /// Tokens per second in later steps.
    pub tokens_per_second: f64,
    /// Most bytes of tensors, sampled at phase ends of a step; `None` if the device does not report them.
    pub memory_peak_bytes: Option<u64>,
    /// Bytes that the allocator reserved after the steps, including free blocks.
    pub memory_reserved_bytes: Option<u64>,
}

/// The speed of a product of two square matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductSpeed {
    /// Rows and columns of each matrix.
    pub size: u32,
    /// Precision.
    pub precision: Precision,
    /// Seconds of one product.
    pub seconds: f64,
    /// Speed in 1e9 floating-point operations per second.
    pub gflops: f64,
}

/// The speed of causal attention over one sequence, as in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpeed {
    /// Tokens of the sequence.
    pub length: u32,
    /// Number of heads.
    pub heads: u32,
    /// Width of a head.
    pub head_width: u32,
    /// Precision.
    pub precision: Precision,
    /// Seconds of a forward pass.
    pub forward_seconds: f64,
    /// Seconds of a forward and a backward pass.
    pub both_seconds: f64,
    /// Speed of both passes in 1e9 operations per second; masked scores count too.
    pub gflops: f64,
}

/// The speed of a copy between host and device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopySpeed {
    /// Bytes copied.
    pub bytes: u64,
    /// Speed to the device, in 1e9 bytes per second.
    pub to_device: f64,
    /// Speed to the host, in 1e9 bytes per second.
    pub to_host: f64,
}

/// The speed of a copy to another device through host memory, the way ranks exchange data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// Index of the other device.
    pub to: u32,
    /// Bytes copied.
    pub bytes: u64,
    /// Speed in 1e9 bytes per second.
    pub speed: f64,
}

/// Steps of a training on synthetic samples, which are the same in every step and on every device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// Size of the model.
    pub model: StepsModel,
    /// Sizes of the decoder.
    pub decoder: Decoder,
    /// Number of its parameters.
    pub parameters: u64,
    /// Sequences per step.
    pub batch: u32,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Measurements of each step.
    pub series: Vec<MeasuredStep>,
    /// Median tokens per second over the second half of the steps.
    pub tokens_per_second: f64,
}

/// The measurements of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// Loss before the weight update.
    pub loss: f64,
    /// Seconds until the device was idle.
    pub seconds: f64,
    /// Bytes of tensors after the step; `None` if the device does not report them.
    pub memory_used_bytes: Option<u64>,
    /// Bytes that the allocator reserved after the step, including free blocks.
    pub memory_reserved_bytes: Option<u64>,
}

/// A test of an NCCL call with a single rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NcclCall {
    /// Name of the call, such as `all-reduce`.
    pub call: String,
    /// Number of values passed to it.
    pub values: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// `true` if the result is right for a single rank.
    pub agrees: bool,
    /// The first wrong value, or the error of NCCL.
    pub detail: Option<String>,
}

/// A failed measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementError {
    /// Name of the measurement.
    pub part: String,
    /// The reason.
    pub reason: String,
}

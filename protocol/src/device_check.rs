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
    /// Host and device to check.
    pub placement: Placement,
    /// Tests to run, in any order.
    pub parts: Vec<DeviceTest>,
    /// Settings of [`DeviceTest::Steps`].
    pub steps: StepsRequest,
}

/// A test of a device by `dtrain worker device`.
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
    /// A test of every NCCL call, with a single rank.
    Nccl,
}

impl DeviceTest {
    /// The tests that run by default.
    pub const USUAL: [Self; 6] =
        [Self::Parity, Self::Training, Self::Products, Self::Attention, Self::Copies, Self::Links];
}

/// A request to train a model of a known size for some steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsRequest {
    /// Model to train, by its size.
    pub model: StepsModel,
    /// Precision of matrix products; `None` for bf16 if the device supports it, otherwise f32.
    pub precision: Option<Precision>,
    /// Sequences per step; `None` for the model's default.
    pub batch: Option<u32>,
    /// Number of steps to train.
    pub count: u32,
    /// `true` to let a profiler that waits for `cudaProfilerStart` record the last step.
    pub is_profiled: bool,
}

/// A decoder of a known size, for training steps that can be compared between devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepsModel {
    /// A tiny decoder of the Llama family: 2 layers, 0.1 M parameters.
    Tiny,
    /// GPT-2 small: 124 M parameters.
    Gpt2,
    /// The shape of TinyLlama: 1.1 B parameters.
    #[serde(rename = "llama-1b")]
    Llama1b,
}

/// A response to a [`DeviceRequest`]; any number of `Doing` and `Found`, then `Done` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceResponse {
    /// Progress: the current activity, in words.
    Doing(String),
    /// Intermediate result: all findings so far.
    Found(Box<DeviceFindings>),
    /// All requested tests were tried.
    Done,
    /// The device cannot be tested, for this reason.
    Failed(String),
}

/// The results of the tests of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFindings {
    /// Kind of the device.
    pub device: DeviceKind,
    /// Index of the device among those of its kind on the host.
    pub index: u32,
    /// Number of devices of this kind on the host.
    pub devices: u32,
    /// Name that the device reports.
    pub name: String,
    /// Compilation target of kernels, such as `ptx_sm90`; `None` if it is unknown.
    pub target: Option<String>,
    /// Driver version, if the driver reports it.
    pub driver: Option<String>,
    /// Memory of the device in bytes; 0 if unknown.
    pub memory_bytes: u64,
    /// Version of the burn library.
    pub burn: String,
    /// Version of cubecl, which compiles the kernels.
    pub cubecl: String,
    /// Autotuning of matrix-product kernels; `None` if it is off, and on the host.
    #[serde(default)]
    pub tuning: Option<KernelTuning>,
    /// Precisions of matrix products that the device supports.
    pub precisions: Vec<Precision>,
    /// Tests that were requested.
    pub parts: Vec<DeviceTest>,
    /// Comparisons of trainings on the device with the same on the host.
    pub parity: Vec<Parity>,
    /// Training speeds of one decoder, by precision.
    pub training: Vec<TrainingSpeed>,
    /// Speeds of matrix products on the device.
    pub products: Vec<ProductSpeed>,
    /// Speeds of attention on the device.
    pub attention: Vec<AttentionSpeed>,
    /// Speeds of copies between host and device; empty if the device is the host.
    pub copies: Vec<CopySpeed>,
    /// Speeds of copies to the other devices of the host, through its memory.
    pub links: Vec<LinkSpeed>,
    /// Training steps of a model of a known size; `None` if they were not requested.
    pub steps: Option<StepSeries>,
    /// Results of NCCL calls with a single rank.
    pub nccl: Vec<NcclCall>,
    /// Measurements that failed.
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

/// The autotuning of matrix-product kernels: its time and its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTuning {
    /// Time limit of the autotuning in seconds.
    pub limit_seconds: f64,
    /// Seconds that it took in total.
    pub seconds: f64,
    /// Number of matrix products whose kernel was chosen now.
    pub tuned: u32,
    /// Number of matrix products whose kernel was chosen by an earlier process.
    pub known: u32,
    /// Number of matrix products that use the kernel of a similar one, because the time limit was reached.
    pub untuned: u32,
    /// Cache folder of compiled kernels and choices; `None` without a cache.
    pub folder: Option<String>,
}

/// A comparison of the same training on device and host, with plain operations and the same weights and
/// samples; the host uses f32.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// `gpt` (layer norm, GELU, learned positions, biases) or `llama` (RMS norm, SwiGLU, rotary positions,
    /// grouped heads).
    pub family: String,
    /// Precision of matrix products on the device.
    pub precision: Precision,
    /// Loss of each step on the device.
    pub losses: Vec<f64>,
    /// Loss of each step on the host.
    pub reference: Vec<f64>,
    /// Largest relative difference between the losses of a step.
    pub loss_difference: f64,
    /// Largest relative difference between the gradients of a parameter in the first step: the norm of the
    /// difference divided by the norm, or by one thousandth of the global norm if that is more.
    pub gradient_difference: f64,
    /// Name of the parameter with the largest gradient difference.
    pub parameter: String,
    /// Tolerance of the loss difference.
    pub loss_tolerance: f64,
    /// Tolerance of the gradient difference.
    pub gradient_tolerance: f64,
    /// Seconds of the first step on the device, including the compilation of kernels.
    pub first_step_seconds: f64,
    /// Median seconds of a step after the first.
    pub step_seconds: f64,
}

impl Parity {
    /// Returns `true` if the differences of loss and gradient are both within their tolerances.
    pub fn is_within(&self) -> bool {
        self.loss_difference <= self.loss_tolerance && self.gradient_difference <= self.gradient_tolerance
    }
}

/// The training speed of a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpeed {
    /// Sizes of the decoder.
    pub decoder: Decoder,
    /// Number of parameters of the decoder.
    pub parameters: u64,
    /// Sequences per step.
    pub batch: u32,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Seconds of the first step, including the compilation of kernels.
    pub first_step_seconds: f64,
    /// Number of steps that were measured after the first.
    pub steps: u32,
    /// Median seconds of a step after the first.
    pub step_seconds: f64,
    /// Tokens per second in the steps after the first.
    pub tokens_per_second: f64,
    /// Peak bytes of tensors, sampled at the end of each phase of a step; `None` if the device does not
    /// report them.
    pub memory_peak_bytes: Option<u64>,
    /// Bytes that the allocator had reserved after the steps, including free blocks; `None` if the device
    /// does not report them.
    pub memory_reserved_bytes: Option<u64>,
}

/// The speed of a product of two square matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductSpeed {
    /// Number of rows, and of columns, of each matrix.
    pub size: u32,
    /// Precision of the operation.
    pub precision: Precision,
    /// Seconds of one product.
    pub seconds: f64,
    /// Speed of the product in 1e9 floating-point operations per second.
    pub gflops: f64,
}

/// The speed of causal attention over one sequence, as in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpeed {
    /// Length of the sequence in tokens.
    pub length: u32,
    /// Number of heads.
    pub heads: u32,
    /// Width of a head.
    pub head_width: u32,
    /// Precision of the operation.
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
    /// Number of bytes copied.
    pub bytes: u64,
    /// Speed of the copy to the device, in 1e9 bytes per second.
    pub to_device: f64,
    /// Speed of the copy to the host, in 1e9 bytes per second.
    pub to_host: f64,
}

/// The speed of a copy to another device through host memory, which is the way ranks exchange data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// Index of the device that receives the copy.
    pub to: u32,
    /// Number of bytes copied.
    pub bytes: u64,
    /// Speed of the copy in 1e9 bytes per second.
    pub speed: f64,
}

/// The steps of a training on synthetic samples, which are the same in every step and on every device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// Model to train, by its size.
    pub model: StepsModel,
    /// Sizes of the decoder.
    pub decoder: Decoder,
    /// Number of parameters of the decoder.
    pub parameters: u64,
    /// Sequences per step.
    pub batch: u32,
    /// Precision of matrix products.
    pub precision: Precision,
    /// Measurements of each step, in order.
    pub series: Vec<MeasuredStep>,
    /// Median tokens per second over the second half of the steps.
    pub tokens_per_second: f64,
}

/// The measurements of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// Loss before the weight update.
    pub loss: f64,
    /// Seconds of the step, until the device was idle.
    pub seconds: f64,
    /// Bytes of tensors after the step; `None` if the device does not report them.
    pub memory_used_bytes: Option<u64>,
    /// Bytes that the allocator had reserved after the step, including free blocks; `None` if the device does
    /// not report them.
    pub memory_reserved_bytes: Option<u64>,
}

/// The result of testing an NCCL call with a single rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NcclCall {
    /// Name of the NCCL call, such as `all-reduce`.
    pub call: String,
    /// Number of values passed to the call.
    pub values: u64,
    /// Seconds that it took in total.
    pub seconds: f64,
    /// `true` if the call succeeded with the right result for a single rank.
    pub agrees: bool,
    /// Description of the first wrong value, or the error of NCCL; `None` if the call succeeded.
    pub detail: Option<String>,
}

/// A failed measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementError {
    /// Name of the measurement.
    pub part: String,
    /// Reason why the measurement failed.
    pub reason: String,
}

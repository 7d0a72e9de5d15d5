//! What is asked of `dtrain worker device`, and what it finds: whether a device computes what the host computes, and how fast.
//!
//! Of figures, [`f64::MAX`] stands for what is not finite: JSON has no word for that.

use crate::{DeviceKind, Placement};
use dtrain_recipes::{Decoder, Precision};
use serde::{Deserialize, Serialize};

/// What is asked of `dtrain worker device`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceRequest {
    /// The device.
    pub placement: Placement,
    /// What is done, whatever the order here.
    pub parts: Vec<DeviceTest>,
    /// What [`DeviceTest::Steps`] trains.
    pub steps: StepsRequest,
}

/// A part of the examination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceTest {
    /// Small trainings on the device and on the host.
    Parity,
    /// The speed of a training as large as the device is worth.
    Training,
    /// Matrix products.
    Products,
    /// Attention.
    Attention,
    /// Copies between host and device.
    Copies,
    /// Copies to the other devices of the host.
    Links,
    /// Steps of a training of a named size.
    Steps,
    /// Every call of NCCL, with one rank.
    Nccl,
}

impl DeviceTest {
    /// What is done where nobody says what.
    pub const USUAL: [Self; 6] =
        [Self::Parity, Self::Training, Self::Products, Self::Attention, Self::Copies, Self::Links];
}

/// A training of some steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsRequest {
    /// The size.
    pub model: StepsModel,
    /// Arithmetic of matrix products; `None` is bf16 where the device has it, and f32 elsewhere.
    pub precision: Option<Precision>,
    /// Sequences of a step; `None` leaves it to the model.
    pub batch: Option<u32>,
    /// Steps.
    pub count: u32,
    /// Whether a profiler that waits for `cudaProfilerStart` sees the last step.
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
    /// What is done now, in words.
    Doing(String),
    /// Everything that was found so far.
    Found(Box<DeviceFindings>),
    /// All was tried.
    Done,
    /// Nothing can be measured, and why.
    Failed(String),
}

/// What was found of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceFindings {
    /// The backend.
    pub device: DeviceKind,
    /// Index among the devices of the backend.
    pub index: u32,
    /// Devices of the backend on this host.
    pub devices: u32,
    /// The device as it names itself.
    pub name: String,
    /// What kernels are compiled for, such as `ptx_sm90`.
    pub target: Option<String>,
    /// Version of its driver, where that says it.
    pub driver: Option<String>,
    /// Its memory in bytes; 0 where nobody tells.
    pub memory_bytes: u64,
    /// Version of burn.
    pub burn: String,
    /// Version of cubecl, which makes the kernels.
    pub cubecl: String,
    /// How kernels of matrix products were chosen; `None` where that is off, and on the host.
    #[serde(default)]
    pub tuning: Option<KernelTuning>,
    /// The arithmetics of matrix products that it can do.
    pub precisions: Vec<Precision>,
    /// The parts that were asked for.
    pub parts: Vec<DeviceTest>,
    /// Comparisons with the host.
    pub parity: Vec<Parity>,
    /// Training of one decoder.
    pub training: Vec<TrainingSpeed>,
    /// Matrix products.
    pub products: Vec<ProductSpeed>,
    /// Attention.
    pub attention: Vec<AttentionSpeed>,
    /// Copies between host and device; none where the device is the host.
    pub copies: Vec<CopySpeed>,
    /// Copies to the other devices of the host, through its memory.
    pub links: Vec<LinkSpeed>,
    /// Steps of a training of a named size.
    pub steps: Option<StepSeries>,
    /// Calls of NCCL with one rank.
    pub nccl: Vec<NcclCall>,
    /// What could not be measured.
    pub faults: Vec<MeasurementError>,
}

impl DeviceFindings {
    /// Whether all comparisons that were asked for were made and are within their tolerance.
    pub fn agrees(&self) -> bool {
        self.is_compared()
            && self.parity.iter().all(Parity::is_within)
            && self.nccl.iter().all(|call| call.agrees)
            && self.faults.is_empty()
    }

    /// Whether something was compared with the host, or nobody asked for that.
    pub fn is_compared(&self) -> bool {
        !self.parity.is_empty() || !self.parts.contains(&DeviceTest::Parity)
    }
}

/// How kernels of matrix products were chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelTuning {
    /// Seconds that it may take.
    pub limit_seconds: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Products whose kernel was chosen now.
    pub tuned: u32,
    /// Products whose kernel was chosen by an earlier process.
    pub known: u32,
    /// Products that took the kernel of a similar one, because time was over.
    pub untuned: u32,
    /// Where kernels and choices are kept; `None` where they are not.
    pub folder: Option<String>,
}

/// A training on the device beside the same one on the host: plain operations in f32, the same weights and samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    /// `gpt` (layer norm, GELU, learned positions, biases) or `llama` (RMS norm, SwiGLU, rotary positions, grouped heads).
    pub family: String,
    /// Arithmetic of the device.
    pub precision: Precision,
    /// Loss of each step on the device.
    pub losses: Vec<f64>,
    /// Loss of each step on the host.
    pub reference: Vec<f64>,
    /// Largest relative difference of a loss.
    pub loss_difference: f64,
    /// Largest relative difference of a gradient in the first step: of a parameter the norm of the difference over the norm, or
    /// over one thousandth of the norm of all gradients where that is more.
    pub gradient_difference: f64,
    /// The parameter of that gradient.
    pub parameter: String,
    /// Up to which difference of losses it counts as the same.
    pub loss_tolerance: f64,
    /// Up to which difference of gradients.
    pub gradient_tolerance: f64,
    /// Seconds of the first step, in which kernels are compiled.
    pub first_step_seconds: f64,
    /// Seconds of a later one: the median.
    pub step_seconds: f64,
}

impl Parity {
    /// Whether the device computes what the host computes.
    pub fn is_within(&self) -> bool {
        self.loss_difference <= self.loss_tolerance && self.gradient_difference <= self.gradient_tolerance
    }
}

/// How fast the device trains a decoder of the Llama family.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainingSpeed {
    /// The decoder.
    pub decoder: Decoder,
    /// Its parameters.
    pub parameters: u64,
    /// Sequences of a step.
    pub batch: u32,
    /// Arithmetic of matrix products.
    pub precision: Precision,
    /// Seconds of the first step.
    pub first_step_seconds: f64,
    /// Later steps that were measured.
    pub steps: u32,
    /// Seconds of one of them: the median.
    pub step_seconds: f64,
    /// Tokens a second in later steps.
    pub tokens_per_second: f64,
    /// Most bytes that tensors took at the ends of parts of a step; `None` where the device does not tell.
    pub memory_peak_bytes: Option<u64>,
    /// Bytes that the allocator held after the steps, those kept for later among them.
    pub memory_reserved_bytes: Option<u64>,
}

/// A product of two square matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductSpeed {
    /// Rows, and columns.
    pub size: u32,
    /// Arithmetic.
    pub precision: Precision,
    /// Seconds of one.
    pub seconds: f64,
    /// Additions and multiplications a second, in 1e9.
    pub gflops: f64,
}

/// Causal attention of one sequence, as training computes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttentionSpeed {
    /// Tokens.
    pub length: u32,
    /// Heads.
    pub heads: u32,
    /// Width of a head.
    pub head_width: u32,
    /// Arithmetic.
    pub precision: Precision,
    /// Seconds of a forward.
    pub forward_seconds: f64,
    /// Seconds of a forward and its backward.
    pub both_seconds: f64,
    /// Of the products of both, scores of later keys counted as well: additions and multiplications a second, in 1e9.
    pub gflops: f64,
}

/// A copy between host and device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopySpeed {
    /// Bytes.
    pub bytes: u64,
    /// To the device, in 1e9 bytes a second.
    pub to_device: f64,
    /// Back to the host, in 1e9 bytes a second.
    pub to_host: f64,
}

/// A copy to another device through the memory of the host, as ranks exchange data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkSpeed {
    /// Index of the other device.
    pub to: u32,
    /// Bytes.
    pub bytes: u64,
    /// 1e9 bytes a second.
    pub speed: f64,
}

/// Steps of a training on made-up samples, which are the same in every step and on every device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepSeries {
    /// The size.
    pub model: StepsModel,
    /// The decoder.
    pub decoder: Decoder,
    /// Its parameters.
    pub parameters: u64,
    /// Sequences of a step.
    pub batch: u32,
    /// Arithmetic of matrix products.
    pub precision: Precision,
    /// Each step.
    pub series: Vec<MeasuredStep>,
    /// Tokens a second: the median of the second half of the steps.
    pub tokens_per_second: f64,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredStep {
    /// The loss before it.
    pub loss: f64,
    /// Seconds until the device had nothing left to do.
    pub seconds: f64,
    /// Bytes of tensors after it; `None` where the device does not tell.
    pub memory_used_bytes: Option<u64>,
    /// Bytes that the allocator held after it, those kept for later among them.
    pub memory_reserved_bytes: Option<u64>,
}

/// A call of NCCL by the only rank of a communicator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NcclCall {
    /// Which, such as `all-reduce`.
    pub call: String,
    /// Values that it was given.
    pub values: u64,
    /// Seconds of it.
    pub seconds: f64,
    /// Whether the values came back as one rank gives them to itself.
    pub agrees: bool,
    /// The first value that did not, or what NCCL said.
    pub detail: Option<String>,
}

/// What could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeasurementError {
    /// What it was.
    pub part: String,
    /// Why.
    pub reason: String,
}

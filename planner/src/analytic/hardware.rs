//! Accelerators: data sheets, and the share of a peak that large matrix products and attention sustain.

use super::constants::{Constants, GeneralConstants};
use serde::Deserialize;
use std::sync::LazyLock;

/// Data sheet of an accelerator; `data/gpus.toml` gives units and sources.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct GpuSpec {
    pub words: Vec<String>,
    #[serde(default)]
    pub unless: Vec<String>,
    pub generation: String,
    pub dense_16: f64,
    pub dense_8: f64,
    pub dense_32: f64,
    pub memory: f64,
    pub multiprocessors: f64,
    pub link: f64,
    pub network: f64,
    pub gibibytes: f64,
    pub sold: Vec<u32>,
    #[serde(default)]
    pub beside: Vec<u32>,
    #[serde(default)]
    pub watts: Option<f64>,
    pub source: String,
}

/// Properties common to one hardware generation; `data/generations.toml` gives the sources.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct GpuGeneration {
    pub ceiling_16: f64,
    pub sustained_16: f64,
    pub ceiling_8: f64,
    pub sustained_8: f64,
    pub flash: f64,
    pub fused: f64,
    #[serde(default)]
    pub kind: AcceleratorKind,
    pub is_measured: bool,
}

/// Kind of accelerator; each engine supports some kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorKind {
    /// A GPU.
    #[default]
    Gpu,
    /// Intel's Gaudi.
    Gaudi,
    /// Google's TPU.
    Tpu,
}

/// Number format of the linear layers of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// f32, or TF32 on devices that have it.
    Bits32,
    /// bf16 or f16.
    Bits16,
    /// fp8, with a scale for each tensor.
    Bits8,
    /// fp8, with a scale for each block.
    Blocks8,
    /// fp4, with a scale for each block.
    Blocks4,
}

impl MatmulPrecision {
    /// Bytes per element of an input saved for the backward.
    pub fn saved_bytes(self) -> f64 {
        if self.are_small() { 1.0 } else { 2.0 }
    }

    fn are_small(self) -> bool {
        matches!(self, Self::Bits8 | Self::Blocks8 | Self::Blocks4)
    }
}

/// Implementation of the core of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernel {
    /// Separate matrix products and element-wise operations.
    Plain,
    /// Separate matrix products, with mask and softmax in one kernel.
    Unfused,
    /// FlashAttention 1.
    Flash1,
    /// FlashAttention 2.
    Flash2,
    /// FlashAttention 3, cuDNN's or Transformer Engine's attention.
    Fused,
}

impl AttentionKernel {
    /// Returns `true` if attention scores are never written to memory.
    pub fn is_fused(self) -> bool {
        !matches!(self, Self::Plain | Self::Unfused)
    }
}

#[derive(Deserialize)]
struct GpuTable {
    gpu: Vec<GpuSpec>,
}

static GPUS: LazyLock<Vec<GpuSpec>> = LazyLock::new(|| {
    let parts: GpuTable = toml::from_str(include_str!("data/gpus.toml")).expect("a test reads the file");
    parts.gpu
});

static UNKNOWN: LazyLock<GpuSpec> = LazyLock::new(|| GpuSpec {
    words: Vec::new(),
    unless: Vec::new(),
    generation: "ampere".into(),
    dense_16: 200.0,
    dense_8: 0.0,
    dense_32: 100.0,
    memory: 1.0,
    multiprocessors: 108.0,
    link: 32.0,
    network: 100.0,
    gibibytes: 24.0,
    sold: vec![24],
    beside: Vec::new(),
    watts: None,
    source: "a guess: the part is not in the table".into(),
});

/// Returns all accelerators of the table.
pub fn gpus() -> &'static [GpuSpec] {
    &GPUS
}

/// Finds the accelerator named anywhere in `name`; `None` if the table has none.
/// [`parse_gpu_name`](super::gpu_names::parse_gpu_name) reads a whole name.
pub fn gpu(name: &str) -> Option<&'static GpuSpec> {
    let name = split_gpu_name(name);
    let has = |word: &String| has_number_whole(&name, word);
    GPUS.iter().find(|part| part.words.iter().all(has) && !part.unless.iter().any(has))
}

/// Normalizes a name like [`normalized_gpu_name`], with a blank where two numbers would join.
fn split_gpu_name(name: &str) -> String {
    let mut parted = String::new();
    let mut is_apart = false;
    for c in name.to_lowercase().chars() {
        if matches!(c, ' ' | '-' | '_') {
            is_apart = true;
            continue;
        }
        if is_apart && c.is_ascii_digit() && parted.ends_with(|last: char| last.is_ascii_digit()) {
            parted.push(' ');
        }
        parted.push(c);
        is_apart = false;
    }
    parted
}

/// Returns `true` if `name` contains `word` without splitting a number: `a100` is not in `a1000`.
fn has_number_whole(name: &str, word: &str) -> bool {
    let is_digit = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_digit);
    let (name, word_bytes) = (name.as_bytes(), word.as_bytes());
    (0..(name.len() + 1).saturating_sub(word_bytes.len())).any(|at| {
        let end = at + word_bytes.len();
        let begins = at == 0 || !(is_digit(name.get(at - 1)) && is_digit(word_bytes.first()));
        let ends = !(is_digit(word_bytes.last()) && is_digit(name.get(end)));
        name[at..end] == *word_bytes && begins && ends
    })
}

/// Returns a name in lower case, without spaces, hyphens and underscores.
pub fn normalized_gpu_name(name: &str) -> String {
    name.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect()
}

/// Returns the stand-in for accelerators that the table lacks.
pub fn unknown() -> &'static GpuSpec {
    &UNKNOWN
}

impl GpuSpec {
    /// Returns the share of the clock left by a limit of `watts`: power grows with about its square. 1 if the
    /// usual power is unknown.
    pub fn clock_at(&self, watts: f64) -> f64 {
        self.watts.map_or(1.0, |usual| (watts / usual).sqrt().min(1.0))
    }

    /// Kind of the accelerator.
    pub fn kind(&self) -> AcceleratorKind {
        Constants::shipped().generation(self).kind
    }

    /// Peak 16-bit FLOP/s of the data sheet, without sparsity.
    pub fn peak(&self) -> f64 {
        self.dense_16 * 1e12
    }
}

/// Sustained throughput of one device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceThroughput {
    /// FLOP/s of large 16-bit matrix products (32-bit if the model is trained in that).
    pub products: f64,
    /// Throughput of fp8 and fp4 products, if linear layers use them.
    pub small: Option<LowPrecisionThroughput>,
    /// FLOP/s of the forward of fused attention's core.
    pub attention: f64,
    /// Memory bytes per second of element-wise passes.
    pub stream: f64,
    /// Number of multiprocessors, which share the tiles of a product.
    pub multiprocessors: f64,
    /// Exponent of the wave utilisation of large products.
    pub wave: f64,
    /// Efficiency of products whose dimension is a multiple of 8, 4, 2, or 1.
    pub align: [f64; 4],
    /// Share of the clock that a power limit leaves.
    pub power: f64,
}

/// Throughput of matrix products in 8 bits or fewer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowPrecisionThroughput {
    /// FLOP/s of large products.
    pub products: f64,
    /// Memory passes over an operand to quantize it.
    pub passes: f64,
}

impl DeviceThroughput {
    /// Computes the throughput of `gpu` for this precision and attention kernel with heads of `head`
    /// channels. `power` is the share of the clock that a power limit leaves.
    pub fn of(
        gpu: &GpuSpec,
        products: MatmulPrecision,
        kernel: AttentionKernel,
        head: f64,
        power: f64,
        constants: &Constants,
    ) -> Self {
        let (c, generation) = (&constants.general, constants.generation(gpu));
        let half = gpu.peak() * generation.ceiling_16 * generation.sustained_16 * power;
        let wide = match products {
            MatmulPrecision::Bits32 => gpu.dense_32 / gpu.dense_16,
            MatmulPrecision::Bits16
            | MatmulPrecision::Bits8
            | MatmulPrecision::Blocks8
            | MatmulPrecision::Blocks4 => 1.0,
        };
        Self {
            products: half * wide,
            small: small(gpu, products, power, constants),
            attention: gpu.peak() * attention(generation, c, kernel, head) * power,
            stream: gpu.memory * 1e12 * c.stream,
            multiprocessors: gpu.multiprocessors,
            wave: c.wave,
            align: [c.align_8, c.align_4, c.align_2, c.align_1],
            power,
        }
    }
}

/// Returns the low-precision throughput, if it is requested and `gpu` has it.
fn small(
    gpu: &GpuSpec,
    products: MatmulPrecision,
    power: f64,
    constants: &Constants,
) -> Option<LowPrecisionThroughput> {
    let (c, generation) = (&constants.general, constants.generation(gpu));
    if !products.are_small() || gpu.dense_8 <= 0.0 {
        return None;
    }
    let fourth =
        if products == MatmulPrecision::Blocks4 && gpu.generation == "blackwell" { 1.5 } else { 1.0 };
    let scales = if products == MatmulPrecision::Bits8 { 1.0 } else { c.blocks };
    Some(LowPrecisionThroughput {
        products: gpu.dense_8 * 1e12 * generation.ceiling_8 * generation.sustained_8 * power * fourth,
        passes: 0.5 * c.quantise * scales,
    })
}

/// Returns the share of the 16-bit peak that the forward of attention's core reaches.
fn attention(generation: &GpuGeneration, c: &GeneralConstants, kernel: AttentionKernel, head: f64) -> f64 {
    let share = match kernel {
        AttentionKernel::Fused => generation.fused * c.fused,
        AttentionKernel::Flash2 => generation.flash * c.flash_2,
        AttentionKernel::Flash1 | AttentionKernel::Unfused | AttentionKernel::Plain => {
            generation.flash * c.flash_1
        }
    };
    // FlashAttention 1 was tuned for heads of 64 channels.
    let is_narrow = head < 128.0 && matches!(kernel, AttentionKernel::Fused | AttentionKernel::Flash2);
    if is_narrow { share * c.narrow_head } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_generation_a_source_and_figures() {
        for part in gpus() {
            let generation = Constants::shipped().generation(part);
            assert!(!part.source.is_empty() && !part.words.is_empty(), "{part:?}");
            assert!(
                part.dense_16 > 0.0 && part.memory > 0.0 && part.link > 0.0 && part.gibibytes > 0.0,
                "{part:?}"
            );
            assert!(part.dense_8 <= 0.0 || generation.ceiling_8 > 0.0, "{part:?}");
        }
    }

    #[test]
    fn products_of_32_bits_run_at_the_rate_of_the_data_sheet() {
        let ratio = |name| {
            let of = |products| {
                let part = gpu(name).expect("it is in the table");
                DeviceThroughput::of(part, products, AttentionKernel::Fused, 128.0, 1.0, Constants::shipped())
                    .products
            };
            of(MatmulPrecision::Bits32) / of(MatmulPrecision::Bits16)
        };
        assert!((ratio("T4") - 8.1 / 65.0).abs() < 1e-9, "{}", ratio("T4"));
        assert!((ratio("H100") - 495.0 / 989.0).abs() < 1e-9);
    }

    #[test]
    fn a_name_means_the_most_special_part() {
        let peak = |name: &str| gpu(name).map(|part| (part.dense_16, part.memory));
        assert_eq!(peak("NVIDIA H200"), Some((989.0, 4.8)));
        assert_eq!(peak("GH200-NVL"), Some((989.0, 4.0)));
        assert_eq!(peak("NVIDIA H100 PCIe"), Some((756.0, 2.0)));
        assert_eq!(peak("H100 NVL"), Some((835.0, 3.9)));
        assert_eq!(peak("H100-NVLink"), Some((989.0, 3.35)));
        assert_eq!(peak("NVIDIA GB200"), Some((2500.0, 8.0)));
        assert_eq!(peak("A100-SXM4-40GB"), Some((312.0, 1.555)));
        assert_eq!(peak("NVIDIA A100-SXM4-80GB"), Some((312.0, 2.039)));
        assert_eq!(peak("NVIDIA A10G"), Some((70.0, 0.6)));
        assert_eq!(peak("NVIDIA L40S"), Some((362.0, 0.864)));
        assert_eq!(peak("AMD Instinct MI300X"), Some((1307.0, 5.3)));
        assert_eq!(peak("NVIDIA GeForce RTX 4090"), Some((165.0, 1.008)));
        assert_eq!(peak("A100 400W"), Some((312.0, 2.039)), "watts are no memory");
        for other in ["Frobnicator 9", "NVIDIA RTX A1000", "H1000", "B2000", "T400"] {
            assert_eq!(peak(other), None, "{other}");
        }
    }
}

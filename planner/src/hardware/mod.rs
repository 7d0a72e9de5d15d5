//! Accelerators: their data sheets (`data/gpus.toml`), the properties of their generations
//! (`data/generations.toml`), and their names.

pub mod gpu_names;

use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Data sheet of an accelerator; `data/gpus.toml` gives the unit and the source of each figure.
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

/// Properties that all accelerators of a hardware generation share; `data/generations.toml` gives the
/// sources.
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

/// Kind of an accelerator; each engine supports some kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorKind {
    /// A GPU of any maker.
    #[default]
    Gpu,
    /// An Intel Gaudi.
    Gaudi,
    /// A Google TPU.
    Tpu,
}

#[derive(Deserialize)]
struct GpuTable {
    gpu: Vec<GpuSpec>,
}

static GPUS: LazyLock<Vec<GpuSpec>> = LazyLock::new(|| {
    let parts: GpuTable = toml::from_str(include_str!("data/gpus.toml")).expect("a test reads the file");
    parts.gpu
});

static GENERATIONS: LazyLock<BTreeMap<String, GpuGeneration>> =
    LazyLock::new(|| toml::from_str(include_str!("data/generations.toml")).expect("a test reads the file"));

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

/// Returns the data sheets of all accelerators in the table.
pub fn gpus() -> &'static [GpuSpec] {
    &GPUS
}

/// Returns the properties of each hardware generation, by its name.
pub fn generations() -> &'static BTreeMap<String, GpuGeneration> {
    &GENERATIONS
}

/// Finds the accelerator named anywhere in `name`; `None` if the table has none.
/// [`parse_gpu_name`](gpu_names::parse_gpu_name) reads a whole name.
pub fn gpu(name: &str) -> Option<&'static GpuSpec> {
    let name = split_gpu_name(name);
    let has = |word: &String| has_number_whole(&name, word);
    GPUS.iter().find(|part| part.words.iter().all(has) && !part.unless.iter().any(has))
}

/// Returns `name` normalized as by [`normalized_gpu_name`], but with a blank where two numbers would join.
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

/// Returns `name` in lower case, without spaces, hyphens and underscores.
pub fn normalized_gpu_name(name: &str) -> String {
    name.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect()
}

/// Returns the data sheet that stands in for accelerators that the table lacks.
pub fn unknown() -> &'static GpuSpec {
    &UNKNOWN
}

impl GpuSpec {
    /// Returns the share of its usual clock at which the accelerator runs under a limit of `watts`: power
    /// grows with about the square of the clock. 1 if the usual power is unknown.
    pub fn clock_at(&self, watts: f64) -> f64 {
        self.watts.map_or(1.0, |usual| (watts / usual).sqrt().min(1.0))
    }

    /// Returns the kind of the accelerator.
    pub fn kind(&self) -> AcceleratorKind {
        generations()
            .get(&self.generation)
            .expect("every part has a generation of the table, as a test shows")
            .kind
    }

    /// Returns the peak 16-bit FLOP/s of the data sheet, without sparsity.
    pub fn peak(&self) -> f64 {
        self.dense_16 * 1e12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_generation_a_source_and_figures() {
        for part in gpus() {
            let generation = &generations()[&part.generation];
            assert!(!part.source.is_empty() && !part.words.is_empty(), "{part:?}");
            assert!(
                part.dense_16 > 0.0 && part.memory > 0.0 && part.link > 0.0 && part.gibibytes > 0.0,
                "{part:?}"
            );
            assert!(part.dense_8 <= 0.0 || generation.ceiling_8 > 0.0, "{part:?}");
        }
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

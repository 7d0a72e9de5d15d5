//! Machines that train: accelerators with their data sheets, the links between them, hosts and clouds.
//!
//! The tables are `data/gpus.csv` (parts), `data/gpu_sources.csv` (where each figure was read),
//! `data/generations.toml` (properties that the parts of a generation share) and `data/cloud_machines.csv`.

pub mod cloud;
pub mod device_peak;
pub mod gpu_names;
mod gpu_spec;
mod link;
mod machine;
pub mod on;

pub use gpu_spec::{GpuSource, GpuSpec, SOURCED, gpu_sources, gpus, unknown};
pub use link::{Link, LinkClass};
pub use machine::{Assumed, Assumption, HostGroup, Machine, equal_hosts};

use dtrain_recipes::Precision;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Properties that all accelerators of a hardware generation share; `data/generations.toml` gives the
/// sources.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
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
    #[serde(default)]
    pub mesh_peers: Option<f64>,
    #[serde(default = "yes")]
    pub has_bf16: bool,
    #[serde(default = "yes")]
    pub has_flash: bool,
}

fn yes() -> bool {
    true
}

/// Kind of an accelerator; each engine supports some kinds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceleratorKind {
    /// A GPU of NVIDIA, through CUDA.
    #[default]
    Nvidia,
    /// A GPU of AMD, through ROCm.
    Amd,
    /// A GPU of Intel, through XPU.
    Intel,
    /// An Intel Gaudi.
    Gaudi,
    /// A Google TPU.
    Tpu,
}

static GENERATIONS: LazyLock<BTreeMap<String, GpuGeneration>> =
    LazyLock::new(|| toml::from_str(include_str!("data/generations.toml")).expect("a test reads the file"));

/// Returns the properties of each hardware generation, by its name.
pub fn generations() -> &'static BTreeMap<String, GpuGeneration> {
    &GENERATIONS
}

/// Finds the accelerator called `name`, with its memory and form if the name states them; `None` if the name
/// is not fully understood.
pub fn gpu(name: &str) -> Option<&'static GpuSpec> {
    gpu_names::parse_gpu_name(name).ok().map(|parsed| parsed.gpu)
}

/// Returns `name` in lower case, without spaces, hyphens and underscores.
pub fn normalized_gpu_name(name: &str) -> String {
    name.to_lowercase().chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect()
}

impl GpuSpec {
    /// Returns `true` if the accelerator has matrix products in `precision`. All have f32; f16 products of
    /// parts without f16 units are computed in f32.
    pub fn has_precision(&self, precision: Precision) -> bool {
        match precision {
            Precision::F32 => true,
            Precision::F16 => {
                matches!(self.kind(), AcceleratorKind::Nvidia | AcceleratorKind::Amd | AcceleratorKind::Intel)
            }
            Precision::Bf16 => self.generation().has_bf16,
            Precision::Fp8 => self.dense_8 > 0.0,
        }
    }
}

#[cfg(test)]
mod tests;

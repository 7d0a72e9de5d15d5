//! The constants of the cost model: general ones (`data/constants.toml`), a profile per engine style
//! (`data/engines.toml`) and properties per hardware generation (`hardware/data/generations.toml`).

pub mod covariance;
pub mod fitted;

use super::experience::Experience;
use super::software_profile::{SoftwareProfile, SoftwareProfiles};
use crate::engine::SoftwareStyle;
use crate::hardware::{self, GpuGeneration, GpuSpec};
use covariance::{Covariance, CovarianceFile};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// All constants of the cost model.
#[derive(Clone, Debug)]
pub struct Constants {
    /// Constants that depend on neither hardware nor engine.
    pub general: GeneralConstants,
    /// Cost profile of each engine style.
    pub profiles: SoftwareProfiles,
    /// Properties of each hardware generation, by its name.
    pub generations: BTreeMap<String, GpuGeneration>,
    /// Published runs that the constants were fitted to.
    pub experience: Experience,
    /// Covariance of the logarithms of the fitted constants.
    pub covariance: Covariance,
}

/// Constants that depend on neither hardware nor engine; `data/constants.toml` gives the meaning, the prior
/// and the origin of each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct GeneralConstants {
    pub wave: f64,
    pub align_8: f64,
    pub align_4: f64,
    pub align_2: f64,
    pub align_1: f64,
    pub kernel: f64,
    pub stream: f64,
    pub flash_1: f64,
    pub flash_2: f64,
    pub fused: f64,
    pub narrow_head: f64,
    pub flash_backward: f64,
    pub attention_ramp: f64,
    pub attention_short: f64,
    pub ring: f64,
    pub unfused: f64,
    pub scores_forward: f64,
    pub scores_backward: f64,
    pub plain: f64,
    pub quantise: f64,
    pub blocks: f64,
    pub link: f64,
    pub link_start: f64,
    pub link_member: f64,
    pub network: f64,
    pub network_start: f64,
    pub network_member: f64,
    pub all_to_all: f64,
    pub gather_again: f64,
    pub contention: f64,
    pub straggler: f64,
    pub loss_passes: f64,
    pub optimizer_bytes: f64,
    pub operations: f64,
    pub operations_backward: f64,
    pub operations_tensor: f64,
    pub operations_unfused: f64,
    pub operations_experts: f64,
    pub operations_expert: f64,
    pub routing: f64,
    pub imbalance: f64,
    pub grouped: f64,
    pub expert_passes: f64,
    pub product_again: f64,
    pub adapter_passes: f64,
    pub dequantise: f64,
    pub operations_adapter: f64,
    pub host_link: f64,
    pub host_stream: f64,
    pub memory: MemoryConstants,
    pub doubt: UncertaintyConstants,
}

/// Constants of the memory model.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct MemoryConstants {
    pub fragmentation: f64,
    pub communicator: f64,
    pub kept_every_second: f64,
    pub transient: f64,
}

/// Standard deviations of ln(measured / predicted step time) and of peak memory, by cause of the error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct UncertaintyConstants {
    pub base: f64,
    pub experts: f64,
    pub exchange: f64,
    pub context: f64,
    pub context_short: f64,
    pub short: f64,
    pub host: f64,
    pub messages: f64,
    pub tensor_hosts: f64,
    pub zero_bubble: f64,
    pub zero_2: f64,
    pub larger: f64,
    pub power: f64,
    pub several: f64,
    pub unseen: f64,
    pub unknown_hardware: f64,
    pub unverified: f64,
    pub unknown_software: f64,
    pub unknown_micro_batch: f64,
    pub unknown_chunks: f64,
    pub unknown_recompute: f64,
    pub unknown_attention: f64,
    pub unknown_network: f64,
    pub unknown_precision: f64,
    pub unknown_zero: f64,
    pub memory: f64,
    pub memory_experts: f64,
    pub memory_unknown: f64,
}

impl Constants {
    /// Returns the constants shipped with dtrain.
    pub fn shipped() -> &'static Self {
        &SHIPPED
    }

    /// Returns the profile of an engine style.
    pub fn profile(&self, style: SoftwareStyle) -> SoftwareProfile {
        self.profiles.of(style)
    }

    /// Returns the properties of the generation that `gpu` belongs to.
    ///
    /// # Panics
    /// If the generation is missing.
    pub fn generation(&self, gpu: &GpuSpec) -> &GpuGeneration {
        self.generations
            .get(&gpu.generation)
            .expect("every part has a generation of the table, as a test shows")
    }
}

static SHIPPED: LazyLock<Constants> = LazyLock::new(|| Constants {
    general: toml::from_str(include_str!("data/constants.toml")).expect("a test reads the file"),
    profiles: toml::from_str(include_str!("data/engines.toml")).expect("a test reads the file"),
    generations: hardware::generations().clone(),
    experience: toml::from_str(include_str!("data/experience.toml")).expect("a test reads the file"),
    covariance: covariance(),
});

fn covariance() -> Covariance {
    let page: CovarianceFile =
        toml::from_str(include_str!("data/covariance.toml")).expect("a test reads the file");
    Covariance::of(page).expect("a test reads the file")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_files_are_whole() {
        assert!(Constants::shipped().general.wave > 0.0);
    }
}

//! The constants that neither hardware nor engine changes, as `data/constants.toml` has them.

use serde::Deserialize;
use std::sync::LazyLock;

/// Constants of the model; `data/constants.toml` says what each means, its prior, and whether it was fitted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct Constants {
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
    pub network_doubling: f64,
    pub all_to_all: f64,
    pub gather_again: f64,
    pub contention: f64,
    pub loss_passes: f64,
    pub optimizer_bytes: f64,
    pub operations: f64,
    pub operations_backward: f64,
    pub operations_tensor: f64,
    pub operations_unfused: f64,
    pub operations_experts: f64,
    pub routing: f64,
    pub imbalance: f64,
    pub grouped: f64,
    pub expert_passes: f64,
    pub product_again: f64,
    pub memory: MemoryConstants,
    pub doubt: DoubtConstants,
}

/// Constants of memory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct MemoryConstants {
    pub fragmentation: f64,
    pub communicator: f64,
    pub kept_every_second: f64,
    pub transient: f64,
}

/// Standard deviations of the logarithm of measured over predicted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct DoubtConstants {
    pub base: f64,
    pub widened: f64,
    pub experts: f64,
    pub context: f64,
    pub host: f64,
    pub unmeasured: f64,
    pub unknown_hardware: f64,
    pub unknown_software: f64,
    pub unknown_micro_batch: f64,
    pub unknown_chunks: f64,
    pub unknown_recompute: f64,
    pub unknown_attention: f64,
    pub unknown_network: f64,
    pub unknown_precision: f64,
    pub memory: f64,
    pub memory_experts: f64,
    pub memory_unknown: f64,
}

static CONSTANTS: LazyLock<Constants> = LazyLock::new(|| {
    toml::from_str(include_str!("data/constants.toml")).expect("the file has every constant, as a test shows")
});

/// The constants.
pub fn constants() -> &'static Constants {
    &CONSTANTS
}

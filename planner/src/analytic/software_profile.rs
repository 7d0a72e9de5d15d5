//! Cost profiles of software styles: the time that an engine's software takes, and the communication that it
//! hides.

use crate::engine::SoftwareStyle;
use serde::Deserialize;

/// Cost profile of an engine style; `data/engines.toml` gives the meaning and the source of each constant.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the comments stand beside the figures")]
pub struct SoftwareProfile {
    pub passes: f64,
    pub launch: f64,
    pub hidden_tensor: f64,
    pub hidden_data: f64,
    pub hidden_expert: f64,
    pub step: f64,
    pub operations: f64,
    pub late: f64,
    pub message: f64,
    pub message_exposed: f64,
    pub pads_vocabulary: bool,
    pub routes_by_host: bool,
    pub gradient_bytes: f64,
    pub wire_bytes: f64,
    #[serde(default)]
    pub through_host: Option<f64>,
    pub has_master_copy: bool,
    #[serde(default)]
    pub shards_weights: bool,
    pub ties_embeddings: bool,
    pub logit_bytes: f64,
    pub context_bytes: f64,
    pub doubt: f64,
    pub largest: f64,
}

/// The cost profiles of all software styles.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named after the styles")]
pub struct SoftwareProfiles {
    pub research: SoftwareProfile,
    pub megatron: SoftwareProfile,
    pub modern: SoftwareProfile,
    pub fsdp: SoftwareProfile,
    pub fully_shard: SoftwareProfile,
    pub compiled: SoftwareProfile,
    pub xla: SoftwareProfile,
    pub dtrain: SoftwareProfile,
}

impl SoftwareProfiles {
    /// Returns the cost profile of `style`.
    pub fn of(&self, style: SoftwareStyle) -> SoftwareProfile {
        match style {
            SoftwareStyle::Research => self.research,
            SoftwareStyle::Megatron => self.megatron,
            SoftwareStyle::Modern => self.modern,
            SoftwareStyle::Fsdp => self.fsdp,
            SoftwareStyle::FullyShard => self.fully_shard,
            SoftwareStyle::Compiled => self.compiled,
            SoftwareStyle::Xla => self.xla,
            SoftwareStyle::Dtrain => self.dtrain,
        }
    }
}

impl SoftwareProfiles {
    /// Returns the cost profile of `style`, so that it can be changed.
    pub(crate) fn of_mut(&mut self, style: SoftwareStyle) -> &mut SoftwareProfile {
        match style {
            SoftwareStyle::Research => &mut self.research,
            SoftwareStyle::Megatron => &mut self.megatron,
            SoftwareStyle::Modern => &mut self.modern,
            SoftwareStyle::Fsdp => &mut self.fsdp,
            SoftwareStyle::FullyShard => &mut self.fully_shard,
            SoftwareStyle::Compiled => &mut self.compiled,
            SoftwareStyle::Xla => &mut self.xla,
            SoftwareStyle::Dtrain => &mut self.dtrain,
        }
    }
}

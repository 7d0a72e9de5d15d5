//! Styles of training engines: the cost of their software, and the communication that they hide.

use super::{AttentionKernel, Constants, Recomputation};
use serde::Deserialize;

/// Engine styles with known constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareStyle {
    /// Megatron-DeepSpeed, GPT-NeoX and research code built on them.
    Research,
    /// Megatron-LM of 2019 to 2022.
    Megatron,
    /// Megatron-Core, NeMo and Megatron-Bridge, with Transformer Engine.
    Modern,
    /// PyTorch FSDP and DeepSpeed ZeRO, not compiled.
    Fsdp,
    /// `torch.compile`, as in torchtitan.
    Compiled,
    /// JAX with XLA.
    Xla,
    /// dtrain's own worker on GPUs; its constants are unmeasured.
    Dtrain,
}

impl SoftwareStyle {
    /// Name of the style in data files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Research => "research",
            Self::Megatron => "megatron",
            Self::Modern => "modern",
            Self::Fsdp => "fsdp",
            Self::Compiled => "compiled",
            Self::Xla => "xla",
            Self::Dtrain => "dtrain",
        }
    }

    /// Returns `true` if the constants were checked against measured runs.
    pub fn is_measured(self) -> bool {
        self != Self::Dtrain
    }

    /// Returns the default attention kernel.
    pub fn kernel(self) -> AttentionKernel {
        match self {
            Self::Research | Self::Dtrain => AttentionKernel::Plain,
            Self::Megatron => AttentionKernel::Unfused,
            Self::Modern => AttentionKernel::Fused,
            Self::Fsdp | Self::Compiled | Self::Xla => AttentionKernel::Flash2,
        }
    }

    /// Returns the meaning of selective recomputation: the core of attention in Megatron, every second matrix
    /// product in PyTorch.
    pub fn selective(self) -> Recomputation {
        match self {
            Self::Research | Self::Megatron | Self::Modern | Self::Xla | Self::Dtrain => {
                Recomputation::Attention
            }
            Self::Fsdp | Self::Compiled => Recomputation::EverySecondProduct,
        }
    }
}

/// Software costs of an engine style; `data/engines.toml` gives the meaning and the source of each.
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
    pub ties_embeddings: bool,
    pub logit_bytes: f64,
    pub context_bytes: f64,
    pub doubt: f64,
    pub largest: f64,
}

/// Cost profile of one engine.
#[derive(Clone, Copy, Debug)]
pub struct Software {
    /// Style of the engine.
    pub style: SoftwareStyle,
    /// Profile of the style, with corrections for this engine.
    pub profile: SoftwareProfile,
}

/// The profiles of all styles.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "named after the styles")]
pub struct SoftwareProfiles {
    pub research: SoftwareProfile,
    pub megatron: SoftwareProfile,
    pub modern: SoftwareProfile,
    pub fsdp: SoftwareProfile,
    pub compiled: SoftwareProfile,
    pub xla: SoftwareProfile,
    pub dtrain: SoftwareProfile,
}

impl SoftwareProfiles {
    /// Returns the profile of a style.
    pub fn of(&self, style: SoftwareStyle) -> SoftwareProfile {
        match style {
            SoftwareStyle::Research => self.research,
            SoftwareStyle::Megatron => self.megatron,
            SoftwareStyle::Modern => self.modern,
            SoftwareStyle::Fsdp => self.fsdp,
            SoftwareStyle::Compiled => self.compiled,
            SoftwareStyle::Xla => self.xla,
            SoftwareStyle::Dtrain => self.dtrain,
        }
    }
}

impl SoftwareProfiles {
    /// Returns the profile of a style for changes.
    pub(crate) fn of_mut(&mut self, style: SoftwareStyle) -> &mut SoftwareProfile {
        match style {
            SoftwareStyle::Research => &mut self.research,
            SoftwareStyle::Megatron => &mut self.megatron,
            SoftwareStyle::Modern => &mut self.modern,
            SoftwareStyle::Fsdp => &mut self.fsdp,
            SoftwareStyle::Compiled => &mut self.compiled,
            SoftwareStyle::Xla => &mut self.xla,
            SoftwareStyle::Dtrain => &mut self.dtrain,
        }
    }
}

impl Software {
    /// Returns an engine with the unchanged profile of its style.
    pub fn of(style: SoftwareStyle, constants: &Constants) -> Self {
        Self { style, profile: constants.profile(style) }
    }

    /// Limits the `rate` of a link (bytes/s) to the rate that the engine's transfers reach.
    pub fn reaches(&self, rate: f64) -> f64 {
        self.profile.through_host.map_or(rate, |most| rate.min(most))
    }
}

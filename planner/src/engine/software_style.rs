//! Styles of the software of training engines, with their attention kernel.

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

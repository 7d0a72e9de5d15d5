//! Styles of the software of training engines, and the attention kernel of each.

/// Styles of engine software whose costs are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftwareStyle {
    /// Style of Megatron-DeepSpeed, GPT-NeoX and research code built on them.
    Research,
    /// Style of Megatron-LM of 2019 to 2022.
    Megatron,
    /// Style of Megatron-Core, NeMo and Megatron-Bridge, with Transformer Engine.
    Modern,
    /// Style of PyTorch FSDP and DeepSpeed ZeRO, not compiled.
    Fsdp,
    /// Style of models of Hugging Face transformers, not compiled, under its Trainer with FSDP or DeepSpeed.
    HuggingFace,
    /// Style of dtrain's program for PyTorch FSDP2, which runs such models.
    FullyShard,
    /// Style of `torch.compile`, as in torchtitan.
    Compiled,
    /// Style of JAX with XLA.
    Xla,
    /// Style of dtrain's own worker on GPUs, whose costs are not measured.
    Dtrain,
}

impl SoftwareStyle {
    /// Returns the name of the style in data files and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Research => "research",
            Self::Megatron => "megatron",
            Self::Modern => "modern",
            Self::Fsdp => "fsdp",
            Self::HuggingFace => "hugging_face",
            Self::FullyShard => "fully_shard",
            Self::Compiled => "compiled",
            Self::Xla => "xla",
            Self::Dtrain => "dtrain",
        }
    }

    /// Returns `true` if the cost constants of the style were checked against measured runs of its engines.
    pub fn is_measured(self) -> bool {
        !matches!(self, Self::Dtrain | Self::FullyShard)
    }

    /// Returns the attention kernel that engines of this style use on a part. PyTorch has a fused kernel for
    /// parts without FlashAttention 2; the others then write scores to memory.
    pub fn kernel_on(self, has_flash: bool) -> AttentionKernel {
        match self.kernel() {
            AttentionKernel::Flash2 if !has_flash => AttentionKernel::Flash1,
            AttentionKernel::Fused if !has_flash => AttentionKernel::Unfused,
            kernel => kernel,
        }
    }

    /// Returns the attention kernel that engines of this style use by default.
    pub fn kernel(self) -> AttentionKernel {
        match self {
            Self::Research | Self::Dtrain => AttentionKernel::Plain,
            Self::Megatron => AttentionKernel::Unfused,
            Self::Modern => AttentionKernel::Fused,
            Self::Fsdp | Self::HuggingFace | Self::FullyShard | Self::Compiled | Self::Xla => {
                AttentionKernel::Flash2
            }
        }
    }
}

/// Implementation of the core of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionKernel {
    /// Separate matrix products, and separate element-wise operations.
    Plain,
    /// Separate matrix products, with the mask and the softmax in one kernel.
    Unfused,
    /// FlashAttention 1.
    Flash1,
    /// FlashAttention 2.
    Flash2,
    /// FlashAttention 3, or the fused attention of cuDNN or Transformer Engine.
    Fused,
}

impl AttentionKernel {
    /// Returns `true` if the kernel never writes attention scores to memory.
    pub fn is_fused(self) -> bool {
        !matches!(self, Self::Plain | Self::Unfused)
    }
}

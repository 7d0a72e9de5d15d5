//! The part of a layer that the backward recomputes, and the meaning of selective recomputation in each
//! style of software.

use super::SoftwareStyle;

/// Part of a layer that the backward recomputes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recomputation {
    /// Nothing.
    Nothing,
    /// The core of attention: scores and weighted values.
    Attention,
    /// Every second matrix product, and all element-wise operations.
    EverySecondProduct,
    /// The whole layer.
    All,
}

impl SoftwareStyle {
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

//! The part of a layer that the backward recomputes, and the meaning of selective recomputation in each style
//! of software.

use super::SoftwareStyle;

/// Part of a layer that the backward recomputes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recomputation {
    /// The backward recomputes nothing.
    Nothing,
    /// The backward recomputes the core of attention: scores and weighted values.
    Attention,
    /// The backward recomputes every second matrix product, and all element-wise operations.
    EverySecondProduct,
    /// The backward recomputes the whole layer.
    All,
}

impl SoftwareStyle {
    /// Returns the part that selective recomputation recomputes in this style: the core of attention in
    /// Megatron, every second matrix product in PyTorch.
    pub fn selective(self) -> Recomputation {
        match self {
            Self::Research | Self::Megatron | Self::Modern | Self::Xla | Self::Dtrain => {
                Recomputation::Attention
            }
            Self::Fsdp | Self::HuggingFace | Self::FullyShard | Self::Compiled => {
                Recomputation::EverySecondProduct
            }
        }
    }
}

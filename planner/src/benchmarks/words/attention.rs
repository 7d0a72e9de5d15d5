//! The attention kernel, from the cell `attention`.

use super::{is_blank, unknown_word, words};
use crate::benchmarks::table::has_any;
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::normalized_gpu_name;

/// Properties of a row that decide a kernel beside the cell that names it.
#[derive(Clone, Copy, Debug)]
pub(in crate::benchmarks) struct AttentionContext {
    /// Software style of the engine, as far as it is known.
    pub(in crate::benchmarks) style: Option<SoftwareStyle>,
    /// True if the engine is llm-foundry or Composer, which has the first FlashAttention.
    pub(in crate::benchmarks) is_composer: bool,
    /// True if the row names Transformer Engine beside its precision.
    pub(in crate::benchmarks) has_transformer_engine: bool,
}

/// Returns the attention kernel that `cell` names; `None` if it states nothing.
pub(in crate::benchmarks) fn kernel(
    cell: &str,
    context: AttentionContext,
) -> Result<Option<AttentionKernel>, String> {
    let name = normalized_gpu_name(cell);
    let flash = if context.is_composer { AttentionKernel::Flash1 } else { AttentionKernel::Flash2 };
    // With Transformer Engine, programs in JAX have the kernel of their style; otherwise XLA fuses none.
    let with_engine = context.style.filter(|style| *style == SoftwareStyle::Xla);
    match () {
        () if is_blank(cell) && context.has_transformer_engine => Ok(with_engine.map(SoftwareStyle::kernel)),
        () if is_blank(cell) => Ok(None),
        () if name.contains("unfused") => Ok(Some(AttentionKernel::Unfused)),
        () if has_any(&name, &["eager", "naive", "math", "plain"]) => Ok(Some(AttentionKernel::Plain)),
        () if name.contains("sdpa") => Ok(Some(flash)),
        () if has_any(&name, FUSED) || words(cell).iter().any(|word| word == "te") => {
            Ok(Some(AttentionKernel::Fused))
        }
        () if has_any(&name, &["flash1", "flashattention1", "flashattn1", "fa1"]) => {
            Ok(Some(AttentionKernel::Flash1))
        }
        () if has_any(&name, &["flash2", "flashattention2", "flashattn2", "fa2"]) => {
            Ok(Some(AttentionKernel::Flash2))
        }
        () if has_any(&name, &["flash", "xformers", "memoryefficient", "splash"]) => Ok(Some(flash)),
        () => {
            let known = "unfused, plain, eager, sdpa, flash, flash1, flash2, fa3, fused, cudnn, te";
            Err(unknown_word("attention", cell, known))
        }
    }
}

/// Names of the third FlashAttention, and of the fused kernels of cuDNN and Transformer Engine.
const FUSED: &[&str] =
    &["cudnn", "fused", "fa3", "flash3", "flashattention3", "flashattn3", "transformerengine"];

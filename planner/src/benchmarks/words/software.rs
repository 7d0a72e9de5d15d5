//! Recognizes the software style of an engine by its name.

use crate::benchmarks::table::{has_any, has_word};
use crate::engine::SoftwareStyle;
use crate::hardware::normalized_gpu_name;

/// Names, or parts of them, of research engines.
const RESEARCH: &[&str] = &[
    "megatrondeepspeed",
    "sailor",
    "neox",
    "varuna",
    "piper",
    "metis",
    "galvatron",
    "vtrain",
    "aceso",
    "nnscaler",
    "bpipe",
];
const MODERN: &[&str] = &["nemo", "bridge", "megatroncore", "mcore", "megascale", "transformerengine"];
const YEARS: &[&str] = &["2019", "2020", "2021", "2022"];
const XLA: &[&str] = &["jax", "pax", "xla", "maxtext", "axlearn", "t5x", "levanter", "alpa", "easylm"];
const COMPILED: &[&str] = &["torchtitan", "compile"];
const HUGGING_FACE: &[&str] =
    &["hugging", "accelerate", "transformers", "llamafactory", "trl", "peft", "nanotron"];
const FSDP: &[&str] = &[
    "fsdp",
    "composer",
    "foundry",
    "deepspeed",
    "zero",
    "olmo",
    "mosaic",
    "litgpt",
    "lightning",
    "colossal",
    "torch",
];

/// Returns the software style of the engine `framework`, in a row with the given `notes`; `None` if the name
/// is unknown.
pub(in crate::benchmarks) fn style(framework: &str, notes: &str) -> Option<SoftwareStyle> {
    let name = normalized_gpu_name(framework);
    let is_megatron = name.contains("megatron");
    let is_compiled = name.contains("compile") || notes.to_lowercase().contains("compile");
    match () {
        () if has_any(&name, RESEARCH) || has_word(&framework.to_lowercase(), "amp") => {
            Some(SoftwareStyle::Research)
        }
        // NeMo AutoModel trains models of transformers.
        () if name.contains("automodel") => {
            Some(if is_compiled { SoftwareStyle::Compiled } else { SoftwareStyle::HuggingFace })
        }
        () if has_any(&name, MODERN) => Some(SoftwareStyle::Modern),
        () if name.contains("megatronlm") && has_any(&name, YEARS) => Some(SoftwareStyle::Megatron),
        () if is_megatron => Some(SoftwareStyle::Modern),
        () if has_any(&name, XLA) => Some(SoftwareStyle::Xla),
        // torchtitan compiles only on request.
        () if name.contains("torchtitan") && !is_compiled => Some(SoftwareStyle::Fsdp),
        () if has_any(&name, COMPILED) => Some(SoftwareStyle::Compiled),
        () if has_any(&name, HUGGING_FACE) => Some(SoftwareStyle::HuggingFace),
        () if has_any(&name, FSDP) => Some(SoftwareStyle::Fsdp),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_style_of_its_time() {
        assert_eq!(style("Megatron-LM 2021", ""), Some(SoftwareStyle::Megatron));
        assert_eq!(style("Megatron-LM core_r0.8", ""), Some(SoftwareStyle::Modern));
        assert_eq!(style("Megatron-DeepSpeed", ""), Some(SoftwareStyle::Research));
        assert_eq!(style("NeMo 24.07", ""), Some(SoftwareStyle::Modern));
        assert_eq!(style("torchtitan", "FSDP2, torch.compile"), Some(SoftwareStyle::Compiled));
        assert_eq!(style("torchtitan", "eager"), Some(SoftwareStyle::Fsdp));
        assert_eq!(style("DeepSpeed ZeRO-3", ""), Some(SoftwareStyle::Fsdp));
        assert_eq!(style("AMP (NeurIPS 2022)", ""), Some(SoftwareStyle::Research));
        assert_eq!(style("MaxText", ""), Some(SoftwareStyle::Xla));
        assert_eq!(style("frobnicate", ""), None);
    }
}

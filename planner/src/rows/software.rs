//! The style of an engine from its name.

use super::cells::{has_any, has_word};
use crate::analytic::Style;
use crate::analytic::hardware::squashed;

/// Engines of the style of research, by a part of the name.
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
    "hugging",
    "accelerate",
    "nanotron",
    "colossal",
    "torch",
];

/// The style of the engine called `framework`, in a row with these `notes`; `None` where the name says nothing.
pub fn style(framework: &str, notes: &str) -> Option<Style> {
    let name = squashed(framework);
    let is_megatron = name.contains("megatron");
    match () {
        () if has_any(&name, RESEARCH) || has_word(&framework.to_lowercase(), "amp") => Some(Style::Research),
        () if has_any(&name, MODERN) => Some(Style::Modern),
        () if name.contains("megatronlm") && has_any(&name, YEARS) => Some(Style::Megatron),
        () if is_megatron => Some(Style::Modern),
        () if has_any(&name, XLA) => Some(Style::Xla),
        // torchtitan compiles only where it is told to.
        () if name.contains("torchtitan") && !notes.to_lowercase().contains("compile") => Some(Style::Fsdp),
        () if has_any(&name, COMPILED) => Some(Style::Compiled),
        () if has_any(&name, FSDP) => Some(Style::Fsdp),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_style_of_its_time() {
        assert_eq!(style("Megatron-LM 2021", ""), Some(Style::Megatron));
        assert_eq!(style("Megatron-LM core_r0.8", ""), Some(Style::Modern));
        assert_eq!(style("Megatron-DeepSpeed", ""), Some(Style::Research));
        assert_eq!(style("NeMo 24.07", ""), Some(Style::Modern));
        assert_eq!(style("torchtitan", "FSDP2, torch.compile"), Some(Style::Compiled));
        assert_eq!(style("torchtitan", "eager"), Some(Style::Fsdp));
        assert_eq!(style("DeepSpeed ZeRO-3", ""), Some(Style::Fsdp));
        assert_eq!(style("AMP (NeurIPS 2022)", ""), Some(Style::Research));
        assert_eq!(style("MaxText", ""), Some(Style::Xla));
        assert_eq!(style("frobnicate", ""), None);
    }
}

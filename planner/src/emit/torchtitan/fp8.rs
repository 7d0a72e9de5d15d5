//! fp8 in torchtitan: converters that replace linear layers and experts before the model is built.
//!
//! torchtitan 0.3.0 scales per row (`Float8LinearConverter`, whose `recipe_name` is no longer "tensorwise")
//! or per 32 values (`MXFP8LinearConverter`). With both, weights are gathered in bf16.

use super::{DecoderPlan, has_split_backward};
use dtrain_recipes::{Fp8Recipe, Precision};

fn recipe(source: &DecoderPlan) -> Option<Fp8Recipe> {
    let is_fp8 = source.arrangement.precision == Precision::Fp8;
    is_fp8.then(|| source.train().fp8_recipe.unwrap_or_default())
}

/// Returns the notes about fp8 converters.
pub(super) fn notes(source: &DecoderPlan) -> Vec<String> {
    let Some(scales) = recipe(source) else { return Vec::new() };
    let mut notes = vec!["fp8 needs the package torchao".into()];
    if scales == Fp8Recipe::Blockwise {
        notes.push("fp8 has a scale for each row of an operand, not for each block of 128".into());
    }
    if !is_compiled(source) {
        notes.push("blocks are not compiled, so that values are cast to fp8 in kernels of their own".into());
    }
    notes
}

/// Returns `true` if `torch.compile` compiles each block, which fuses the casts to fp8. torchtitan compiles
/// neither its own fp8 mixtures of experts nor a zero-bubble backward.
fn is_compiled(source: &DecoderPlan) -> bool {
    source.model.experts.is_none() && !has_split_backward(source)
}

/// Returns the import lines of the converters, in the order of modules between `components.optimizer` and
/// `config`.
pub(super) fn imports(source: &DecoderPlan) -> String {
    let Some(scales) = recipe(source) else { return String::new() };
    let scales = prefix(scales);
    let experts = if source.model.experts.is_some() {
        format!("{scales}GroupedExpertsConverter, ")
    } else {
        String::new()
    };
    format!("from torchtitan.components.quantization import {experts}{scales}LinearConverter\n")
}

/// Returns the name `CompileConfig`, to be imported first from `torchtitan.config`; empty if nothing is
/// compiled.
pub(super) fn compile_import(source: &DecoderPlan) -> &'static str {
    if recipe(source).is_some() && is_compiled(source) { "CompileConfig, " } else { "" }
}

/// Returns the argument `compile` of `Trainer.Config`; empty if nothing is compiled.
pub(super) fn compile(source: &DecoderPlan) -> &'static str {
    if recipe(source).is_some() && is_compiled(source) {
        "        compile=CompileConfig(enable=True, components=[\"model\"]),\n"
    } else {
        ""
    }
}

fn prefix(scales: Fp8Recipe) -> &'static str {
    if scales == Fp8Recipe::Mxfp8 { "MXFP8" } else { "Float8" }
}

/// Returns the Python loop that converts the model of `SPEC` to fp8; the output head and routers stay in
/// bf16.
pub(super) fn convert(source: &DecoderPlan) -> String {
    let Some(scales) = recipe(source) else { return String::new() };
    let compiled = if is_compiled(source) { "True" } else { "False" };
    let (linear, experts) = if scales == Fp8Recipe::Mxfp8 {
        // Its kernel on Blackwell needs multiples of 128.
        ("fqns=[\"attention\", \"feed_forward\"]", "pad_multiple=128, ")
    } else {
        ("recipe_name=\"rowwise\", filter_fqns=[\"lm_head\", \"router.gate\"]", "")
    };
    let name = prefix(scales);
    let mut converters =
        format!("    {name}LinearConverter.Config({linear}, model_compile_enabled={compiled}),\n");
    if source.model.experts.is_some() {
        converters += &format!(
            "    {name}GroupedExpertsConverter.Config({experts}model_compile_enabled={compiled}),\n"
        );
    }
    format!("\nfor converter in [\n{converters}]:\n    SPEC.model = converter.build().convert(SPEC.model)\n")
}

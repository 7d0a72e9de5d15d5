//! The number format of matrix products, from the cell `precision`.

use super::{is_blank, unknown_word, words};
use crate::analytic::MatmulPrecision;

/// Returns the format of the products that `cell` names; `None` if it states nothing. The first word that
/// names a format decides; what stands in parentheses, or further to the right, describes other things, such
/// as the sum of gradients.
pub(in crate::benchmarks) fn products(cell: &str) -> Result<Option<MatmulPrecision>, String> {
    if is_blank(cell) {
        return Ok(None);
    }
    let all = words(cell);
    let named = words(&without_parentheses(cell)).iter().find_map(|word| format(word));
    let named = named.or_else(|| all.iter().find_map(|word| format(word)));
    let is_mixed = all.iter().any(|word| matches!(word.as_str(), "mixed" | "amp"));
    match named {
        Some(MatmulPrecision::Bits8) => Ok(Some(scaled(&all))),
        Some(named) => Ok(Some(named)),
        // Mixed precision without a format is older than fp8.
        None if is_mixed => Ok(Some(MatmulPrecision::Bits16)),
        None => Err(unknown_word("precision", cell, "fp32, tf32, bf16, fp16, fp8, fp8 block, fp4")),
    }
}

/// Returns the format that `word` names; fp8 stands for any scaling.
fn format(word: &str) -> Option<MatmulPrecision> {
    match word {
        "fp32" | "float32" | "f32" | "tf32" | "single" => Some(MatmulPrecision::Bits32),
        "bf16" | "bfloat16" | "fp16" | "float16" | "f16" | "half" => Some(MatmulPrecision::Bits16),
        "mxfp4" | "nvfp4" => Some(MatmulPrecision::Blocks4),
        "mxfp8" | "nvfp8" | "e4m3" | "e5m2" => Some(MatmulPrecision::Bits8),
        // With or without a suffix, as in `fp8mx`.
        _ if word.starts_with("fp8") || word.starts_with("float8") => Some(MatmulPrecision::Bits8),
        _ if word.starts_with("fp4") || word.starts_with("float4") => Some(MatmulPrecision::Blocks4),
        // Any other word.
        _ => None,
    }
}

/// Returns fp8 with the scaling that the words of a cell name: by tensor unless they name blocks alone, since
/// it is older and more common.
fn scaled(words: &[String]) -> MatmulPrecision {
    let has = |parts: &[&str]| words.iter().any(|word| parts.iter().any(|part| word.contains(part)));
    let by_tensor = has(&["tensor", "delayed", "current"]) || words.iter().any(|word| word == "cs");
    if has(&["mx", "block", "nv"]) && !by_tensor { MatmulPrecision::Blocks8 } else { MatmulPrecision::Bits8 }
}

/// Returns `cell` without what stands in parentheses.
fn without_parentheses(cell: &str) -> String {
    let mut depth = 0_u32;
    let mut outside = String::new();
    for c in cell.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => outside.push(c),
            // A character in parentheses.
            _ => {}
        }
        if depth > 0 && !outside.ends_with(' ') {
            outside.push(' ');
        }
    }
    outside
}

//! Reads what free-text cells of a row say: number formats, kernels, schedules and engines in the words of
//! papers and projects, and properties that follow from the name of a model.
//!
//! The only module of `benchmarks` that interprets words. Typed columns, where a row has them, are read by
//! [`cells`](super::cells) instead.

mod attention;
mod families;
mod precision;
mod sharding;
mod software;

pub(super) use attention::{AttentionContext, kernel};
pub(super) use families::{ModelFamily, family};
pub(super) use precision::products;
pub(super) use sharding::{ShardGroup, shard_group, stage};
pub(super) use software::style;

use super::table::{TableRow, has_any, has_word};
use crate::hardware::normalized_gpu_name;
use dtrain_recipes::{PipelineSchedule, Recompute};

/// Cells that state nothing.
const BLANK: [&str; 11] = [
    "",
    "-",
    "?",
    "n/a",
    "na",
    "not stated",
    "none stated",
    "not given",
    "unknown",
    "unspecified",
    "not specified",
];

/// Returns `true` if `cell` states nothing.
pub(super) fn is_blank(cell: &str) -> bool {
    BLANK.contains(&cell.trim().to_lowercase().as_str())
}

/// Returns the error for a cell that contains no known word.
pub(super) fn unknown_word(column: &str, cell: &str, known: &str) -> String {
    format!("`{column}` is `{cell}`: wanted one of {known}, or leave it blank")
}

/// Returns the words of `text` in lower case: its runs of letters and digits.
fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

/// Returns the pipeline schedule that a row names. Several chunks per stage mean interleaving, whatever its
/// name.
pub(super) fn schedule(row: &TableRow) -> Result<Option<PipelineSchedule>, String> {
    let cell = row.text("schedule");
    let name = normalized_gpu_name(cell);
    let has_chunks = row.positive("vp").is_some_and(|chunks| chunks > 1.0);
    match () {
        () if is_blank(cell) => Ok(None),
        () if name.contains("interleaved") => Ok(Some(PipelineSchedule::Interleaved)),
        () if has_any(&name, &["zerobubble", "zbh", "zbv", "dualpipe"]) => {
            Ok(Some(if has_chunks { PipelineSchedule::Interleaved } else { PipelineSchedule::ZeroBubble }))
        }
        () if name.contains("gpipe") && !has_chunks => Ok(Some(PipelineSchedule::Gpipe)),
        () if has_any(&name, &["1f1b", "gpipe"]) => Ok(Some(if has_chunks {
            PipelineSchedule::Interleaved
        } else {
            PipelineSchedule::OneForwardOneBackward
        })),
        () => {
            Err(unknown_word("schedule", cell, "1f1b, interleaved, gpipe, zero-bubble, zbh, zbv, dualpipe"))
        }
    }
}

/// Returns the recompute mode that a row names by the first word of the cell.
pub(super) fn recompute(row: &TableRow) -> Result<Option<Recompute>, String> {
    let cell = row.text("recompute");
    if is_blank(cell) {
        return Ok(None);
    }
    match words(cell).first().map_or("", String::as_str) {
        "full" => Ok(Some(Recompute::Full)),
        "none" | "no" | "off" => Ok(Some(Recompute::None)),
        "selective" => Ok(Some(Recompute::Selective)),
        // Any other first word.
        _ => Err(unknown_word("recompute", cell, "none, selective, selective-op, full")),
    }
}

/// Returns `true` if the row is one of vTrain's, which may recompute and does so only where memory demands it.
pub(super) fn is_profile(row: &TableRow) -> bool {
    row.lower("source").contains("vtrain")
}

/// Returns `true` if the framework is llm-foundry or Composer.
pub(super) fn is_composer(row: &TableRow) -> bool {
    has_any(&row.lower("framework"), &["foundry", "composer"])
}

/// Returns `true` if the framework reduces gradients in 16 bits whatever its style does.
pub(super) fn has_short_gradients(row: &TableRow) -> bool {
    has_any(&row.lower("framework"), &["nemo", "bridge"])
}

/// Returns `true` if framework or notes say that tensor-parallel communication is asynchronous.
pub(super) fn is_tensor_async(row: &TableRow) -> bool {
    let said = format!("{} {}", row.text("framework"), row.text("notes"));
    normalized_gpu_name(&said).contains("asynctp")
}

/// Returns `true` if `precision` names Transformer Engine.
pub(super) fn names_transformer_engine(row: &TableRow) -> bool {
    has_word(&row.lower("precision"), "te")
}

/// Returns the number of devices that a part's fast links join at least, by its name: one NVLink domain spans
/// a rack, and the links of a TPU span a slice.
pub(super) fn link_domain(hardware: &str) -> Option<f64> {
    let name = normalized_gpu_name(hardware);
    match () {
        () if has_any(&name, &["gb200", "gb300", "nvl72"]) => Some(72.0),
        () if name.contains("tpu") => Some(256.0),
        () => None,
    }
}

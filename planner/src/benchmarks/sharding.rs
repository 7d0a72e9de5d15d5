//! The ZeRO stage of a row of a table, and its sharding groups.

use super::table::{TableRow, has_any};
use crate::engine::SoftwareStyle;
use dtrain_recipes::ZeroStage;

/// Parses the number of the ZeRO stage with which the cell of a row begins, as in `3 (hsdp)`; FSDP is 3.
pub(super) fn stage(row: &TableRow) -> Option<f64> {
    let cell = row.lower("zero");
    let word = cell.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').next().unwrap_or_default();
    let stage = word.strip_prefix("zero").unwrap_or(word).parse().ok();
    stage.or_else(|| has_any(&cell, &["fsdp", "hsdp", "hybrid"]).then_some(3.0))
}

/// Returns the ZeRO stage of a row: as stated, or the default of the engine's style.
pub(super) fn zero(row: &TableRow, style: SoftwareStyle) -> ZeroStage {
    let usual = match style {
        SoftwareStyle::Research | SoftwareStyle::Megatron => 0.0,
        SoftwareStyle::Modern => 1.0,
        SoftwareStyle::Fsdp
        | SoftwareStyle::FullyShard
        | SoftwareStyle::Compiled
        | SoftwareStyle::Xla
        | SoftwareStyle::Dtrain => 3.0,
    };
    match stage(row).unwrap_or(usual) {
        stage if stage >= 3.0 => ZeroStage::Zero3,
        stage if stage >= 2.0 => ZeroStage::Zero2,
        stage if stage >= 1.0 => ZeroStage::Zero1,
        _ => ZeroStage::Zero0,
    }
}

/// Returns the number of replicas among which state is sharded under hybrid sharding: as stated, such as
/// `replicate 4, shard 8` or `4x8`, otherwise the `on_a_host` replicas of a host. `None` without hybrid
/// sharding.
pub(super) fn shard(row: &TableRow, on_a_host: u32, replicas: u32) -> Option<u32> {
    let said = format!("{} {} {}", row.lower("zero"), row.lower("framework"), row.lower("notes"));
    if !has_any(&said, &["hsdp", "hybrid", "replicate"]) {
        return None;
    }
    let words: Vec<&str> =
        said.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let after = |name: &str| {
        let at =
            words.iter().position(|word| word.strip_suffix('d').unwrap_or(word) == name || *word == name)?;
        words.get(at + 1)?.parse::<u32>().ok()
    };
    let product = || {
        let (copies, shard) = words.iter().find_map(|word| word.split_once('x'))?;
        let (copies, shard): (u32, u32) = (copies.parse().ok()?, shard.parse().ok()?);
        (copies.checked_mul(shard) == Some(replicas)).then_some(shard)
    };
    let shard = after("shard").or_else(|| Some(replicas / after("replicate")?.max(1))).or_else(product);
    Some(shard.unwrap_or(on_a_host)).filter(|shard| *shard > 0 && replicas.is_multiple_of(*shard))
}

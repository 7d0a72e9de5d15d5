//! The ZeRO stage and the group that shards state, from the cells `zero`, `framework` and `notes`.

use super::{is_blank, unknown_word, words};
use crate::benchmarks::table::{TableRow, has_any};
use dtrain_recipes::ZeroStage;

/// Group of replicas that shards state under hybrid sharding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::benchmarks) enum ShardGroup {
    /// The replicas of a host.
    Host,
    /// This many replicas.
    Ranks(u32),
    /// As many replicas as remain with this many copies of the state.
    Copies(u32),
    /// This many copies times this many replicas, where their product is the number of replicas.
    Grid(u32, u32),
}

/// Returns the ZeRO stage of a row by the number with which its cell begins, as in `3 (hsdp)`; FSDP is 3.
pub(in crate::benchmarks) fn stage(row: &TableRow) -> Result<Option<ZeroStage>, String> {
    let cell = row.lower("zero");
    if is_blank(&cell) {
        return Ok(None);
    }
    let mut words =
        cell.split(|c: char| !c.is_ascii_alphanumeric() && c != '.').filter(|word| !word.is_empty());
    let first = words.find(|word| !matches!(*word, "zero" | "stage")).unwrap_or_default();
    let number = cell.parse().or_else(|_| first.strip_prefix("zero").unwrap_or(first).parse::<f64>());
    match number {
        Ok(0.0) => Ok(Some(ZeroStage::Zero0)),
        Ok(1.0) => Ok(Some(ZeroStage::Zero1)),
        Ok(2.0) => Ok(Some(ZeroStage::Zero2)),
        Ok(3.0) => Ok(Some(ZeroStage::Zero3)),
        Ok(stage) => Err(format!("`zero` is {stage}: the stages of ZeRO are 0, 1, 2 and 3")),
        Err(_) if has_any(&cell, &["fsdp", "hsdp", "hybrid"]) => Ok(Some(ZeroStage::Zero3)),
        Err(_) if matches!(first, "none" | "no" | "off" | "ddp") => Ok(Some(ZeroStage::Zero0)),
        Err(_) => Err(unknown_word("zero", row.text("zero"), "0, 1, 2, 3, none, ddp, fsdp, hsdp, hybrid")),
    }
}

/// Returns the group of replicas that shards state: as stated, such as `replicate 4, shard 8` or `4x8`,
/// otherwise a host. `None` without hybrid sharding.
pub(in crate::benchmarks) fn shard_group(row: &TableRow) -> Option<ShardGroup> {
    let said = format!("{} {} {}", row.lower("zero"), row.lower("framework"), row.lower("notes"));
    if !has_any(&said, &["hsdp", "hybrid", "replicate"]) {
        return None;
    }
    let words = words(&said);
    let after = |name: &str| {
        let at =
            words.iter().position(|word| word.strip_suffix('d').unwrap_or(word) == name || word == name)?;
        words.get(at + 1)?.parse::<u32>().ok()
    };
    let grid = || {
        let (copies, ranks) = words.iter().find_map(|word| word.split_once('x'))?;
        Some(ShardGroup::Grid(copies.parse().ok()?, ranks.parse().ok()?))
    };
    let shard = after("shard").map(ShardGroup::Ranks).or_else(|| after("replicate").map(ShardGroup::Copies));
    Some(shard.or_else(grid).unwrap_or(ShardGroup::Host))
}

//! The ZeRO stage of an engine that a row does not state, and the size of sharding groups.

use super::words::ShardGroup;
use crate::engine::SoftwareStyle;
use dtrain_recipes::ZeroStage;

/// Returns the ZeRO stage that engines of this style use by default.
pub(super) fn usual_stage(style: SoftwareStyle) -> ZeroStage {
    match style {
        SoftwareStyle::Research | SoftwareStyle::Megatron => ZeroStage::Zero0,
        SoftwareStyle::Modern => ZeroStage::Zero1,
        SoftwareStyle::Fsdp
        | SoftwareStyle::HuggingFace
        | SoftwareStyle::FullyShard
        | SoftwareStyle::Compiled
        | SoftwareStyle::Xla
        | SoftwareStyle::Dtrain => ZeroStage::Zero3,
    }
}

/// Returns the number of replicas in a group that shards state, of all `replicas` and of those `on_a_host`;
/// `None` if groups of this size do not divide the replicas.
pub(super) fn shard(group: ShardGroup, on_a_host: u32, replicas: u32) -> Option<u32> {
    let size = match group {
        ShardGroup::Ranks(ranks) => ranks,
        ShardGroup::Copies(copies) => replicas / copies.max(1),
        ShardGroup::Grid(copies, ranks) if copies.checked_mul(ranks) == Some(replicas) => ranks,
        ShardGroup::Host | ShardGroup::Grid(..) => on_a_host,
    };
    (size > 0 && replicas.is_multiple_of(size)).then_some(size)
}

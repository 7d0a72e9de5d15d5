//! Spread of communication groups over hosts.
//!
//! Tensor-parallel ranks are adjacent, next come context-parallel ranks, then replicas and stages in the
//! order of [`RankOrder`]. Hosts are filled one after the other.

use super::{GroupTopology, StepInputs};
use dtrain_protocol::RankOrder;

/// Returns the distance between neighboring pipeline stages, in ranks.
fn stage_stride(case: &StepInputs<'_>) -> f64 {
    let config = &case.config;
    match config.arrangement.order {
        RankOrder::PipelineOutermost => config.tensor() * config.context() * config.data(),
        RankOrder::DataOutermost => config.tensor() * config.context(),
    }
}

/// Returns the spread over hosts of a tensor-parallel group.
pub fn tensor_group(case: &StepInputs<'_>) -> GroupTopology {
    case.links.group(case.config.tensor(), 1.0)
}

/// Returns the spread over hosts of a context-parallel group.
pub fn context_group(case: &StepInputs<'_>) -> GroupTopology {
    case.links.group(case.config.context(), case.config.tensor())
}

/// Returns the spread over hosts of an expert-parallel group.
pub fn expert_group(case: &StepInputs<'_>) -> GroupTopology {
    let config = &case.config;
    let is_folded = config.arrangement.expert_fold > 1;
    case.links.group(config.expert(), if is_folded { 1.0 } else { config.tensor() * config.context() })
}

/// Returns the spread over hosts of the replicas among which state is sharded: adjacent ones of those with
/// the same weights.
pub fn shard_group(case: &StepInputs<'_>) -> GroupTopology {
    replica_subgroup(case, case.config.shard())
}

/// Returns the spread over hosts of all ranks that hold the same weights, experts aside.
pub fn replica_group(case: &StepInputs<'_>) -> GroupTopology {
    replica_subgroup(case, case.config.replicas())
}

/// Returns the spread over hosts of the replicas that hold the same shard.
pub fn cross_shard_group(case: &StepInputs<'_>) -> GroupTopology {
    let config = &case.config;
    let copies = config.replicas() / config.shard();
    case.links.group(copies, (config.tensor() * config.shard()).min(case.links.per_host))
}

/// Returns the spread over hosts of the first `count` ranks that hold the same weights.
fn replica_subgroup(case: &StepInputs<'_>, count: f64) -> GroupTopology {
    let config = &case.config;
    let near = case.links.group(count, config.tensor());
    if config.arrangement.order == RankOrder::PipelineOutermost || count <= config.context() {
        return near;
    }
    // Context-parallel ranks are adjacent; replicas of them are a pipeline apart.
    let parts = case.links.group(config.context(), config.tensor());
    let pipelines = case.links.group(count / config.context(), stage_stride(case) * config.pipeline());
    let inside = if parts.spans_hosts() { parts.inside } else { parts.inside * pipelines.inside };
    GroupTopology { inside, outside: count / inside, link: case.links.link, class: case.links.class }
}

/// Returns the spread over hosts of the first `count` ranks that hold the same experts.
pub fn expert_replica_group(case: &StepInputs<'_>, count: f64) -> GroupTopology {
    let config = &case.config;
    let is_folded = config.arrangement.expert_fold > 1;
    let apart =
        if is_folded { config.expert() } else { config.tensor() * config.context() * config.expert() };
    case.links.group(count, apart)
}

/// Returns `true` if messages between stages leave the host.
pub fn stages_span_hosts(case: &StepInputs<'_>) -> bool {
    stage_stride(case) * case.config.pipeline() > case.links.per_host
}

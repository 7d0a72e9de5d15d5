//! Seconds to reduce gradients among replicas, and to gather sharded weights.

use super::collective::{all_reduce, gather_or_scatter};
use super::local_parameters::LocalParameters;
use super::{GroupTopology, StepInputs, topology};
use dtrain_recipes::{Compression, ZeroStage};

/// Bytes of a weight of f32, which replicas exchange when they synchronize at intervals.
const WEIGHT_BYTES: f64 = 4.0;

/// Returns the bytes of a gradient that replicas exchange when they synchronize.
fn gradient_bytes(case: &StepInputs<'_>) -> f64 {
    let (sync, usual) = (&case.config.arrangement.sync, case.engine.profile.gradient_bytes);
    let usual = if sync.local.is_some() { WEIGHT_BYTES } else { usual };
    match sync.compress {
        Compression::None => usual,
        Compression::F16 | Compression::Bf16 => usual.min(2.0),
        // Factors of `rank` columns and rows for a matrix of hidden × ffn.
        Compression::PowerSgd { rank } => {
            let (h, f) = (case.model.hidden, case.model.ffn);
            usual.min(WEIGHT_BYTES * f64::from(rank) * (h + f) / (h * f))
        }
        // An all-gather of value and index from each replica, where an all-reduce sends each value twice.
        Compression::TopK { keep } => usual.min(0.5 * 2.0 * WEIGHT_BYTES * keep * case.config.replicas()),
    }
}

/// Returns the bytes of a weight that is gathered: of a frozen one as it is stored.
pub(super) fn gathered_bytes(case: &StepInputs<'_>) -> f64 {
    let wire = case.engine.profile.wire_bytes;
    case.model.adapters.map_or(wire, |adapters| case.frozen_bytes(adapters.frozen).min(wire))
}

/// Communication groups of the replicas of one kind of weights: experts, or all others.
pub(super) struct ReplicaGroups {
    /// All ranks that hold the same weights.
    all: GroupTopology,
    /// Ranks among which gradients and optimizer state are sharded.
    shard: GroupTopology,
    /// Ranks that hold the same shard.
    across: GroupTopology,
}

impl ReplicaGroups {
    pub(super) fn dense(case: &StepInputs<'_>) -> Self {
        Self {
            all: topology::replica_group(case),
            shard: topology::shard_group(case),
            across: topology::cross_shard_group(case),
        }
    }

    pub(super) fn experts(case: &StepInputs<'_>) -> Self {
        let config = &case.config;
        let (all, shard) = (config.expert_replicas(), config.expert_shard());
        Self {
            all: topology::expert_replica_group(case, all),
            shard: topology::expert_replica_group(case, shard),
            across: GroupTopology {
                inside: 1.0,
                outside: all / shard,
                link: case.links.link,
                class: case.links.class,
            },
        }
    }

    /// Returns the seconds to gather `parameters` weights from their shards.
    pub(super) fn gather(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        gather_or_scatter(gathered_bytes(case) * parameters, self.shard, &case.links)
    }

    /// Returns the seconds to reduce the gradients of `parameters` weights, scattered to their shards.
    pub(super) fn reduce(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        let bytes = gradient_bytes(case) * case.trained_share() * parameters;
        if case.config.arrangement.zero == ZeroStage::Zero0 {
            return all_reduce(bytes, self.all, &case.links);
        }
        self.scatter(parameters, case) + self.between_copies(parameters, case)
    }

    /// Returns the seconds to reduce the gradients of `parameters` weights within a shard group, scattered to
    /// their shards.
    pub(super) fn scatter(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        gather_or_scatter(gradient_bytes(case) * case.trained_share() * parameters, self.shard, &case.links)
    }

    /// Returns the seconds to all-reduce the gradients of one shard of `parameters` among the ranks that hold
    /// it.
    pub(super) fn between_copies(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        let bytes = gradient_bytes(case) * case.trained_share() * parameters / self.shard.size();
        all_reduce(bytes, self.across, &case.links)
    }
}

/// Returns the seconds to reduce the gradients of the parameters `held` by one rank.
pub(super) fn reduce(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let experts =
        if held.experts > 0.0 { ReplicaGroups::experts(case).reduce(held.experts, case) } else { 0.0 };
    ReplicaGroups::dense(case).reduce(held.dense, case) + experts
}

/// Returns the seconds to reduce the gradients of the parameters `held` by one rank within its shard groups,
/// scattered to their shards.
pub(super) fn scatter(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let experts =
        if held.experts > 0.0 { ReplicaGroups::experts(case).scatter(held.experts, case) } else { 0.0 };
    ReplicaGroups::dense(case).scatter(held.dense, case) + experts
}

/// Returns the seconds to gather the weights of the parameters `held` by one rank.
pub(super) fn gather(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let experts =
        if held.experts > 0.0 { ReplicaGroups::experts(case).gather(held.experts, case) } else { 0.0 };
    ReplicaGroups::dense(case).gather(held.dense, case) + experts
}

//! Overlap of communication with computing: the exposed part, for which a step waits.

use super::gradient_sync::{ReplicaGroups, gather, gathered_bytes, reduce, scatter};
use super::local_parameters::LocalParameters;
use super::matmul::ForwardBackward;
use super::topology;
use super::{GroupTopology, LayerTimes, StepInputs};
use crate::hardware::LinkClass;
use dtrain_recipes::ZeroStage;

/// Returns the share of communication within `group` that is exposed if the engine hides the share `hidden`
/// over NVLink. Overlap in pieces of a product needs links as fast: nothing is hidden over PCIe or between
/// hosts.
pub(super) fn exposed(group: GroupTopology, hidden: f64) -> f64 {
    let is_nvlink = matches!(group.class, LinkClass::NvSwitch | LinkClass::Bridge);
    if group.spans_hosts() || !is_nvlink { 1.0 } else { 1.0 - hidden }
}

/// Returns the share of computation that data-parallel communication hides behind.
fn hidden_data(case: &StepInputs<'_>) -> f64 {
    let group = topology::replica_group(case);
    let share = if group.inside > 1.0 { group.class.overlap_share() } else { 1.0 };
    case.engine.profile.hidden_data * share
}

/// Returns the exposed seconds, per layer and micro-batch, of gathering weights twice and scattering
/// gradients (ZeRO-3).
pub(super) fn exposed_gathering(case: &StepInputs<'_>, layer: &LayerTimes) -> f64 {
    let held = LocalParameters::of_layer(case);
    let (hidden, passes) = (hidden_data(case), layer.passes());
    let hooks = ForwardBackward { forward: 1.0, backward: 2.0 } * case.engine.profile.gather_host;
    let gather = gather(case, held) + from_host(case, held);
    let copies = if case.config.shard() < case.config.replicas() {
        ReplicaGroups::dense(case).between_copies(held.all(), case)
    } else {
        0.0
    };
    // Gradients of weights in host memory go there.
    let down = from_host(case, held) * case.trained_share();
    let forward = (gather - hidden * passes.forward).max(0.0);
    let backward = (gather + scatter(case, held) + copies + down
        - hidden * (passes.backward + layer.recompute))
        .max(0.0);
    hooks.sum() + forward + backward + case.general().contention * 3.0 * gather.min(passes.forward)
}

/// Returns the seconds to copy the shard of `held` parameters from host memory; zero if it is on the device.
fn from_host(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    if !case.config.is_offloaded() {
        return 0.0;
    }
    let owned = held.dense / case.config.shard() + held.experts / case.config.expert_shard();
    gathered_bytes(case) * owned / case.links.host
}

/// Returns the number of messages that a stage waits for in the steady phase of the pipeline, in each
/// direction.
pub(super) fn steady_messages(case: &StepInputs<'_>) -> f64 {
    (case.config.micro_batches() - 1.0) * case.config.chunks() * case.engine.profile.message_exposed
}

/// Share of the backward in the time of a micro-batch.
const BACKWARD: f64 = 2.0 / 3.0;

/// Returns the exposed seconds to synchronize the gradients of the parameters `held` by one rank. They
/// overlap with the last backward of the slowest stage, whose micro-batch takes `slowest` seconds, or with
/// every backward under ZeRO-2.
pub(super) fn exposed_gradient_sync(case: &StepInputs<'_>, held: LocalParameters, slowest: f64) -> f64 {
    let (config, hidden) = (&case.config, hidden_data(case));
    if config.gathers_layers() {
        // The first and the last gather have nothing to overlap with.
        return 2.0 * gather(case, LocalParameters::of_layer(case));
    }
    let exposed = |all: f64, behind: f64| (all - hidden * behind).max((1.0 - hidden) * all);
    let sync = &config.arrangement.sync;
    let to_host = config.micro_batches() * case.gradients_to_host_seconds(held);
    // Late gradients travel behind the steps between.
    let late = f64::from(sync.staleness) * config.micro_batches() * slowest;
    let reduced = (reduce(case, held) - late).max(0.0);
    let gathered = if config.arrangement.zero == ZeroStage::Zero0 { 0.0 } else { gather(case, held) };
    let passes = slowest / config.chunks();
    // Weights that lie in shards are gathered for every micro-batch, others once a step.
    let again = if case.engine.profile.shards_weights {
        (config.micro_batches() - 1.0) * exposed(gathered, passes)
    } else {
        0.0
    };
    if case.scatters_each_micro_batch() {
        let each = exposed(reduced, BACKWARD * slowest);
        return config.micro_batches() * each + exposed(gathered, passes) + again + to_host;
    }
    #[expect(clippy::cast_precision_loss, reason = "an interval of steps is far below 2^52")]
    let every = sync.every() as f64;
    exposed(reduced + gathered, passes) / every + again + to_host
}

//! Bytes of weights, gradients and optimizer state on the ranks of a stage, and of the weights that they gather.

use super::StageLoad;
use crate::analytic::StepInputs;
use crate::analytic::local_parameters::LocalParameters;
use crate::analytic::state::StateBytes;
use crate::price::memory::kept_apart;
use dtrain_recipes::{FrozenPrecision, ZeroStage};

/// Bytes of the state of a rank of a stage.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageState {
    /// Bytes of weights, gradients and optimizer state.
    pub(super) states: f64,
    /// Bytes of the gradients among them.
    pub(super) gradients: f64,
    /// Bytes of the trained weights among them.
    pub(super) weights: f64,
    /// Bytes of weights that are gathered for use.
    pub(super) gathered: f64,
}

/// Returns the bytes of the state of a stage, and of the weights that it gathers.
pub(super) fn state(case: &StepInputs<'_>, stage: StageLoad) -> StageState {
    let (model, config, profile) = (case.model, &case.config, &case.engine.profile);
    let (t, wire) = (config.tensor(), profile.wire_bytes);
    let layer = LocalParameters::of_layer(case);
    let (dense, sparse) = (layer.dense + model.router(), layer.experts);
    let is_whole = config.pipeline() <= 1.0;
    let has_table = stage.is_first || stage.is_last;
    let is_tied = profile.ties_embeddings && model.is_tied.unwrap_or(!model.is_gated);
    let tables = match () {
        () if is_whole && !is_tied => 2.0,
        () if has_table => 1.0,
        () => 0.0,
    };
    let embedding = model.embedding() / t;
    let (all_dense, all_sparse) = (stage.layers * dense + tables * embedding, stage.layers * sparse);
    // Experts have fewer replicas than the rest.
    let states = match model.adapters {
        None => sharded(case, all_dense, config.shard()) + sharded(case, all_sparse, config.expert_shard()),
        Some(adapters) => {
            let trained = stage.layers * adapters.parameters(model) / t;
            frozen(case, stage.layers * dense, adapters.frozen, config.shard())
                + frozen(case, stage.layers * sparse, adapters.frozen, config.expert_shard())
                + frozen(case, tables * embedding, None, config.shard())
                + sharded(case, trained, config.shard())
        }
    };
    let wire = model.adapters.map_or(wire, |adapters| case.frozen_bytes(adapters.frozen).min(wire));
    let is_apart = config.arrangement.zero == ZeroStage::Zero3 || config.is_offloaded();
    let gathered = match (is_apart, is_whole) {
        (false, _) => 0.0,
        (true, true) => {
            // Frozen tables are never quantized.
            let table = if case.is_quantized() { profile.wire_bytes } else { wire };
            2.0 * wire * (dense + sparse) + table * embedding
        }
        // In a pipeline weights and gradients stay whole.
        (true, false) => {
            2.0 * wire * (dense + sparse)
                + wire * tables * embedding
                + (wire + 4.0) * (all_dense + all_sparse)
        }
    };
    let trained = match model.adapters {
        None => (all_dense, all_sparse),
        Some(adapters) => (stage.layers * adapters.parameters(model) / t, 0.0),
    };
    let of = |part: fn(StateBytes) -> f64, is_sharded: bool| {
        let bytes = part(StateBytes::of(case).on_device(config.arrangement.state.offload));
        let (shard, expert_shard) =
            if is_sharded { (config.shard(), config.expert_shard()) } else { (1.0, 1.0) };
        bytes * (trained.0 / shard + trained.1 / expert_shard)
    };
    let zero = config.arrangement.zero;
    StageState {
        states,
        gradients: of(|bytes| bytes.gradients, matches!(zero, ZeroStage::Zero2 | ZeroStage::Zero3)),
        weights: of(
            |bytes| bytes.weights,
            zero == ZeroStage::Zero3 || profile.shards_weights && zero != ZeroStage::Zero0,
        ),
        gathered,
    }
}

/// Returns the bytes per rank of `parameters` weights with their gradients and optimizer state.
fn sharded(case: &StepInputs<'_>, parameters: f64, shard: f64) -> f64 {
    let (profile, arrangement) = (&case.engine.profile, &case.config.arrangement);
    let held = StateBytes::of(case).on_device(arrangement.state.offload);
    let StateBytes { weights, gradients, optimizer } = held;
    let all = held.sum();
    // Weights that come from host memory for each pass are counted as gathered.
    let wire = if case.config.is_offloaded() {
        0.0
    } else {
        // FSDP2 gathers weights in the format of products of 8 bits.
        profile.wire_bytes.min(case.products.saved_bytes())
    };
    let (whole, shared) = match case.config.arrangement.zero {
        ZeroStage::Zero0 if profile.shards_weights => (all + wire, 0.0),
        ZeroStage::Zero1 if profile.shards_weights => (wire + gradients, weights + optimizer),
        ZeroStage::Zero0 => (all, 0.0),
        ZeroStage::Zero1 => (weights + gradients, optimizer),
        // Gathered weights are whole; without an f32 master copy they come in addition to the sharded ones.
        ZeroStage::Zero2 if profile.has_master_copy => (weights, gradients + optimizer),
        ZeroStage::Zero2 => (wire, all),
        ZeroStage::Zero3 => (0.0, all),
    };
    #[expect(clippy::cast_precision_loss, reason = "a few values for each parameter")]
    let apart = 4.0 * kept_apart(&case.config.arrangement) as f64;
    parameters * (whole + shared / shard + apart)
}

/// Returns the bytes per rank of `parameters` frozen weights.
fn frozen(case: &StepInputs<'_>, parameters: f64, frozen: Option<FrozenPrecision>, shard: f64) -> f64 {
    let shared = if case.config.arrangement.zero == ZeroStage::Zero3 { shard } else { 1.0 };
    if case.config.is_offloaded() { 0.0 } else { case.frozen_bytes(frozen) * parameters / shared }
}

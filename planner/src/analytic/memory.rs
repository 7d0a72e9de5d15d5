//! Peak memory of the rank that uses the most.

mod lower_bound;
mod stage_state;

pub(super) use lower_bound::MemoryLowerBound;
use stage_state::{StageState, state};

use super::{MatmulPrecision, StagePartition, StepConfig, StepInputs};
use crate::engine::Recomputation;
use dtrain_protocol::Arrangement;
use dtrain_recipes::{LossKernel, Offload, PipelineSchedule, ZeroStage};

/// Peak bytes of one rank, by what they hold.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeakMemory {
    /// Bytes of weights, gradients and optimizer state.
    pub states: f64,
    /// Bytes of weights that are gathered for use.
    pub gathered: f64,
    /// Bytes of activations saved for the backward.
    pub activations: f64,
    /// Temporary bytes of one backward, or those of the logits if they are more.
    pub working: f64,
    /// Bytes lost to fragmentation in the allocator.
    pub fragments: f64,
    /// Bytes of the process, its libraries, and communication buffers.
    pub process: f64,
}

/// The contents of one pipeline stage that decide its memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageLoad {
    /// Number of layers on the stage.
    pub layers: f64,
    /// Number of micro-batches whose activations are live at once.
    pub alive: f64,
    /// True for the first stage, with the embedding.
    pub is_first: bool,
    /// True for the last stage, with the head.
    pub is_last: bool,
}

impl PeakMemory {
    /// Returns the peak memory of the heaviest rank: on the first stage (most live micro-batches), the second
    /// or the fullest (more layers), or the last (logits).
    pub fn of(case: &StepInputs<'_>) -> Self {
        Self::with(case, StagePartition::of(case.model, &case.config))
    }

    /// Returns the peak memory of the heaviest rank for the given stage partition.
    pub fn with(case: &StepInputs<'_>, division: StagePartition) -> Self {
        Self::heaviest(case, &LayerMemory::of(case), division)
    }

    /// Returns a lower bound on the bytes of the heaviest rank under any of the shardings `shards`.
    pub(super) fn lower_bound(
        case: &StepInputs<'_>,
        shards: &[(ZeroStage, u32)],
        division: StagePartition,
    ) -> f64 {
        let shared = LayerMemory::of(case);
        let of = |(zero, shard): &(ZeroStage, u32)| {
            let arrangement = Arrangement { zero: *zero, shard: *shard, ..case.config.arrangement };
            let case = StepInputs { config: StepConfig { arrangement, ..case.config }, ..*case };
            Self::heaviest(&case, &shared, division).total()
        };
        shards.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    fn heaviest(case: &StepInputs<'_>, shared: &LayerMemory, division: StagePartition) -> Self {
        let peaks = stages(case, division).into_iter().flatten().map(|stage| shared.stage(case, stage));
        peaks.max_by(|a, b| a.total().total_cmp(&b.total())).expect("there is a first stage")
    }

    /// Returns the peak memory of a rank of the given stage.
    pub fn stage(case: &StepInputs<'_>, stage: StageLoad) -> Self {
        LayerMemory::of(case).stage(case, stage)
    }

    /// Returns the bytes that papers usually count: state and activations on the first stage.
    pub fn state_and_activations(case: &StepInputs<'_>) -> f64 {
        let first = Self::stage(case, StageLoad::first(case, StagePartition::of(case.model, &case.config)));
        first.states + first.activations
    }

    /// Returns the bytes of each category with its name, in a fixed order.
    pub fn categories(&self) -> [(&'static str, f64); 6] {
        [
            ("weights, gradients and optimizer", self.states),
            ("gathered weights", self.gathered),
            ("activations", self.activations),
            ("one backward or logits", self.working),
            ("fragments", self.fragments),
            ("process and communicators", self.process),
        ]
    }

    /// Returns the bytes of tensors alone.
    pub fn allocated(&self) -> f64 {
        self.states + self.gathered + self.activations + self.working
    }

    /// Returns the bytes of all categories together.
    pub fn total(&self) -> f64 {
        self.states + self.gathered + self.activations + self.working + self.fragments + self.process
    }
}

/// Returns the loads of the stages that can be the heaviest.
fn stages(case: &StepInputs<'_>, division: StagePartition) -> [Option<StageLoad>; 4] {
    [
        Some(StageLoad::first(case, division)),
        StageLoad::between(case, division.second, 1),
        StageLoad::between(case, division.most, division.most_at),
        Some(StageLoad::last(case, division)),
    ]
}

/// Activation memory of one layer, which does not depend on stages, replicas and sharding.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerMemory {
    /// Bytes saved per layer and micro-batch by layers that recompute.
    again: f64,
    /// Bytes saved per layer and micro-batch by layers that do not recompute.
    whole: f64,
    /// Bytes of the input of a layer.
    input: f64,
    /// Temporary bytes of the backward of one layer.
    working: f64,
    logits: f64,
}

impl LayerMemory {
    pub(super) fn of(case: &StepInputs<'_>) -> Self {
        let (c, kept) = (&case.general().memory, LayerActivations::of(case));
        Self {
            again: kept.of_layer(case.recomputation(), c),
            whole: kept.of_layer(Recomputation::Nothing, c),
            input: kept.input,
            working: kept.working(case),
            logits: logits(case),
        }
    }

    /// Returns the bytes of saved activations on a stage, and those of temporary tensors.
    fn alive(&self, case: &StepInputs<'_>, stage: StageLoad) -> [f64; 2] {
        let logits = if stage.is_last { self.logits } else { 0.0 };
        let input = if stage.is_first { 2.0 * self.input } else { 0.0 };
        let again = (stage.layers * case.config.recompute_share()).ceil();
        let activations = (again * self.again + (stage.layers - again) * self.whole) * stage.alive;
        [activations, self.working.max(logits) + input]
    }

    /// Returns the peak memory of a rank of the given stage.
    fn stage(&self, case: &StepInputs<'_>, stage: StageLoad) -> PeakMemory {
        let StageState { states, gradients, weights, gathered } = state(case, stage);
        let [activations, working] = self.alive(case, stage);
        let profile = &case.engine.profile;
        let update = if case.config.arrangement.state.offload == Offload::None {
            profile.update_copies * weights
        } else {
            0.0
        };
        let at = |states: f64, activations: f64, working: f64| {
            let alive = states + gathered + activations + working;
            PeakMemory {
                states,
                gathered,
                activations,
                working,
                fragments: alive * (case.fragmentation() - 1.0),
                process: process(case),
            }
        };
        // Gradients that are freed after a step grow while activations are freed.
        let is_freed = profile.frees_gradients && case.config.micro_batches() <= 1.0;
        let before = if is_freed { gradients } else { 0.0 };
        let forward = at(states - before, activations, working);
        let backward = at(states, self.input, self.working.min(working));
        let updated = at(states, 0.0, update);
        [backward, updated].into_iter().fold(
            forward,
            |most, other| {
                if other.total() > most.total() { other } else { most }
            },
        )
    }
}

impl StageLoad {
    /// Returns the load of the first stage; without a pipeline, that of the whole model.
    fn first(case: &StepInputs<'_>, division: StagePartition) -> Self {
        let is_last = case.config.pipeline() <= 1.0;
        Self { layers: division.first.into(), alive: in_flight(&case.config, 0.0), is_first: true, is_last }
    }

    /// Returns the load of a stage between the first and the last; `None` if it has no layers.
    fn between(case: &StepInputs<'_>, layers: u32, stage: u32) -> Option<Self> {
        let alive = in_flight(&case.config, stage.into());
        (layers > 0).then(|| Self { layers: layers.into(), alive, is_first: false, is_last: false })
    }

    /// Returns the load of the last stage; without a pipeline, that of the whole model without its input.
    fn last(case: &StepInputs<'_>, division: StagePartition) -> Self {
        let alive = in_flight(&case.config, case.config.pipeline() - 1.0);
        Self { layers: division.last.into(), alive, is_first: false, is_last: true }
    }
}

impl StepInputs<'_> {
    /// Returns the peak bytes as the allocator holds them, of what is alive.
    pub(super) fn fragmentation(&self) -> f64 {
        self.engine.profile.fragmentation.unwrap_or(self.general().memory.fragmentation)
    }
}

/// Returns the bytes of the process and of its communication buffers.
fn process(case: &StepInputs<'_>) -> f64 {
    let profile = &case.engine.profile;
    let is_sharded = profile.has_master_copy && case.config.shard() > 1.0;
    let buffers = if is_sharded { profile.shard_buffers } else { 0.0 };
    profile.context_bytes + buffers + case.general().memory.communicator * axes(case)
}

/// Returns the number of axes along which ranks communicate.
fn axes(case: &StepInputs<'_>) -> f64 {
    let config = &case.config;
    let degrees = [config.tensor(), config.pipeline(), config.replicas(), config.expert(), config.context()];
    degrees.iter().map(|degree| if *degree > 1.0 { 1.0 } else { 0.0 }).sum()
}

/// Returns the number of micro-batches with live activations on the stage at the index `stage`.
pub(crate) fn in_flight(config: &StepConfig, stage: f64) -> f64 {
    let (p, v, n) = (config.pipeline(), config.chunks(), config.micro_batches());
    if p <= 1.0 {
        return 1.0;
    }
    let is_last = stage + 1.0 >= p;
    let alive = match () {
        () if config.arrangement.schedule == PipelineSchedule::Gpipe => n,
        () if v <= 1.0 => (p - stage).min(n),
        () if stage <= 0.0 => p.min(n) * (1.0 + (p - 1.0) / (p * v)),
        () if is_last => 1.0 + (v - 1.0) / v,
        // Chunks that start before the first backward, plus one (Narayanan et al. 2021).
        () => (2.0 * (p - stage - 1.0) + (v - 1.0) * p + 1.0) / v,
    };
    alive.min(n)
}

/// Returns the bytes of the logits and of their gradients that are held at once.
fn logits(case: &StepInputs<'_>) -> f64 {
    let (share, _) = case.logits_held();
    share * case.engine.profile.logit_bytes * case.tokens() * case.model.vocabulary / case.config.tensor()
}

/// Bytes saved by one layer for the backward of one micro-batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerActivations {
    /// Bytes of activations around matrix products (Korthikanti et al. 2022, extended to gated and grouped
    /// layers, fused attention and fp8).
    pub(super) through: f64,
    /// Bytes of attention scores, or of their row sums if attention is fused.
    pub(super) scores: f64,
    /// Bytes of the input of the layer.
    pub(super) input: f64,
}

impl LayerActivations {
    fn of(case: &StepInputs<'_>) -> Self {
        let (model, config, tokens) = (case.model, &case.config, case.tokens());
        let (t, h) = (config.tensor(), model.hidden);
        let between = if config.arrangement.sequence { t } else { 1.0 };
        let is_fused = case.kernel.is_fused();
        // Dropout masks of one byte per element, in older models.
        let dropout = if !model.is_gated && !is_fused { 2.0 } else { 0.0 };
        let input = case.products.saved_bytes();
        let queries = model.heads * model.head / t;
        let keys = (model.kv_heads / t).max(1.0) * model.head;
        let values = model.heads * model.head_value / t;
        let (wide, routed) = match model.experts {
            Some(experts) => (
                experts.chosen * experts.ffn / between + experts.shared / t,
                4.0 * experts.chosen * h / between,
            ),
            None => (model.ffn / t, 0.0),
        };
        // Eager programs keep the output of the activation function beside its inputs, and norms keep their
        // inputs in f32.
        // Kernels that fuse the loss (Liger) fuse norms and activation functions too.
        let is_fused_loss = config.arrangement.state.loss == LossKernel::Fused;
        let is_eager = case.engine.profile.keeps_norms && model.is_gated && !is_fused_loss;
        let activation = match (model.is_gated, is_eager) {
            (true, true) => 6.0,
            (true, false) => 4.0,
            (false, _) => 2.0,
        };
        let norms = if is_eager { 8.0 * h / between } else { 0.0 };
        // Eager programs save inputs of split matrices as gathered from the ranks.
        let inputs = if is_eager && config.arrangement.sequence { 4.0 * h * (1.0 - 1.0 / t) } else { 0.0 };
        let through = (4.0 + 2.0 * input + dropout) * h / between
            + 2.0 * queries
            + 4.0 * keys
            + input * values
            + (activation + input) * wide
            + norms
            + inputs
            + routed;
        let width = if case.products == MatmulPrecision::Bits32 { 2.0 } else { 1.0 };
        let s = model.sequence;
        let scores = if is_fused {
            4.0 * tokens * model.heads / t
        } else {
            5.0 * config.micro() * s * s * model.heads / t / config.context()
        };
        Self {
            through: width * tokens * through,
            scores: width * scores,
            input: width * 2.0 * tokens * h / between,
        }
    }
}

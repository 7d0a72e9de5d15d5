//! Bytes of the heaviest rank at its peak.

mod lower_bound;

pub(super) use lower_bound::MemoryLowerBound;

use super::constants::MemoryConstants;
use super::{Recomputation, StagePartition, StepConfig, StepInputs, step};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{PipelineSchedule, ZeroStage};

/// Bytes of one rank at its peak, by category.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PeakMemory {
    /// Weights, gradients and the optimizer's moments.
    pub states: f64,
    /// Weights that are gathered while they are used.
    pub gathered: f64,
    /// What forwards keep for their backwards.
    pub activations: f64,
    /// What one backward holds beside that, or the logits where they are more.
    pub working: f64,
    /// Fragments of the allocator.
    pub fragments: f64,
    /// The process, its libraries, and buffers of communicators.
    pub process: f64,
}

/// A stage of a pipeline, or all of the model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageLoad {
    /// Layers.
    pub layers: f64,
    /// Micro-batches whose activations are alive at once.
    pub alive: f64,
    /// Whether it is the first, with the embedding.
    pub is_first: bool,
    /// Whether it is the last, with the head.
    pub is_last: bool,
}

impl PeakMemory {
    /// The heaviest rank: of the first stage, which keeps most micro-batches, of the second or the fullest, which may have more
    /// layers, or of the last, which has the logits.
    pub fn of(case: &StepInputs<'_>) -> Self {
        Self::with(case, StagePartition::of(case.model, &case.config))
    }

    /// The same where it is known how layers are divided.
    pub fn with(case: &StepInputs<'_>, division: StagePartition) -> Self {
        Self::heaviest(case, &LayerMemory::of(case), division)
    }

    /// Bytes of the heaviest rank where replicas shard what takes least of `shards`.
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

    /// A rank of a stage.
    pub fn stage(case: &StepInputs<'_>, stage: StageLoad) -> Self {
        LayerMemory::of(case).stage(case, stage)
    }

    /// What papers that compute memory count, of the first stage: state and activations.
    pub fn state_and_activations(case: &StepInputs<'_>) -> f64 {
        let first = Self::stage(case, StageLoad::first(case, StagePartition::of(case.model, &case.config)));
        first.states + first.activations
    }

    /// The categories with their names, in a fixed order.
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

    /// All of it.
    pub fn total(&self) -> f64 {
        self.states + self.gathered + self.activations + self.working + self.fragments + self.process
    }
}

/// The stages of which one is the heaviest.
fn stages(case: &StepInputs<'_>, division: StagePartition) -> [Option<StageLoad>; 4] {
    [
        Some(StageLoad::first(case, division)),
        StageLoad::between(case, division.second, 1),
        StageLoad::between(case, division.most, division.most_at),
        Some(StageLoad::last(case, division)),
    ]
}

/// What depends neither on the stage, nor on stages, replicas and what they shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerMemory {
    /// Of a layer of one micro-batch, where its backward computes again what is computed again.
    again: f64,
    /// Of a layer where it computes nothing again.
    whole: f64,
    /// Of a layer's input.
    input: f64,
    /// What one backward holds beside what is kept.
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

    /// Bytes of activations, and of what one backward holds beside them.
    fn alive(&self, case: &StepInputs<'_>, stage: StageLoad) -> [f64; 2] {
        let logits = if stage.is_last { self.logits } else { 0.0 };
        let input = if stage.is_first { 2.0 * self.input } else { 0.0 };
        let again = (stage.layers * case.config.recompute_share()).ceil();
        let activations = (again * self.again + (stage.layers - again) * self.whole) * stage.alive;
        [activations, self.working.max(logits) + input]
    }

    /// A rank of a stage.
    fn stage(&self, case: &StepInputs<'_>, stage: StageLoad) -> PeakMemory {
        let (states, gathered) = state(case, stage);
        let [activations, working] = self.alive(case, stage);
        let alive = states + gathered + activations + working;
        PeakMemory {
            states,
            gathered,
            activations,
            working,
            fragments: alive * (case.general().memory.fragmentation - 1.0),
            process: process(case),
        }
    }
}

impl StageLoad {
    /// The first; all of the model where it is not divided.
    fn first(case: &StepInputs<'_>, division: StagePartition) -> Self {
        let is_last = case.config.pipeline() <= 1.0;
        Self { layers: division.first.into(), alive: in_flight(&case.config, 0.0), is_first: true, is_last }
    }

    /// A stage between the first and the last.
    fn between(case: &StepInputs<'_>, layers: u32, stage: u32) -> Option<Self> {
        let alive = in_flight(&case.config, stage.into());
        (layers > 0).then(|| Self { layers: layers.into(), alive, is_first: false, is_last: false })
    }

    /// The last; all of the model, without its input, where it is not divided.
    fn last(case: &StepInputs<'_>, division: StagePartition) -> Self {
        let alive = in_flight(&case.config, case.config.pipeline() - 1.0);
        Self { layers: division.last.into(), alive, is_first: false, is_last: true }
    }
}

/// Bytes of the process and of buffers of communicators.
fn process(case: &StepInputs<'_>) -> f64 {
    case.engine.profile.context_bytes + case.general().memory.communicator * axes(case)
}

/// Axes that communicate.
fn axes(case: &StepInputs<'_>) -> f64 {
    let config = &case.config;
    let degrees = [config.tensor(), config.pipeline(), config.replicas(), config.expert(), config.context()];
    degrees.iter().map(|degree| if *degree > 1.0 { 1.0 } else { 0.0 }).sum()
}

/// Micro-batches whose activations are alive at once in a stage; the first is 0.
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
        // Chunks that begin before the first backward, and one (Narayanan et al. 2021).
        () => (2.0 * (p - stage - 1.0) + (v - 1.0) * p + 1.0) / v,
    };
    alive.min(n)
}

/// Bytes of state that a stage holds, and of weights it gathers.
fn state(case: &StepInputs<'_>, stage: StageLoad) -> (f64, f64) {
    let (model, config, profile) = (case.model, &case.config, &case.engine.profile);
    let (t, wire) = (config.tensor(), profile.wire_bytes);
    let layer = step::LocalParameters::of_layer(case);
    let (dense, sparse) = (layer.dense + model.router(), layer.experts);
    let is_whole = config.pipeline() <= 1.0;
    let has_table = stage.is_first || stage.is_last;
    let tables = match () {
        () if is_whole && (model.is_gated || !profile.ties_embeddings) => 2.0,
        () if has_table => 1.0,
        () => 0.0,
    };
    let embedding = model.embedding() / t;
    let (all_dense, all_sparse) = (stage.layers * dense + tables * embedding, stage.layers * sparse);
    // Experts have fewer replicas than the rest.
    let states = sharded(case, all_dense, config.shard()) + sharded(case, all_sparse, config.expert_shard());
    let gathered = match (config.arrangement.zero == ZeroStage::Zero3, is_whole) {
        (false, _) => 0.0,
        (true, true) => 2.0 * wire * (dense + sparse) + wire * embedding,
        // In a pipeline weights and gradients stay whole.
        (true, false) => {
            2.0 * wire * (dense + sparse)
                + wire * tables * embedding
                + (wire + 4.0) * (all_dense + all_sparse)
        }
    };
    (states, gathered)
}

/// Bytes of `parameters` with their gradients and moments on one of the ranks that shard them.
fn sharded(case: &StepInputs<'_>, parameters: f64, shard: f64) -> f64 {
    let profile = &case.engine.profile;
    let (weights, gradients, optimizer) =
        if profile.has_master_copy { (2.0, profile.gradient_bytes, 12.0) } else { (4.0, 4.0, 8.0) };
    let all = weights + gradients + optimizer;
    let (whole, shared) = match case.config.arrangement.zero {
        ZeroStage::Zero0 => (all, 0.0),
        ZeroStage::Zero1 => (weights + gradients, optimizer),
        // Weights as they are gathered are whole; where there is no copy in f32 they are beside the sharded ones.
        ZeroStage::Zero2 if profile.has_master_copy => (weights, gradients + optimizer),
        ZeroStage::Zero2 => (profile.wire_bytes, all),
        ZeroStage::Zero3 => (0.0, all),
    };
    parameters * (whole + shared / shard)
}

/// Bytes of logits and what the loss makes of them.
fn logits(case: &StepInputs<'_>) -> f64 {
    case.engine.profile.logit_bytes * case.tokens() * case.model.vocabulary / case.config.tensor()
}

/// Bytes that a layer keeps of one micro-batch.
#[derive(Clone, Copy, Debug)]
struct LayerActivations {
    /// Between products (Korthikanti et al. 2022, with gated and grouped layers, fused attention and 8 bits).
    through: f64,
    /// Of attention's scores, or of their sums where they are never in memory.
    scores: f64,
    /// Of its input.
    input: f64,
}

impl LayerActivations {
    fn of(case: &StepInputs<'_>) -> Self {
        let (model, config, tokens) = (case.model, &case.config, case.tokens());
        let (t, h) = (config.tensor(), model.hidden);
        let between = if config.arrangement.sequence { t } else { 1.0 };
        let is_fused = case.kernel.is_fused();
        // Masks of a byte, which models of the old style have.
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
        let activation = if model.is_gated { 4.0 } else { 2.0 };
        let through = (4.0 + 2.0 * input + dropout) * h / between
            + 2.0 * queries
            + 4.0 * keys
            + input * values
            + (activation + input) * wide
            + routed;
        let s = model.sequence;
        let scores = if is_fused {
            4.0 * tokens * model.heads / t
        } else {
            5.0 * config.micro() * s * s * model.heads / t / config.context()
        };
        Self { through: tokens * through, scores, input: 2.0 * tokens * h / between }
    }

    /// Of a layer, until its backward.
    fn of_layer(&self, again: Recomputation, c: &MemoryConstants) -> f64 {
        match again {
            Recomputation::Nothing => self.through + self.scores,
            Recomputation::Attention => self.through,
            Recomputation::EverySecondProduct => c.kept_every_second * self.through + self.input,
            Recomputation::All => self.input,
        }
    }

    /// What one backward holds beside what is kept: what it computes again, and gathered inputs.
    fn working(&self, case: &StepInputs<'_>) -> f64 {
        let config = &case.config;
        let is_gathered = config.arrangement.sequence && config.tensor() > 1.0;
        let gathered = if is_gathered { 8.0 * case.tokens() * case.model.hidden } else { 0.0 };
        gathered
            + match case.recomputation() {
                Recomputation::Nothing => case.general().memory.transient * self.through,
                Recomputation::Attention | Recomputation::EverySecondProduct => {
                    self.scores + 0.5 * self.through
                }
                Recomputation::All => self.through + self.scores,
            }
    }
}

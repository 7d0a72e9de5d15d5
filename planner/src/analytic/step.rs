//! Time of a step: layers in stages, pipeline bubble, messages, gradient sync and optimizer.

use super::collective::point_to_point;
use super::layer::LayerTimesByKind;
use super::local_parameters::LocalParameters;
use super::overlap::{exposed_gathering, exposed_gradient_sync, steady_messages};
use super::{LayerTimes, StagePartition, StepConfig, StepInputs, Transformer, head_and_embedding, topology};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{Offload, PipelineSchedule, Recompute};

/// Seconds of a step, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// Seconds of one layer for one micro-batch, forward and backward.
    pub layer: LayerTimes,
    /// Seconds of output head and loss per micro-batch.
    pub head: f64,
    /// Seconds of the embedding per micro-batch.
    pub embedding: f64,
    /// Exposed seconds of gathering the weights of one layer (ZeRO-3), per micro-batch.
    pub gathering: f64,
    /// Number of micro-batches in the step.
    pub micro_batches: f64,
    /// Seconds of the slowest stage per micro-batch.
    pub slowest: f64,
    /// Seconds of the pipeline bubble, as the pipeline fills and drains.
    pub bubble: f64,
    /// Exposed seconds of messages between stages.
    pub messages: f64,
    /// Exposed seconds of gradient sync among replicas.
    pub replicas: f64,
    /// Seconds of the optimizer update.
    pub optimizer: f64,
    /// Seconds of waiting for the slowest host.
    pub stragglers: f64,
    /// Seconds of a step's fixed overhead.
    pub fixed: f64,
}

/// Seconds of one micro-batch, which do not depend on stages and replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MicroBatchTimes {
    /// Seconds of one layer, forward and backward.
    pub layer: LayerTimes,
    /// Seconds of a layer without experts; 0 unless the model has both kinds of layers.
    pub dense: f64,
    /// Seconds of output head and loss.
    pub head: f64,
    /// Seconds of the embedding, forward and backward.
    pub embedding: f64,
}

impl MicroBatchTimes {
    /// Computes the times of the micro-batch of `case`.
    pub fn of(case: &StepInputs<'_>) -> Self {
        let has_both = case.model.experts.is_some_and(|experts| experts.dense_layers > 0.0);
        Self {
            layer: LayerTimes::of(case),
            dense: if has_both { LayerTimes::dense(case).total() } else { 0.0 },
            head: head_and_embedding::head_seconds(case),
            embedding: head_and_embedding::embedding_seconds(case),
        }
    }

    /// Computes the times of a micro-batch with the given layers, once for each recompute mode.
    pub(super) fn each(
        case: &StepInputs<'_>,
        layers: LayerTimesByKind,
        modes: &[(Recompute, u32)],
    ) -> Vec<Self> {
        let LayerTimesByKind { layer, dense } = layers;
        let (head, embedding) =
            (head_and_embedding::head_seconds(case), head_and_embedding::embedding_seconds(case));
        let of = |(recompute, recompute_every): &(Recompute, u32)| {
            let arrangement = Arrangement {
                recompute: *recompute,
                recompute_every: *recompute_every,
                ..case.config.arrangement
            };
            let case = StepInputs { config: StepConfig { arrangement, ..case.config }, ..*case };
            let dense = dense.map_or(0.0, |layer| layer.with_recompute(&case).total());
            Self { layer: layer.with_recompute(&case), dense, head, embedding }
        };
        modes.iter().map(of).collect()
    }

    /// Returns a lower bound on the seconds of one micro-batch in all stages.
    pub(super) fn lower_bound(&self, model: &Transformer) -> f64 {
        let share = model.layers / (model.layers + model.further());
        share * self.layers(model, 0.0) + self.head + self.embedding
    }

    /// Returns the seconds of all layers, each of which gathers weights for `gathering` seconds.
    pub(crate) fn layers(&self, model: &Transformer, gathering: f64) -> f64 {
        let layers = model.layers + model.further();
        let dense = model.experts.map_or(0.0, |experts| experts.dense_layers);
        (layers - dense) * self.layer.total() + dense * self.dense + layers * gathering
    }
}

impl StepTimes {
    /// Computes the times of the step of `case`.
    pub fn of(case: &StepInputs<'_>) -> Self {
        Self::with(case, &MicroBatchTimes::of(case), StagePartition::of(case.model, &case.config))
    }

    /// Computes the times of a step from those of its micro-batch and a stage partition.
    pub fn with(case: &StepInputs<'_>, unit: &MicroBatchTimes, division: StagePartition) -> Self {
        Self::passes(case, unit, division).with_update(case, division)
    }

    /// Returns a lower bound on the seconds of a step under any partition, sharding and schedule of at most
    /// `chunks` chunks per stage, if one micro-batch takes `stages` seconds in all stages.
    pub(super) fn lower_bound(case: &StepInputs<'_>, stages: f64, chunks: u32) -> f64 {
        let config = &case.config;
        let slowest = stages / config.pipeline();
        let messages = if config.pipeline() > 1.0 { messages(case) } else { 0.0 };
        // Zero bubble leaves a third.
        let bubble = (stages - slowest) / f64::from(chunks.max(3));
        let passes = config.micro_batches() * slowest + bubble;
        // Tolerance for rounding errors of sums.
        (passes + straggler_seconds(case, passes) + messages + fixed_overhead(case)) * (1.0 - 1e-12)
    }

    /// Computes the times of a step without gradient sync and optimizer, which below ZeRO-3 are all that
    /// depends on the sharding.
    pub(super) fn passes(case: &StepInputs<'_>, unit: &MicroBatchTimes, division: StagePartition) -> Self {
        let config = &case.config;
        let gathering = if config.gathers_layers() { exposed_gathering(case, &unit.layer) } else { 0.0 };
        let StageSeconds { sum, slowest } = StageSeconds::of(case, unit, division, gathering);
        let (bubble, messages) = if config.pipeline() > 1.0 {
            (bubble(config, sum - slowest), messages(case))
        } else {
            (0.0, 0.0)
        };
        let micro_batches = config.micro_batches();
        Self {
            layer: unit.layer,
            head: unit.head,
            embedding: unit.embedding,
            gathering,
            micro_batches,
            slowest,
            bubble,
            messages,
            stragglers: straggler_seconds(case, micro_batches * slowest + bubble),
            fixed: fixed_overhead(case),
            ..Self::default()
        }
    }

    /// Adds the times of gradient sync and optimizer to those of the passes.
    pub(super) fn with_update(self, case: &StepInputs<'_>, division: StagePartition) -> Self {
        let held = LocalParameters::of(case, division.fullest().into(), true);
        Self {
            replicas: exposed_gradient_sync(case, held, self.slowest),
            optimizer: optimizer_seconds(case, held),
            ..self
        }
    }

    /// Returns the seconds of the whole step.
    pub fn total(&self) -> f64 {
        self.micro_batches * self.slowest
            + self.bubble
            + self.messages
            + self.replicas
            + self.optimizer
            + self.stragglers
            + self.fixed
    }
}

/// Seconds of one micro-batch in the pipeline stages.
struct StageSeconds {
    /// Seconds of all stages together.
    sum: f64,
    /// Seconds of the slowest stage.
    slowest: f64,
}

impl StageSeconds {
    /// Computes the times of the stages if each layer gathers weights for `gathering` seconds.
    fn of(case: &StepInputs<'_>, unit: &MicroBatchTimes, division: StagePartition, gathering: f64) -> Self {
        let model = case.model;
        let all = unit.layers(model, gathering);
        let sum = all + unit.head + unit.embedding;
        if case.config.pipeline() <= 1.0 {
            return Self { sum, slowest: sum };
        }
        let mean = all / (model.layers + model.further());
        let of = |layers: u32| f64::from(layers) * mean;
        let (first, last) = (of(division.first) + unit.embedding, of(division.last) + unit.head);
        Self { sum, slowest: first.max(last).max(of(division.most)) }
    }
}

impl StepTimes {
    /// Returns the seconds of the step by cause, in a fixed order; they add up to the whole step.
    pub fn causes(&self, case: &StepInputs<'_>) -> [(&'static str, f64); 10] {
        self.causes_of(StagePartition::of(case.model, &case.config).fullest().into())
    }

    /// Returns the seconds of the step by cause if the slowest stage has `layers` layers.
    pub(crate) fn causes_of(&self, layers: f64) -> [(&'static str, f64); 10] {
        let of_layers = |seconds: f64| self.micro_batches * layers * seconds;
        let mut causes = [
            ("computing", 0.0),
            ("tensor parallel", of_layers(self.layer.tensor.sum())),
            ("context parallel", of_layers(self.layer.context.sum())),
            ("experts", of_layers(self.layer.expert.sum())),
            ("gathering weights", of_layers(self.gathering)),
            ("pipeline bubble", self.bubble),
            ("pipeline messages", self.messages),
            ("replicas", self.replicas),
            ("stragglers", self.stragglers),
            ("optimizer and the rest", self.optimizer + self.fixed),
        ];
        let others: f64 = causes.iter().map(|(_, seconds)| seconds).sum();
        causes[0].1 = self.total() - others;
        causes
    }
}

/// Returns the seconds of the pipeline bubble, given `others` seconds per micro-batch on all stages but the
/// slowest. ZB-H1 leaves a third (Qi et al. 2023).
pub(super) fn bubble(config: &StepConfig, others: f64) -> f64 {
    match config.arrangement.schedule {
        PipelineSchedule::ZeroBubble => others / 3.0,
        PipelineSchedule::Interleaved => others / config.chunks(),
        PipelineSchedule::Gpipe | PipelineSchedule::OneForwardOneBackward => others,
    }
}

/// Returns the exposed seconds of messages between stages; about half of them overlap in the steady phase.
fn messages(case: &StepInputs<'_>) -> f64 {
    2.0 * stage_message_seconds(case) * (steady_messages(case) + case.config.pipeline())
}

/// Returns the seconds of one message from a stage to the next.
pub(crate) fn stage_message_seconds(case: &StepInputs<'_>) -> f64 {
    let leaves = topology::stages_span_hosts(case);
    let bytes = case.engine.profile.wire_bytes * case.tokens_between() * case.model.hidden;
    point_to_point(bytes, leaves, case.engine.profile.message, &case.links)
}

/// Returns the seconds of the optimizer update of the parameters `held` by a rank, of which it updates its
/// shard.
pub(super) fn optimizer_seconds(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let config = &case.config;
    let owned = held.dense / config.shard() + held.experts / config.expert_shard();
    let owned = owned * case.trained_share();
    if config.arrangement.state.offload != Offload::None {
        return case.host_update_seconds(owned);
    }
    case.general().optimizer_bytes * case.update_traffic() * owned / case.device.stream
}

/// Returns the seconds that hosts wait for the slowest host in passes of `seconds`: the expected maximum of
/// normal deviates (Dean and Barroso 2013).
pub(super) fn straggler_seconds(case: &StepInputs<'_>, seconds: f64) -> f64 {
    let hosts = (case.config.ranks() / case.links.per_host).max(1.0);
    case.general().straggler * (2.0 * hosts.ln()).sqrt() * seconds
}

/// Returns the seconds of a step's fixed overhead; pipeline stages also all-reduce the gradient norm.
pub(super) fn fixed_overhead(case: &StepInputs<'_>) -> f64 {
    let agree = if case.config.pipeline() > 1.0 { 4.0 * case.general().network_start } else { 0.0 };
    case.engine.profile.step + agree
}

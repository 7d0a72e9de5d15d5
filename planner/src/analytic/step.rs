//! Seconds of a step: layers in stages, what stages wait for, what replicas exchange, the optimizer.

use super::collective::{all_reduce, gather_or_scatter, point_to_point};
use super::layer::LayerTimesByKind;
use super::{
    GroupTopology, LayerTimes, StagePartition, StepConfig, StepInputs, Transformer, head_and_embedding,
    topology,
};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{PipelineSchedule, Recompute, ZeroStage};

/// Seconds of a step, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTimes {
    /// A layer there and back.
    pub layer: LayerTimes,
    /// The head with its loss, for one micro-batch.
    pub head: f64,
    /// The embedding, for one micro-batch.
    pub embedding: f64,
    /// Gathering the weights of one layer where each pass gathers them, for one micro-batch.
    pub gathering: f64,
    /// Micro-batches.
    pub micro_batches: f64,
    /// The slowest stage, for one micro-batch.
    pub slowest: f64,
    /// The pipeline fills and drains.
    pub bubble: f64,
    /// Messages between stages.
    pub messages: f64,
    /// Exposed exchange among replicas.
    pub replicas: f64,
    /// The optimizer.
    pub optimizer: f64,
    /// Waiting for the slowest host.
    pub stragglers: f64,
    /// What grows with nothing.
    pub fixed: f64,
}

/// What one micro-batch costs, whatever the number of stages and of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MicroBatchTimes {
    /// A layer there and back.
    pub layer: LayerTimes,
    /// Seconds of a layer without experts there and back, in a model that has both kinds.
    pub dense: f64,
    /// Seconds of the head with its loss.
    pub head: f64,
    /// Seconds of the embedding.
    pub embedding: f64,
}

impl MicroBatchTimes {
    /// The unit of a case.
    pub fn of(case: &StepInputs<'_>) -> Self {
        let has_both = case.model.experts.is_some_and(|experts| experts.dense_layers > 0.0);
        Self {
            layer: LayerTimes::of(case),
            dense: if has_both { LayerTimes::dense(case).total() } else { 0.0 },
            head: head_and_embedding::head_seconds(case),
            embedding: head_and_embedding::embedding_seconds(case),
        }
    }

    /// The units of a case with its layers, by what a backward computes again.
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

    /// Seconds that one micro-batch spends in all stages, at least.
    pub(super) fn lower_bound(&self, model: &Transformer) -> f64 {
        let share = model.layers / (model.layers + model.further());
        share * self.layers(model, 0.0) + self.head + self.embedding
    }

    /// Seconds of all layers of `model`, each of which gathers its weights for `gathering` seconds.
    pub(crate) fn layers(&self, model: &Transformer, gathering: f64) -> f64 {
        let layers = model.layers + model.further();
        let dense = model.experts.map_or(0.0, |experts| experts.dense_layers);
        (layers - dense) * self.layer.total() + dense * self.dense + layers * gathering
    }
}

impl StepTimes {
    /// The step of a case.
    pub fn of(case: &StepInputs<'_>) -> Self {
        Self::with(case, &MicroBatchTimes::of(case), StagePartition::of(case.model, &case.config))
    }

    /// The step of a case whose unit is known, and how its layers are divided.
    pub fn with(case: &StepInputs<'_>, unit: &MicroBatchTimes, division: StagePartition) -> Self {
        Self::passes(case, unit, division).with_update(case, division)
    }

    /// Seconds of a step in which one micro-batch spends at least `stages` seconds in all stages together: less than that no
    /// order of passes takes that has at most `chunks` runs of layers a stage, however layers are divided and state is sharded.
    pub(super) fn lower_bound(case: &StepInputs<'_>, stages: f64, chunks: u32) -> f64 {
        let config = &case.config;
        let slowest = stages / config.pipeline();
        let messages = if config.pipeline() > 1.0 { messages(case) } else { 0.0 };
        // Zero bubble leaves a third.
        let bubble = (stages - slowest) / f64::from(chunks.max(3));
        let passes = config.micro_batches() * slowest + bubble;
        // The last bits of sums differ.
        (passes + straggler_seconds(case, passes) + messages + fixed_overhead(case)) * (1.0 - 1e-12)
    }

    /// The step without what follows the passes: exchange among replicas and the optimizer, which alone depend on what
    /// replicas shard unless each layer gathers its weights.
    pub(super) fn passes(case: &StepInputs<'_>, unit: &MicroBatchTimes, division: StagePartition) -> Self {
        let config = &case.config;
        let gathering = if config.gathers_layers() { gathering(case, &unit.layer) } else { 0.0 };
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

    /// The passes with what follows them.
    pub(super) fn with_update(self, case: &StepInputs<'_>, division: StagePartition) -> Self {
        let held = LocalParameters::of(case, division.fullest().into(), true);
        Self {
            replicas: exposed_gradient_sync(case, held, self.slowest),
            optimizer: optimizer_seconds(case, held),
            ..self
        }
    }

    /// All of it.
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

/// Seconds that one micro-batch spends in the stages.
struct StageSeconds {
    /// In all of them.
    sum: f64,
    /// In the slowest.
    slowest: f64,
}

impl StageSeconds {
    /// The stages of a case where each layer gathers its weights for `gathering` seconds.
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
    /// Seconds by cause, in a fixed order; together they are the step.
    pub fn causes(&self, case: &StepInputs<'_>) -> [(&'static str, f64); 10] {
        self.causes_of(StagePartition::of(case.model, &case.config).fullest().into())
    }

    /// The same where the slowest stage has so many layers.
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

/// Seconds the slowest stage stands still while the pipeline fills and drains, where all other stages together need
/// `others` seconds for a micro-batch. ZB-H1 leaves a third of it (Qi et al. 2023).
pub(super) fn bubble(config: &StepConfig, others: f64) -> f64 {
    match config.arrangement.schedule {
        PipelineSchedule::ZeroBubble => others / 3.0,
        PipelineSchedule::Interleaved => others / config.chunks(),
        PipelineSchedule::Gpipe | PipelineSchedule::OneForwardOneBackward => others,
    }
}

/// Parameters on one rank. Experts have fewer replicas than the rest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LocalParameters {
    /// Of all that is no expert.
    pub(super) dense: f64,
    /// Of experts.
    pub(super) experts: f64,
}

impl LocalParameters {
    /// Of a stage of `layers`; an end has the embedding or the head.
    pub(super) fn of(case: &StepInputs<'_>, layers: f64, is_end: bool) -> Self {
        let model = case.model;
        let table = if is_end { model.embedding() / case.config.tensor() } else { 0.0 };
        let layer = Self::of_layer(case);
        Self { dense: layers * (layer.dense + model.router()) + table, experts: layers * layer.experts }
    }

    /// Of a layer, without its router.
    pub(super) fn of_layer(case: &StepInputs<'_>) -> Self {
        let (model, config) = (case.model, &case.config);
        let t = config.tensor();
        match model.experts {
            Some(experts) => Self {
                dense: (model.attention() + model.shared()) / t,
                experts: model.expert() * experts.count / (config.expert() * config.expert_tensor()),
            },
            None => Self { dense: (model.attention() + model.feed_forward()) / t, experts: 0.0 },
        }
    }

    /// Both.
    pub(super) fn all(self) -> f64 {
        self.dense + self.experts
    }
}

/// The groups among which weights of one kind are reduced and gathered.
struct ReplicaGroups {
    /// All ranks that hold them.
    all: GroupTopology,
    /// Those among which their state is sharded.
    shard: GroupTopology,
    /// Those that hold the same shard.
    across: GroupTopology,
}

impl ReplicaGroups {
    fn dense(case: &StepInputs<'_>) -> Self {
        Self {
            all: topology::replica_group(case),
            shard: topology::shard_group(case),
            across: topology::cross_shard_group(case),
        }
    }

    fn experts(case: &StepInputs<'_>) -> Self {
        let config = &case.config;
        let (all, shard) = (config.expert_replicas(), config.expert_shard());
        Self {
            all: topology::expert_replica_group(case, all),
            shard: topology::expert_replica_group(case, shard),
            across: GroupTopology { inside: 1.0, outside: all / shard },
        }
    }

    /// Seconds to gather so many parameters that are sharded.
    fn gather(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        gather_or_scatter(case.engine.profile.wire_bytes * parameters, self.shard, &case.links)
    }

    /// Seconds to sum the gradients of so many parameters, so that every rank has those of its shard.
    fn reduce(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        let bytes = case.engine.profile.gradient_bytes * parameters;
        if case.config.arrangement.zero == ZeroStage::Zero0 {
            return all_reduce(bytes, self.all, &case.links);
        }
        gather_or_scatter(bytes, self.shard, &case.links) + self.between_copies(parameters, case)
    }

    /// Seconds to sum shards of gradients among those that hold the same.
    fn between_copies(&self, parameters: f64, case: &StepInputs<'_>) -> f64 {
        let bytes = case.engine.profile.gradient_bytes * parameters / self.shard.size();
        all_reduce(bytes, self.across, &case.links)
    }
}

/// Seconds to sum the gradients of `held` parameters.
fn reduce(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let experts =
        if held.experts > 0.0 { ReplicaGroups::experts(case).reduce(held.experts, case) } else { 0.0 };
    ReplicaGroups::dense(case).reduce(held.dense, case) + experts
}

/// Seconds to gather the weights of `held` parameters.
fn gather(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let experts =
        if held.experts > 0.0 { ReplicaGroups::experts(case).gather(held.experts, case) } else { 0.0 };
    ReplicaGroups::dense(case).gather(held.dense, case) + experts
}

/// What one micro-batch exposes of gathering a layer's weights twice and scattering its gradients once: what does not hide
/// behind the layer, and the copies and slowed products beside it. Shards of gradients are summed among copies behind it.
fn gathering(case: &StepInputs<'_>, layer: &LayerTimes) -> f64 {
    let held = LocalParameters::of_layer(case);
    let (hidden, gather, passes) = (case.engine.profile.hidden_data, gather(case, held), layer.passes());
    let copies = if case.config.shard() < case.config.replicas() {
        ReplicaGroups::dense(case).between_copies(held.all(), case)
    } else {
        0.0
    };
    let forward = (gather - hidden * passes.forward).max(0.0);
    let backward = (2.0 * gather + copies - hidden * (passes.backward + layer.recompute)).max(0.0);
    forward + backward + case.general().contention * 3.0 * gather.min(passes.forward)
}

/// Messages between stages: half of them or so wait for nothing in the steady phase.
fn messages(case: &StepInputs<'_>) -> f64 {
    2.0 * stage_message_seconds(case) * (steady_messages(case) + case.config.pipeline())
}

/// Seconds of one message from a stage to the next over the links of the case.
pub(crate) fn stage_message_seconds(case: &StepInputs<'_>) -> f64 {
    let leaves = topology::stages_span_hosts(case);
    let bytes = case.engine.profile.wire_bytes * case.tokens_between() * case.model.hidden;
    point_to_point(bytes, leaves, case.engine.profile.message, &case.links)
}

/// Messages of the steady phase that a stage waits for, each way.
pub(super) fn steady_messages(case: &StepInputs<'_>) -> f64 {
    (case.config.micro_batches() - 1.0) * case.config.chunks() * case.engine.profile.message_exposed
}

/// Exposed exchange among replicas of what a rank holds: gradients summed, weights gathered where they are sharded. It
/// overlaps with the last backward of the `slowest` stage; where gradients are scattered after each micro-batch, behind each.
pub(super) fn exposed_gradient_sync(case: &StepInputs<'_>, held: LocalParameters, slowest: f64) -> f64 {
    let (config, hidden) = (&case.config, case.engine.profile.hidden_data);
    if config.gathers_layers() {
        // The first gather and the last have nothing to hide behind.
        return 2.0 * gather(case, LocalParameters::of_layer(case));
    }
    let exposed = |all: f64, behind: f64| (all - hidden * behind).max((1.0 - hidden) * all);
    let reduced = reduce(case, held);
    let gathered = if config.arrangement.zero == ZeroStage::Zero0 { 0.0 } else { gather(case, held) };
    if config.scatters_each_micro_batch() {
        let each = exposed(reduced, BACKWARD * slowest);
        return config.micro_batches() * each + exposed(gathered, slowest / config.chunks());
    }
    exposed(reduced + gathered, slowest / config.chunks())
}

/// Share of a micro-batch that is its backward.
const BACKWARD: f64 = 2.0 / 3.0;

/// The optimizer over what a rank owns of what its stage holds.
pub(super) fn optimizer_seconds(case: &StepInputs<'_>, held: LocalParameters) -> f64 {
    let config = &case.config;
    let owned = held.dense / config.shard() + held.experts / config.expert_shard();
    case.general().optimizer_bytes * owned / case.device.stream
}

/// Seconds that hosts wait for the slowest of them in a step whose passes take `seconds`: the expected largest of as many
/// normal deviates, sqrt(2 ln hosts) of them (Dean and Barroso 2013 call it the tail at scale).
pub(super) fn straggler_seconds(case: &StepInputs<'_>, seconds: f64) -> f64 {
    let hosts = (case.config.ranks() / case.links.per_host).max(1.0);
    case.general().straggler * (2.0 * hosts.ln()).sqrt() * seconds
}

/// What a step costs whatever is trained; stages also agree on the norm.
pub(super) fn fixed_overhead(case: &StepInputs<'_>) -> f64 {
    let agree = if case.config.pipeline() > 1.0 { 4.0 * case.general().network_start } else { 0.0 };
    case.engine.profile.step + agree
}

//! Seconds of a step: layers in stages, what stages wait for, what replicas exchange, the optimizer.

use super::collective::{all_reduce, message, one_way};
use super::product::ceiling;
use super::{Case, Cut, Layer, Transformer, ends};
use dtrain_recipes::{PipelineSchedule, ZeroStage};

/// Seconds of a step, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// A layer there and back.
    pub layer: Layer,
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
    /// What grows with nothing.
    pub fixed: f64,
}

/// What one micro-batch costs, whatever the number of stages and of replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Unit {
    /// A layer there and back.
    pub layer: Layer,
    /// Seconds of a layer without experts there and back, in a model that has both kinds.
    pub dense: f64,
    /// Seconds of the head with its loss.
    pub head: f64,
    /// Seconds of the embedding.
    pub embedding: f64,
}

impl Unit {
    /// The unit of a case.
    pub fn of(case: &Case<'_>) -> Self {
        let has_both = case.model.experts.is_some_and(|experts| experts.dense_layers > 0.0);
        Self {
            layer: Layer::of(case),
            dense: if has_both { Layer::dense(case).total() } else { 0.0 },
            head: ends::head(case),
            embedding: ends::embedding(case),
        }
    }

    /// Seconds of all layers of `model`, each of which gathers its weights for `gathering` seconds.
    pub(crate) fn layers(&self, model: &Transformer, gathering: f64) -> f64 {
        let layers = model.layers + model.further();
        let dense = model.experts.map_or(0.0, |experts| experts.dense_layers);
        (layers - dense) * self.layer.total() + dense * self.dense + layers * gathering
    }
}

impl Step {
    /// The step of a case.
    pub fn of(case: &Case<'_>) -> Self {
        Self::with(case, &Unit::of(case))
    }

    /// The step of a case whose unit is known.
    pub fn with(case: &Case<'_>, unit: &Unit) -> Self {
        let cut = &case.cut;
        let gathering = if cut.gathers_layers() { gathering(case, &unit.layer) } else { 0.0 };
        let Stages { sum, slowest } = Stages::of(case, unit, gathering);
        let (bubble, messages) =
            if cut.pipeline > 1.0 { (bubble(cut, sum - slowest), messages(case)) } else { (0.0, 0.0) };
        let parameters = stage_parameters(case);
        Self {
            layer: unit.layer,
            head: unit.head,
            embedding: unit.embedding,
            gathering,
            micro_batches: cut.micro_batches(),
            slowest,
            bubble,
            messages,
            replicas: replicas(case, parameters, slowest),
            optimizer: optimizer(case, parameters),
            fixed: fixed(case),
        }
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.micro_batches * self.slowest
            + self.bubble
            + self.messages
            + self.replicas
            + self.optimizer
            + self.fixed
    }
}

/// Seconds that one micro-batch spends in the stages.
struct Stages {
    /// In all of them.
    sum: f64,
    /// In the slowest.
    slowest: f64,
}

impl Stages {
    /// The stages of a case where each layer gathers its weights for `gathering` seconds.
    fn of(case: &Case<'_>, unit: &Unit, gathering: f64) -> Self {
        let (model, cut) = (case.model, &case.cut);
        let all = unit.layers(model, gathering);
        let sum = all + unit.head + unit.embedding;
        if cut.pipeline <= 1.0 {
            return Self { sum, slowest: sum };
        }
        let (mean, stage) = (all / (model.layers + model.further()), model.layers / cut.pipeline);
        let first = ceiling(stage) * mean + unit.embedding;
        let last = stage.floor() * mean + unit.head;
        Self { sum, slowest: first.max(last) }
    }
}

/// Seconds that no order of passes and no sharding goes below: all micro-batches through the slowest stage.
pub(super) fn least(case: &Case<'_>, unit: &Unit) -> f64 {
    case.cut.micro_batches() * Stages::of(case, unit, 0.0).slowest
}

impl Step {
    /// Seconds by cause, in a fixed order; together they are the step.
    pub fn causes(&self, case: &Case<'_>) -> [(&'static str, f64); 9] {
        let (model, cut) = (case.model, &case.cut);
        self.causes_of(if cut.pipeline > 1.0 { ceiling(model.layers / cut.pipeline) } else { model.layers })
    }

    /// The same where the slowest stage has so many layers.
    pub(crate) fn causes_of(&self, layers: f64) -> [(&'static str, f64); 9] {
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
            ("optimizer and the rest", self.optimizer + self.fixed),
        ];
        let others: f64 = causes.iter().map(|(_, seconds)| seconds).sum();
        causes[0].1 = self.total() - others;
        causes
    }
}

/// Seconds the slowest stage stands still while the pipeline fills and drains, where all other stages together need
/// `others` seconds for a micro-batch. ZB-H1 leaves a third of it (Qi et al. 2023).
pub(super) fn bubble(cut: &Cut, others: f64) -> f64 {
    match cut.schedule {
        PipelineSchedule::ZeroBubble => others / 3.0,
        PipelineSchedule::Interleaved => others / cut.chunks,
        PipelineSchedule::Gpipe | PipelineSchedule::OneForwardOneBackward => others,
    }
}

/// Parameters of a layer on one rank.
fn layer_parameters(case: &Case<'_>) -> f64 {
    let (model, t) = (case.model, case.cut.tensor);
    match model.experts {
        Some(experts) => {
            (model.attention() + model.shared()) / t + model.expert() * experts.count / case.cut.expert
        }
        None => (model.attention() + model.feed_forward()) / t,
    }
}

/// Parameters of the fullest stage on one rank.
fn stage_parameters(case: &Case<'_>) -> f64 {
    parameters(case, ceiling(case.model.layers / case.cut.pipeline), true)
}

/// Parameters of a stage of `layers` on one rank; an end has the embedding or the head.
pub(super) fn parameters(case: &Case<'_>, layers: f64, is_end: bool) -> f64 {
    let model = case.model;
    let table = if is_end { model.embedding() / case.cut.tensor } else { 0.0 };
    layers * (layer_parameters(case) + model.router()) + table
}

/// Seconds to gather the weights of a layer.
fn gather(case: &Case<'_>) -> f64 {
    let group = case.links.group(case.cut.replicas(), case.cut.tensor);
    one_way(2.0 * layer_parameters(case), group, &case.links)
}

/// What one micro-batch exposes of gathering a layer's weights twice and scattering its gradients once: what does not hide
/// behind the layer, and the copies and slowed products beside it.
fn gathering(case: &Case<'_>, layer: &Layer) -> f64 {
    let (hidden, gather, passes) = (case.engine.profile.hidden_data, gather(case), layer.passes());
    let forward = (gather - hidden * passes.forward).max(0.0);
    let backward = (2.0 * gather - hidden * (passes.backward + layer.again)).max(0.0);
    forward + backward + case.general().contention * 3.0 * gather.min(passes.forward)
}

/// Messages between stages: half of them or so wait for nothing in the steady phase.
fn messages(case: &Case<'_>) -> f64 {
    2.0 * one_message(case) * (steady_messages(case) + case.cut.pipeline)
}

/// Seconds of one message from a stage to the next over the links of the case.
pub(crate) fn one_message(case: &Case<'_>) -> f64 {
    let leaves = case.cut.ranks() > case.links.per_host;
    let bytes = 2.0 * case.tokens_between() * case.model.hidden;
    message(bytes, leaves, case.engine.profile.message, &case.links)
}

/// Messages of the steady phase that a stage waits for, each way.
pub(super) fn steady_messages(case: &Case<'_>) -> f64 {
    (case.cut.micro_batches() - 1.0) * case.cut.chunks * case.engine.profile.message_exposed
}

/// Exposed exchange among replicas of so many `parameters` a rank: gradients summed, weights gathered where they are sharded.
/// It hides behind the last backward of the `slowest` stage.
pub(super) fn replicas(case: &Case<'_>, parameters: f64, slowest: f64) -> f64 {
    let (cut, profile) = (&case.cut, &case.engine.profile);
    if cut.gathers_layers() {
        // The first gather and the last have nothing to hide behind.
        return 2.0 * gather(case);
    }
    let group = case.links.group(cut.replicas(), cut.tensor);
    let gradients = profile.gradient_bytes * parameters;
    let all = match cut.zero {
        ZeroStage::Zero0 => all_reduce(gradients, group, &case.links),
        ZeroStage::Zero1 | ZeroStage::Zero2 | ZeroStage::Zero3 => {
            one_way(gradients, group, &case.links) + one_way(2.0 * parameters, group, &case.links)
        }
    };
    let hidden = profile.hidden_data;
    (all - hidden * slowest / cut.chunks).max((1.0 - hidden) * all)
}

/// The optimizer over what a rank owns of the `parameters` of its stage.
pub(super) fn optimizer(case: &Case<'_>, parameters: f64) -> f64 {
    let owners = if case.cut.zero == ZeroStage::Zero0 { 1.0 } else { case.cut.replicas() };
    case.general().optimizer_bytes * parameters / owners / case.device.stream
}

/// What a step costs whatever is trained; stages also agree on the norm.
pub(super) fn fixed(case: &Case<'_>) -> f64 {
    let agree = if case.cut.pipeline > 1.0 { 4.0 * case.general().network_start } else { 0.0 };
    case.engine.profile.step + agree
}

//! Seconds of one transformer layer on one rank, for one micro-batch.

use super::adapters::{adapter_operations, adapter_seconds, model_linear};
use super::collective::{all_reduce, all_to_all, gather_or_scatter, point_to_point};
use super::constants::GeneralConstants;
use super::matmul::{ForwardBackward, alignment, grouped_linear, linear};
use super::overlap::exposed;
use super::search::to_count;
use super::transformer::{ExpertDims, LatentDims, WindowDims};
use super::{StepInputs, topology};
use crate::engine::{AttentionKernel, overlap};
use dtrain_protocol::ContextExchange;

/// Seconds of one transformer layer for one micro-batch, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerTimes {
    /// Seconds of the matrix products before and after the core of attention.
    pub projections: ForwardBackward,
    /// Seconds of the core of attention: scores, softmax and weighted values.
    pub core: ForwardBackward,
    /// Seconds of the matrix products of the feed-forward block or of the experts.
    pub feed_forward: ForwardBackward,
    /// Seconds of element-wise work: norms, residuals, activations, positions and copies.
    pub elementwise: ForwardBackward,
    /// Seconds of the gaps between kernels on the device.
    pub idle: ForwardBackward,
    /// Seconds of the host to launch the kernels, while the device computes.
    pub host: ForwardBackward,
    /// Seconds of tensor-parallel communication that are exposed.
    pub tensor: ForwardBackward,
    /// Seconds of context-parallel communication that are exposed.
    pub context: ForwardBackward,
    /// Seconds of expert-parallel communication that are exposed.
    pub expert: ForwardBackward,
    /// Seconds of recomputation in the backward, averaged over the layers.
    pub recompute: f64,
}

/// Seconds of each kind of layer of a model: with experts and without.
#[derive(Clone, Copy, Debug)]
pub(super) struct LayerTimesByKind {
    pub(super) layer: LayerTimes,
    /// Times of the layers without experts; `None` unless the model has both kinds.
    pub(super) dense: Option<LayerTimes>,
}

impl LayerTimesByKind {
    pub(super) fn of(case: &StepInputs<'_>) -> Self {
        let has_both = case.model.experts.is_some_and(|experts| experts.dense_layers > 0.0);
        Self { layer: LayerTimes::of(case), dense: has_both.then(|| LayerTimes::dense(case)) }
    }

    /// Returns the layer times for the context exchange and the sequence parallelism of `case`, on which the
    /// matrix products do not depend.
    pub(super) fn with_exchange(self, case: &StepInputs<'_>) -> Self {
        let around = |layer: LayerTimes, experts| {
            LayerTimes::around(case, experts, layer.projections, layer.feed_forward)
        };
        Self {
            layer: around(self.layer, case.model.experts),
            dense: self.dense.map(|dense| around(dense, None)),
        }
    }
}

/// Number of channels of queries, keys and attention output on one rank.
#[derive(Clone, Copy, Debug)]
struct HeadChannels {
    queries: f64,
    keys: f64,
    values: f64,
}

impl LayerTimes {
    /// Computes the times of a layer of the model, with experts if the model has any.
    pub fn of(case: &StepInputs<'_>) -> Self {
        Self::with(case, case.model.experts)
    }

    /// Computes the times of a layer without experts.
    pub fn dense(case: &StepInputs<'_>) -> Self {
        Self::with(case, None)
    }

    fn with(case: &StepInputs<'_>, experts: Option<ExpertDims>) -> Self {
        Self::around(case, experts, projections(case), feed_forward(case, experts))
    }

    fn around(
        case: &StepInputs<'_>,
        experts: Option<ExpertDims>,
        projections: ForwardBackward,
        feed_forward: ForwardBackward,
    ) -> Self {
        let operations = operations(case, experts);
        let core = attention_core(case);
        let (tensor, context) = (tensor(case, experts.is_some()), context(case, core));
        let layer = Self {
            projections,
            core,
            feed_forward,
            elementwise: elementwise(case, experts) + adapter_seconds(case),
            idle: in_both(operations, case.general().kernel, case.general()),
            host: host(case, operations, experts),
            tensor,
            context,
            expert: exchange(case, experts),
            recompute: 0.0,
        };
        layer.with_recompute(case)
    }

    /// Returns the busy and idle seconds of the device, without communication.
    pub fn computed(&self) -> ForwardBackward {
        self.projections + self.core + self.feed_forward + self.elementwise + self.idle
    }

    /// Returns the seconds of all communication that is exposed.
    pub fn communication(&self) -> ForwardBackward {
        self.tensor + self.context + self.expert
    }

    /// Returns the seconds of a forward and a backward, without recomputation.
    pub fn passes(&self) -> ForwardBackward {
        self.computed().max(self.host) + self.communication()
    }

    /// Returns the seconds of one micro-batch: forward, backward and recomputation.
    pub fn total(&self) -> f64 {
        self.passes().sum() + self.recompute
    }

    /// Returns `true` if launching the kernels of the layer takes longer than running them.
    pub fn is_bound_by_host(&self) -> bool {
        self.host.sum() > self.computed().sum() + self.communication().sum()
    }
}

/// Returns the seconds of a forward of `operations` kernels that take `seconds` each, and of its backward.
fn in_both(operations: f64, seconds: f64, c: &GeneralConstants) -> ForwardBackward {
    ForwardBackward { forward: 1.0, backward: c.operations_backward } * (operations * seconds)
}

fn heads(case: &StepInputs<'_>) -> HeadChannels {
    let (model, t) = (case.model, case.config.tensor());
    HeadChannels {
        queries: model.heads / t * model.head,
        // If there are fewer key-value heads than ranks, several ranks hold each.
        keys: (model.kv_heads / t).max(1.0) * model.head,
        values: model.heads / t * model.head_value,
    }
}

/// Returns the seconds of the matrix products before and after the core of attention.
fn projections(case: &StepInputs<'_>) -> ForwardBackward {
    let (model, tokens, device) = (case.model, case.tokens(), &case.device);
    let HeadChannels { queries, keys, values } = heads(case);
    let before = match model.latent {
        None => model_linear(case, tokens, queries + 2.0 * keys, model.hidden),
        Some(LatentDims { query, key_value, rotary }) => {
            let expanded = model.heads / case.config.tensor() * (model.head - rotary + model.head_value);
            linear(tokens, query, model.hidden, device)
                + linear(tokens, queries, query, device)
                + linear(tokens, key_value + rotary, model.hidden, device)
                + linear(tokens, expanded, key_value, device)
        }
    };
    before + model_linear(case, tokens, model.hidden, values)
}

/// Returns the seconds of the core of attention: scores, softmax and weighted values.
fn attention_core(case: &StepInputs<'_>) -> ForwardBackward {
    let (c, model, device) = (case.general(), case.model, &case.device);
    let (micro, s) = (case.config.micro(), model.sequence);
    let local = model.heads / case.config.tensor();
    let width = local * (model.head + model.head_value) / case.config.context();
    let all = 2.0 * micro * s * s * width;
    if case.kernel.is_fused() {
        let causal = 0.5 * all * short_pieces(case);
        let attended = model.window.map_or(causal, |WindowDims { tokens, share }| {
            (1.0 - share) * causal + share * causal.min(2.0 * micro * s * tokens * width)
        });
        let forward = attended / device.attention;
        return ForwardBackward { forward, backward: c.flash_backward * forward };
    }
    let scores = 2.0 * micro * local * s * s / case.config.context();
    let passes = if case.kernel == AttentionKernel::Plain { c.plain } else { 1.0 } * scores / device.stream;
    let rate = device.products * c.unfused * alignment(model.head, device).min(alignment(s, device));
    ForwardBackward {
        forward: all / rate + c.scores_forward * passes,
        backward: 2.0 * all / rate + c.scores_backward * passes,
    }
}

/// Returns the slowdown factor of fused attention: short sequences are less efficient, as are the pieces of a
/// ring, where the causal mask makes ranks wait for each other.
fn short_pieces(case: &StepInputs<'_>) -> f64 {
    let (context, s, c) = (case.config.context(), case.model.sequence, case.general());
    let short = 1.0 + c.attention_short / s;
    if context <= 1.0 || !case.config.arrangement.context_exchange.is_ring() {
        return short;
    }
    let slower = |length: f64| 1.0 + c.attention_ramp / length;
    short * slower(0.5 * s / context) / slower(s) * (1.0 + c.ring * (context - 1.0) / context)
}

/// Returns the seconds of the matrix products of the feed-forward block, or of the experts.
fn feed_forward(case: &StepInputs<'_>, experts: Option<ExpertDims>) -> ForwardBackward {
    let (model, tokens, device) = (case.model, case.tokens(), &case.device);
    let (h, t, up) = (model.hidden, case.config.tensor(), model.matrices() - 1.0);
    let dense =
        |width: f64| model_linear(case, tokens, up * width / t, h) + model_linear(case, tokens, h, width / t);
    let Some(experts) = experts else { return dense(model.ffn) };
    let c = case.general();
    let local = (experts.count / case.config.expert()).max(1.0);
    let spread = if experts.drop { 1.0 } else { c.imbalance };
    let share = case.config.expert_tensor();
    let each = (tokens * share / t * experts.chosen * spread / local).max(1.0);
    let product = |outputs, inputs| grouped_linear(each, outputs, inputs, local, c.grouped, device);
    let routed = product(up * experts.ffn / share, h) + product(h, experts.ffn / share);
    if experts.shared > 0.0 { routed + dense(experts.shared) } else { routed }
}

/// Returns the seconds of the memory traffic of everything except matrix products and the core of attention.
fn elementwise(case: &StepInputs<'_>, experts: Option<ExpertDims>) -> ForwardBackward {
    let (c, model, config) = (case.general(), case.model, &case.config);
    let (tokens, h) = (case.tokens(), model.hidden);
    let HeadChannels { queries, keys, .. } = heads(case);
    let inner = 2.0 * tokens * (queries + 2.0 * keys);
    let (wide, permuted) = match experts {
        None => (tokens * model.ffn / config.tensor(), 0.0),
        Some(experts) => {
            let share = config.expert_tensor();
            let routed = tokens * share / config.tensor() * experts.chosen;
            (routed * experts.ffn / share + tokens * experts.shared / config.tensor(), 2.0 * routed * h)
        }
    };
    let activation = if model.is_gated { (3.0, 5.0) } else { (4.0, 6.0) };
    let between = 2.0 * case.tokens_between() * h;
    let bytes = |around: f64, activation: f64, routing: f64| {
        case.engine.profile.passes * (around * between + 2.0 * inner + activation * 2.0 * wide)
            + routing * c.expert_passes * permuted
    };
    ForwardBackward { forward: bytes(12.0, activation.0, 1.0), backward: bytes(16.0, activation.1, 1.5) }
        * (1.0 / case.device.stream)
}

/// Returns the number of kernels in the forward of a layer.
fn operations(case: &StepInputs<'_>, experts: Option<ExpertDims>) -> f64 {
    let c = case.general();
    let all = if experts.is_some() { c.operations_experts } else { c.operations };
    let tensor = if case.config.tensor() > 1.0 { c.operations_tensor } else { 0.0 };
    let unfused = if case.kernel.is_fused() { 0.0 } else { c.operations_unfused };
    all * case.engine.profile.operations + tensor + unfused + adapter_operations(case)
}

/// Returns the seconds of the host to launch `operations` kernels, and to learn how many tokens each expert
/// gets.
fn host(case: &StepInputs<'_>, operations: f64, experts: Option<ExpertDims>) -> ForwardBackward {
    let routing =
        case.general().routing * experts.map_or(0.0, |experts| if experts.drop { 0.5 } else { 1.0 });
    let local = experts.map_or(0.0, |experts| (experts.count / case.config.expert()).max(1.0));
    let started = operations + case.general().operations_expert * local;
    in_both(started, case.engine.profile.launch, case.general())
        + ForwardBackward { forward: routing, backward: routing }
}

/// Returns the exposed seconds of tensor-parallel all-reduces (or all-gathers and reduce-scatters).
fn tensor(case: &StepInputs<'_>, has_experts: bool) -> ForwardBackward {
    let (config, profile) = (&case.config, &case.engine.profile);
    if config.tensor() <= 1.0 {
        return ForwardBackward::default();
    }
    let group = topology::tensor_group(case);
    let is_in_pieces = overlap::is_tensor_in_pieces(&config.arrangement, to_count(case.links.per_host));
    let hidden = if is_in_pieces { profile.hidden_tensor } else { 0.0 };
    let bytes = profile.wire_bytes * case.tokens() * case.model.hidden;
    let late = profile.late * (config.tensor() - 1.0);
    let pair = all_reduce(bytes, group, &case.links) + 2.0 * late;
    let again = if config.arrangement.sequence { case.general().gather_again } else { 0.0 };
    let gather = gather_or_scatter(bytes, group, &case.links) + late;
    // Experts are not split here: only attention communicates.
    let count = if has_experts { 1.0 } else { 2.0 };
    ForwardBackward { forward: pair, backward: pair + again * gather } * (count * exposed(group, hidden))
}

/// Returns the exposed seconds of exchanging keys and values (and queries, if heads are exchanged). A ring
/// overlaps with the pieces of `core`.
fn context(case: &StepInputs<'_>, core: ForwardBackward) -> ForwardBackward {
    let config = &case.config;
    if config.context() <= 1.0 {
        return ForwardBackward::default();
    }
    let (group, tokens) = (topology::context_group(case), case.tokens());
    let HeadChannels { queries, keys, values } = heads(case);
    let wire = case.engine.profile.wire_bytes;
    let gathered = |bytes: f64| gather_or_scatter(bytes, group, &case.links);
    match config.arrangement.context_exchange {
        ContextExchange::Ring => {
            let hop = point_to_point(2.0 * wire * tokens * keys, group.spans_hosts(), 1.0, &case.links);
            let exposed =
                |hops: f64, piece: f64| (hops * hop - 0.8 * piece / config.context()).max(0.1 * hops * hop);
            ForwardBackward { forward: exposed(1.0, core.forward), backward: exposed(2.0, core.backward) }
                * (config.context() - 1.0)
        }
        // Forwards gather; backwards gather again and reduce-scatter gradients.
        ContextExchange::AllGather => {
            ForwardBackward { forward: 1.0, backward: 2.0 }
                * gathered(2.0 * wire * tokens * keys * config.context())
        }
        ContextExchange::AllToAll => {
            let bytes = wire * tokens * (queries + 2.0 * keys + values);
            let one = all_to_all(bytes, None, group, &case.links);
            ForwardBackward { forward: one, backward: one }
        }
    }
}

/// Returns the exposed seconds of the all-to-alls that send tokens to experts and back.
fn exchange(case: &StepInputs<'_>, experts: Option<ExpertDims>) -> ForwardBackward {
    let (c, config, profile) = (case.general(), &case.config, &case.engine.profile);
    let Some(experts) = experts else { return ForwardBackward::default() };
    let routed = case.tokens() / config.tensor() * experts.chosen;
    let once = profile.routes_by_host.then_some(experts.chosen);
    let group = topology::expert_group(case);
    let bytes = profile.wire_bytes * routed * case.model.hidden * c.imbalance;
    let hidden = 1.0 - profile.hidden_expert;
    let both = 2.0 * all_to_all(bytes, once, group, &case.links) * hidden;
    // Tensor-parallel ranks of an expert gather its tokens, and reduce its outputs.
    let share = config.expert_tensor();
    let shared = if share > 1.0 && config.expert() > 1.0 {
        let group = topology::tensor_group(case);
        all_reduce(bytes * share, group, &case.links) * exposed(group, profile.hidden_expert)
    } else {
        0.0
    };
    ForwardBackward { forward: both + shared, backward: both + shared }
}

//! Seconds of one layer on one rank, for one micro-batch.

use super::collective::{all_reduce, all_to_all, message, one_way};
use super::constants::General;
use super::hardware::Kernel;
use super::product::{Passes, alignment, grouped, linear};
use super::transformer::{Experts, Latent, Window};
use super::{Again, Case, Group, groups};
use dtrain_protocol::ContextExchange;

/// Seconds of one layer, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Layer {
    /// Products of the attention's projections.
    pub projections: Passes,
    /// Scores, softmax and their product with the values.
    pub core: Passes,
    /// Products of the feed-forward, or of experts.
    pub feed_forward: Passes,
    /// Norms, residuals, activations, positions, copies.
    pub elementwise: Passes,
    /// Moments in which the device idles between operations.
    pub idle: Passes,
    /// What the host needs to start the operations, beside all of the above.
    pub host: Passes,
    /// Exposed communication among ranks that share matrices.
    pub tensor: Passes,
    /// Exposed communication among ranks that share sequences.
    pub context: Passes,
    /// Exposed exchange with experts.
    pub expert: Passes,
    /// What the backward computes again, in the mean of all layers.
    pub again: f64,
}

/// The layers of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers {
    pub(super) layer: Layer,
    /// Of the layers without experts, where there are both.
    pub(super) dense: Option<Layer>,
}

impl Layers {
    pub(super) fn of(case: &Case<'_>) -> Self {
        let has_both = case.model.experts.is_some_and(|experts| experts.dense_layers > 0.0);
        Self { layer: Layer::of(case), dense: has_both.then(|| Layer::dense(case)) }
    }

    /// These layers in a case that differs only in how keys and values are exchanged and whether ranks hold the sequence in parts:
    /// their products are the same.
    pub(super) fn exchanging(self, case: &Case<'_>) -> Self {
        let around =
            |layer: Layer, experts| Layer::around(case, experts, layer.projections, layer.feed_forward);
        Self {
            layer: around(self.layer, case.model.experts),
            dense: self.dense.map(|dense| around(dense, None)),
        }
    }
}

/// Channels of one rank: of queries, of keys, of values that leave attention.
#[derive(Clone, Copy, Debug)]
struct Heads {
    queries: f64,
    keys: f64,
    values: f64,
}

impl Layer {
    /// A layer of the model: with experts, where it has them.
    pub fn of(case: &Case<'_>) -> Self {
        Self::with(case, case.model.experts)
    }

    /// A layer without experts.
    pub fn dense(case: &Case<'_>) -> Self {
        Self::with(case, None)
    }

    fn with(case: &Case<'_>, experts: Option<Experts>) -> Self {
        Self::around(case, experts, projections(case), feed_forward(case, experts))
    }

    fn around(case: &Case<'_>, experts: Option<Experts>, projections: Passes, feed_forward: Passes) -> Self {
        let operations = operations(case, experts);
        let core = core(case);
        let (tensor, context) = (tensor(case, experts.is_some()), context(case, core));
        let layer = Self {
            projections,
            core,
            feed_forward,
            elementwise: elementwise(case, experts),
            idle: in_both(operations, case.general().kernel, case.general()),
            host: host(case, operations, experts),
            tensor,
            context,
            expert: exchange(case, experts),
            again: 0.0,
        };
        layer.computing_again(case)
    }

    /// The same layer where its backward computes again what the case says, in which nothing else may differ.
    #[must_use]
    pub(super) fn computing_again(self, case: &Case<'_>) -> Self {
        let again = case.config.share_again() * self.computed_again(case.again(), case.general());
        Self { again, ..self }
    }

    /// What the device does.
    pub fn computed(&self) -> Passes {
        self.projections + self.core + self.feed_forward + self.elementwise + self.idle
    }

    /// What is exposed of its communication.
    pub fn communication(&self) -> Passes {
        self.tensor + self.context + self.expert
    }

    /// A forward and a backward, without what is computed again.
    pub fn passes(&self) -> Passes {
        self.computed().max(self.host) + self.communication()
    }

    /// One micro-batch there and back.
    pub fn total(&self) -> f64 {
        self.passes().sum() + self.again
    }

    /// Whether the host cannot start operations as fast as the device does them.
    pub fn is_bound_by_host(&self) -> bool {
        self.host.sum() > self.computed().sum() + self.communication().sum()
    }

    fn computed_again(&self, again: Again, c: &General) -> f64 {
        match again {
            Again::Nothing => 0.0,
            Again::Attention => self.core.forward,
            Again::EverySecondProduct => {
                let products = (self.projections + self.feed_forward).forward;
                c.product_again * products + self.elementwise.forward
            }
            Again::All => self.passes().forward,
        }
    }
}

/// `operations` of a forward at `seconds` each, and those of its backward.
fn in_both(operations: f64, seconds: f64, c: &General) -> Passes {
    Passes { forward: 1.0, backward: c.operations_backward } * (operations * seconds)
}

fn heads(case: &Case<'_>) -> Heads {
    let (model, t) = (case.model, case.config.tensor());
    Heads {
        queries: model.heads / t * model.head,
        // Fewer heads than ranks are held by several of them.
        keys: (model.kv_heads / t).max(1.0) * model.head,
        values: model.heads / t * model.head_value,
    }
}

/// Products before and after the core of attention.
fn projections(case: &Case<'_>) -> Passes {
    let (model, tokens, device) = (case.model, case.tokens(), &case.device);
    let Heads { queries, keys, values } = heads(case);
    let before = match model.latent {
        None => linear(tokens, queries + 2.0 * keys, model.hidden, device),
        Some(Latent { query, key_value, rotary }) => {
            let expanded = model.heads / case.config.tensor() * (model.head - rotary + model.head_value);
            linear(tokens, query, model.hidden, device)
                + linear(tokens, queries, query, device)
                + linear(tokens, key_value + rotary, model.hidden, device)
                + linear(tokens, expanded, key_value, device)
        }
    };
    before + linear(tokens, model.hidden, values, device)
}

/// Scores, softmax and their product with the values.
fn core(case: &Case<'_>) -> Passes {
    let (c, model, device) = (case.general(), case.model, &case.device);
    let (micro, s) = (case.config.micro(), model.sequence);
    let local = model.heads / case.config.tensor();
    let width = local * (model.head + model.head_value) / case.config.context();
    let all = 2.0 * micro * s * s * width;
    if case.kernel.is_fused() {
        let causal = 0.5 * all * pieces(case);
        let attended = model.window.map_or(causal, |Window { tokens, share }| {
            (1.0 - share) * causal + share * causal.min(2.0 * micro * s * tokens * width)
        });
        let forward = attended / device.attention;
        return Passes { forward, backward: c.flash_backward * forward };
    }
    let scores = 2.0 * micro * local * s * s / case.config.context();
    let passes = if case.kernel == Kernel::Plain { c.plain } else { 1.0 } * scores / device.stream;
    let rate = device.products * c.unfused * alignment(model.head, device).min(alignment(s, device));
    Passes {
        forward: all / rate + c.scores_forward * passes,
        backward: 2.0 * all / rate + c.scores_backward * passes,
    }
}

/// Factor on the seconds of fused attention of a sequence that goes round in pieces: short ones do not reach the rate of long
/// ones, and ranks wait for each other's halves of the mask.
fn pieces(case: &Case<'_>) -> f64 {
    let (context, s, ramp) = (case.config.context(), case.model.sequence, case.general().attention_ramp);
    if context <= 1.0 || !case.config.arrangement.context_exchange.is_ring() {
        return 1.0;
    }
    let slower = |length: f64| 1.0 + ramp / length;
    slower(0.5 * s / context) / slower(s) * (1.0 + case.general().ring * (context - 1.0) / context)
}

/// Products of the feed-forward, or of experts.
fn feed_forward(case: &Case<'_>, experts: Option<Experts>) -> Passes {
    let (model, tokens, device) = (case.model, case.tokens(), &case.device);
    let (h, t, up) = (model.hidden, case.config.tensor(), model.matrices() - 1.0);
    let dense = |width: f64| linear(tokens, up * width / t, h, device) + linear(tokens, h, width / t, device);
    let Some(experts) = experts else { return dense(model.ffn) };
    let c = case.general();
    let local = (experts.count / case.config.expert()).max(1.0);
    let spread = if experts.drop { 1.0 } else { c.imbalance };
    let share = case.config.expert_tensor();
    let each = (tokens * share / t * experts.chosen * spread / local).max(1.0);
    let product = |outputs, inputs| grouped(each, outputs, inputs, local, c.grouped, device);
    let routed = product(up * experts.ffn / share, h) + product(h, experts.ffn / share);
    if experts.shared > 0.0 { routed + dense(experts.shared) } else { routed }
}

/// Traffic of all that is no product.
fn elementwise(case: &Case<'_>, experts: Option<Experts>) -> Passes {
    let (c, model, config) = (case.general(), case.model, &case.config);
    let (tokens, h) = (case.tokens(), model.hidden);
    let Heads { queries, keys, .. } = heads(case);
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
    Passes { forward: bytes(12.0, activation.0, 1.0), backward: bytes(16.0, activation.1, 1.5) }
        * (1.0 / case.device.stream)
}

/// Operations of a forward.
fn operations(case: &Case<'_>, experts: Option<Experts>) -> f64 {
    let c = case.general();
    let all = if experts.is_some() { c.operations_experts } else { c.operations };
    let tensor = if case.config.tensor() > 1.0 { c.operations_tensor } else { 0.0 };
    let unfused = if case.kernel.is_fused() { 0.0 } else { c.operations_unfused };
    all * case.engine.profile.operations + tensor + unfused
}

/// What the host needs to start `operations`, and to learn how many tokens go to which expert.
fn host(case: &Case<'_>, operations: f64, experts: Option<Experts>) -> Passes {
    let routing =
        case.general().routing * experts.map_or(0.0, |experts| if experts.drop { 0.5 } else { 1.0 });
    let local = experts.map_or(0.0, |experts| (experts.count / case.config.expert()).max(1.0));
    let started = operations + case.general().operations_expert * local;
    in_both(started, case.engine.profile.launch, case.general())
        + Passes { forward: routing, backward: routing }
}

/// Exposed all-reduces (or pairs of all-gather and reduce-scatter) among ranks that share matrices.
fn tensor(case: &Case<'_>, has_experts: bool) -> Passes {
    let (config, profile) = (&case.config, &case.engine.profile);
    if config.tensor() <= 1.0 {
        return Passes::default();
    }
    let group = groups::tensor(case);
    let bytes = profile.wire_bytes * case.tokens() * case.model.hidden;
    let late = profile.late * (config.tensor() - 1.0);
    let pair = all_reduce(bytes, group, &case.links) + 2.0 * late;
    let again = if config.arrangement.sequence { case.general().gather_again } else { 0.0 };
    let gather = one_way(bytes, group, &case.links) + late;
    // Experts are not cut: only attention is entered and left.
    let count = if has_experts { 1.0 } else { 2.0 };
    Passes { forward: pair, backward: pair + again * gather }
        * (count * exposed(group, profile.hidden_tensor))
}

/// Share of communication that is exposed, where engines of the style hide `hidden` of it. Chunks that overlap with products are
/// as long as links within a host take: nothing hides between hosts.
fn exposed(group: Group, hidden: f64) -> f64 {
    if group.leaves() { 1.0 } else { 1.0 - hidden }
}

/// Exposed exchange of keys and values, and of queries where heads are exchanged. A ring hides behind the pieces of `core`.
fn context(case: &Case<'_>, core: Passes) -> Passes {
    let config = &case.config;
    if config.context() <= 1.0 {
        return Passes::default();
    }
    let (group, tokens) = (groups::context(case), case.tokens());
    let Heads { queries, keys, values } = heads(case);
    let wire = case.engine.profile.wire_bytes;
    let gathered = |bytes: f64| one_way(bytes, group, &case.links);
    match config.arrangement.context_exchange {
        ContextExchange::Ring => {
            let hop = message(2.0 * wire * tokens * keys, group.leaves(), 1.0, &case.links);
            let exposed =
                |hops: f64, piece: f64| (hops * hop - 0.8 * piece / config.context()).max(0.1 * hops * hop);
            Passes { forward: exposed(1.0, core.forward), backward: exposed(2.0, core.backward) }
                * (config.context() - 1.0)
        }
        // Forwards gather; backwards gather again and scatter gradients.
        ContextExchange::AllGather => {
            Passes { forward: 1.0, backward: 2.0 } * gathered(2.0 * wire * tokens * keys * config.context())
        }
        ContextExchange::AllToAll => {
            let bytes = wire * tokens * (queries + 2.0 * keys + values);
            let one = all_to_all(bytes, None, group, &case.links);
            Passes { forward: one, backward: one }
        }
    }
}

/// Exposed dispatch of tokens to experts and their way back.
fn exchange(case: &Case<'_>, experts: Option<Experts>) -> Passes {
    let (c, config, profile) = (case.general(), &case.config, &case.engine.profile);
    let Some(experts) = experts else { return Passes::default() };
    let routed = case.tokens() / config.tensor() * experts.chosen;
    let once = profile.routes_by_host.then_some(experts.chosen);
    let group = groups::expert(case);
    let bytes = profile.wire_bytes * routed * case.model.hidden * c.imbalance;
    let hidden = 1.0 - profile.hidden_expert;
    let both = 2.0 * all_to_all(bytes, once, group, &case.links) * hidden;
    // Ranks that share the matrices of an expert gather its tokens, and sum what becomes of them.
    let share = config.expert_tensor();
    let shared = if share > 1.0 && config.expert() > 1.0 {
        let group = groups::tensor(case);
        all_reduce(bytes * share, group, &case.links) * exposed(group, profile.hidden_expert)
    } else {
        0.0
    };
    Passes { forward: both + shared, backward: both + shared }
}

//! Megatron-LM: the layouts it can run, from `megatron/training/arguments.py` and `megatron/core` of
//! megatron-core 0.19.2.

use super::{Engine, Overlaps, TrainingSpec, UnsupportedLayout, rules, state_support, unsupported};
use crate::engine::SoftwareStyle;
use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{
    Activation, Decoder, OptimizerKind, PipelineSchedule, Precision, Recompute, RotaryScaling, ZeroStage,
};

/// The engine Megatron-LM, on Megatron-Core.
#[derive(Clone, Copy, Debug)]
pub struct Megatron;

impl Engine for Megatron {
    fn name(&self) -> &'static str {
        "megatron"
    }

    fn title(&self) -> &'static str {
        "Megatron-LM"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::Modern
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring, ContextExchange::AllGather, ContextExchange::AllToAll]
    }

    /// `--tp-comm-overlap` needs the buffers of Transformer Engine, which are for 16 bits and fp8 and unknown to
    /// the matrices of latent attention. `--overlap-moe-expert-parallel-comm` keeps the activations of two
    /// micro-batches at once, for which no estimate of memory leaves room, so it is not used.
    fn overlaps(&self, training: &TrainingSpec, precision: Precision) -> Overlaps {
        let has_buffers = matches!(precision, Precision::Bf16 | Precision::Fp8);
        Overlaps { tensor: has_buffers && training.model.latent.is_none(), experts: false, ..Overlaps::ALL }
    }

    fn unsupported_training(&self, training: &TrainingSpec, _: Precision) -> Option<UnsupportedLayout> {
        rules::training_settings(self, training).or_else(|| family(&training.model))
    }

    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        self.unsupported_training(training, arrangement.precision)
            .or_else(|| optimizer(training, arrangement))
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| state_support::of_layout(self, arrangement))
            .or_else(|| rules::exact(arrangement))
            .or_else(|| pipeline(arrangement))
            .or_else(|| matrices(model, arrangement))
            .or_else(|| context(model, arrangement))
            .or_else(|| experts(model, arrangement))
            .or_else(|| recompute(model, arrangement))
    }
}

/// Checks `--optimizer`: Megatron-FSDP, which shards gradients and weights, asserts `adam` or `sgd`, and the
/// distributed optimizer, which shards its state, has no state for `sgd`.
fn optimizer(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.zero >= ZeroStage::Zero2 && training.optimizer == OptimizerKind::Lion {
        return unsupported(
            "train.optimizer = \"lion\" with zero 2 or 3",
            "use adamw, or pin layout.zero = 0 or 1",
        );
    }
    if arrangement.zero != ZeroStage::Zero0 && training.optimizer == OptimizerKind::Sgd {
        return unsupported(
            "train.optimizer = \"sgd\" with zero 1, 2 or 3",
            "use adamw, or pin layout.zero = 0",
        );
    }
    let known = [OptimizerKind::Adamw, OptimizerKind::Lion, OptimizerKind::Sgd];
    rules::optimizer(training, &known, "use adamw (sgd with zero 0, lion with zero 0 or 1)")
}

/// Checks biases, activation and the parts of newer models: `--add-qkv-bias` adds to `--disable-bias-linear`, and the fused kernel with
/// bias uses the tanh form of GELU.
fn family(model: &Decoder) -> Option<UnsupportedLayout> {
    let can = rules::NewerFeatures { llama3_scaling: true, qk_norm: true, fp8: true };
    if let Some(refused) = rules::variants(model, can) {
        return Some(refused);
    }
    // `_apply_scaling` of core/models/common/embeddings/rotary_pos_embedding.py has these numbers in it.
    if let Some(RotaryScaling::Llama3 { low, high, original_context, .. }) = model.rotary_scaling
        && (low, high, original_context) != (1.0, 4.0, 8192)
    {
        return unsupported(
            "model.rotary_scaling with other numbers than Llama 3.1's (low 1, high 4, original_context 8192)",
            "set these, or use an engine with models of transformers",
        );
    }
    if model.activation == Activation::Geglu {
        return unsupported(
            "model.activation = \"geglu\"",
            "use swiglu, or an engine with models of transformers",
        );
    }
    if model.bias && !model.qkv_bias() {
        return unsupported("biases everywhere but at queries, keys and values", "set model.qkv_bias = true");
    }
    if model.activation == Activation::GeluTanh && (!model.bias || model.experts.is_some()) {
        return unsupported(
            "model.activation = \"gelu_tanh\" without biases",
            "set model.bias = true or another activation",
        );
    }
    None
}

/// Checks the schedule against `forward_backward_func` of `core/pipeline_parallel/schedules.py`: 1F1B,
/// interleaved or none.
fn pipeline(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.layout.pipeline.get() == 1 {
        return None;
    }
    if arrangement.zero >= ZeroStage::Zero2 {
        return unsupported(
            "zero 2 or 3 in a pipeline",
            "Megatron-FSDP shards gradients without one; pin layout.zero = 1 or layout.pipeline = 1",
        );
    }
    match arrangement.schedule {
        PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved => None,
        PipelineSchedule::Gpipe => {
            unsupported("a pipeline schedule of gpipe", "pin layout.schedule = \"1f1b\"")
        }
        PipelineSchedule::ZeroBubble => {
            unsupported("a pipeline schedule of zero_bubble", "pin layout.schedule = \"1f1b\"")
        }
    }
}

/// Checks key-value heads: they divide among tensor ranks, or several ranks hold each head.
fn matrices(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let (tensor, context) = (arrangement.layout.tensor.get(), arrangement.layout.context.get());
    if !model.kv_heads.is_multiple_of(tensor) && !tensor.is_multiple_of(model.kv_heads) {
        return unsupported(
            "tensor ranks that are neither a divisor nor a multiple of the key and value heads",
            "pin layout.tensor to a divisor of model.kv_heads",
        );
    }
    if arrangement.sequence && !(model.context / context).is_multiple_of(tensor) {
        return unsupported("sequences that the tensor ranks do not divide", "pin layout.sequence = false");
    }
    None
}

/// Checks context parallelism, which is Transformer Engine's: 16 bits, and equal pieces from both ends of a
/// sequence.
fn context(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let (tensor, context) = (arrangement.layout.tensor.get(), arrangement.layout.context.get());
    if context == 1 {
        return None;
    }
    if arrangement.precision == Precision::F32 {
        return unsupported("context parallelism in f32", "pin train.precision = \"bf16\"");
    }
    if !model.context.is_multiple_of(2 * context) {
        return unsupported(
            "sequences that are no multiple of twice the context ranks",
            "pin another layout.context",
        );
    }
    let is_whole = |heads: u32| (heads / tensor).is_multiple_of(context) && heads >= tensor;
    if arrangement.context_exchange == ContextExchange::AllToAll
        && !(is_whole(model.heads) && is_whole(model.kv_heads))
    {
        return unsupported(
            "context parallelism by all-to-all over ranks that do not divide the heads of a tensor rank",
            "exchange keys and values in a ring",
        );
    }
    None
}

/// Checks experts: expert ranks are counted from the innermost axis (`RankGenerator` of
/// `core/parallel_state.py`).
fn experts(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    model.experts?;
    if model.bias {
        return unsupported("biases beside experts without", "set model.bias = false");
    }
    if arrangement.layout.tensor.get() > 1 && !arrangement.sequence {
        return unsupported(
            "experts with tensor parallelism but no sequence parallelism",
            "pin layout.sequence = true",
        );
    }
    if let Some(reason) = rules::experts_from_the_nearest(arrangement) {
        return Some(reason);
    }
    let copies = match arrangement.zero {
        ZeroStage::Zero0 => 1,
        _ => arrangement.replicas() / arrangement.shard,
    };
    if !expert_replicas(arrangement).is_multiple_of(copies) {
        return unsupported(
            "more shard groups than there are replicas of an expert",
            "pin layout.shard to all replicas",
        );
    }
    None
}

/// Returns the number of ranks that hold the same experts.
fn expert_replicas(arrangement: &Arrangement) -> u32 {
    let layout = &arrangement.layout;
    let dense = layout.data.get() * layout.context.get();
    match arrangement.expert_fold {
        1 => dense,
        fold => dense * layout.tensor.get() / fold,
    }
}

/// Checks recompute: `--recompute-method block` counts blocks per chunk, so all chunks must recompute the
/// same number.
fn recompute(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let every = u64::from(arrangement.recompute_every);
    if arrangement.recompute != Recompute::Full || every == 1 {
        return None;
    }
    let again = |run: std::ops::Range<u32>| u64::from(run.end - run.start).div_ceil(every);
    let stages = arrangement.layout.pipeline.get();
    let mut runs = (0..stages).flat_map(|stage| chunks_of(stage, arrangement, model.layers)).map(again);
    let first = runs.next();
    if runs.all(|count| Some(count) == first) {
        return None;
    }
    unsupported(
        "recompute of one block in several, in runs of blocks of unequal length",
        "pin layout.recompute_every = 1",
    )
}

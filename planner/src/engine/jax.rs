//! MaxText on JAX: the layouts it can run, from `configs/base.yml` and `configs/types.py` of maxtext 0.2.5.

use super::{Engine, TrainingSpec, UnsupportedLayout, rules, state_support, unsupported};
use crate::engine::SoftwareStyle;
use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Decoder, OptimizerKind, PipelineSchedule, Precision, Recompute, ZeroStage};

/// The engine MaxText, on JAX.
#[derive(Clone, Copy, Debug)]
pub struct Jax;

impl Engine for Jax {
    fn name(&self) -> &'static str {
        "jax"
    }

    fn title(&self) -> &'static str {
        "MaxText"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::Xla
    }

    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia, AcceleratorKind::Amd, AcceleratorKind::Tpu]
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::AllGather, ContextExchange::Ring]
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        let newer = rules::NewerFeatures { llama3_scaling: false, qk_norm: false, fp8: false };
        optimizer(training)
            .or_else(|| rules::training_settings(self, training))
            .or_else(|| rules::no_f16(precision))
            .or_else(|| family(model))
            .or_else(|| rules::newer(model, precision, newer))
    }

    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        self.unsupported_training(training, arrangement.precision)
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| state_support::of_layout(self, arrangement))
            .or_else(|| rules::exact(arrangement))
            .or_else(|| rules::whole_heads(model, arrangement))
            .or_else(|| rules::pipeline_outermost(arrangement))
            .or_else(|| recompute(arrangement))
            .or_else(|| axes(model, arrangement))
            .or_else(|| state(arrangement))
            .or_else(|| pipeline(model, arrangement, micro_batches))
    }
}

/// Checks the optimizer against `optimizers/optimizers.py`: `opt_type` is "adamw", "adam_pax", "muon" or
/// "sgd", the last without momentum.
fn optimizer(training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let instead = "its other optimizers train something else; use adamw";
    rules::optimizer(training, &[OptimizerKind::Adamw], instead)
}

fn family(model: &Decoder) -> Option<UnsupportedLayout> {
    if rules::is_llama(model) && rules::has_no_biases(model) {
        return None;
    }
    unsupported(
        "a decoder that is not of the Llama family",
        "it needs model.positions = \"rotary\", norm = \"rms\", activation = \"swiglu\" and bias = false",
    )
}

fn axes(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    if layout.tensor.get() > 1 && !arrangement.sequence {
        return unsupported(
            "tensor parallelism without sequence parallelism",
            "its axis `tensor_sequence` divides sequences between matrices; pin layout.sequence = true",
        );
    }
    if arrangement.sequence && !model.context.is_multiple_of(layout.tensor.get() * layout.context.get()) {
        return unsupported(
            "sequences that the tensor and context ranks do not divide",
            "pin another layout.tensor",
        );
    }
    if arrangement.expert_fold > 1 {
        return unsupported(
            "experts folded over tensor or context ranks",
            "spread them over the expert axis",
        );
    }
    if layout.context.get() == 1 {
        return None;
    }
    if arrangement.precision == Precision::F32 {
        return unsupported("context parallelism in f32", "pin train.precision = \"bf16\"");
    }
    if arrangement.context_exchange == ContextExchange::AllToAll {
        return unsupported(
            "context parallelism by all-to-all of heads",
            "MaxText has it on TPUs only; let keys and values be gathered, or exchange them in a ring",
        );
    }
    if !model.context.is_multiple_of(2 * layout.context.get()) {
        return unsupported(
            "sequences that are no multiple of twice the context ranks",
            "pin another layout.context",
        );
    }
    None
}

/// Checks recompute: MaxText's policies save at most the outputs of matrix products; none saves everything.
fn recompute(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.recompute == Recompute::None {
        return unsupported(
            "no recompute",
            "its `remat_policy` keeps products at most; pin layout.recompute = \"selective\"",
        );
    }
    rules::every_block(arrangement)
}

/// Checks sharding: weights span `fsdp × context × expert` and are gathered per block; replicas lie along
/// `data`, where `shard_optimizer_over_data` shards moments.
fn state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    let inner = layout.context.get() * layout.expert.get();
    match arrangement.zero {
        ZeroStage::Zero0 | ZeroStage::Zero1 if inner > 1 => unsupported(
            "zero 0 or 1 with context or expert parallelism",
            "it shards weights along these ranks; pin layout.zero = 3",
        ),
        ZeroStage::Zero0 => None,
        ZeroStage::Zero1 if arrangement.shard != arrangement.replicas() => unsupported(
            "zero 1 in shard groups smaller than all replicas",
            "pin layout.shard to all replicas",
        ),
        ZeroStage::Zero1 if layout.pipeline.get() > 1 => {
            unsupported("zero 1 in a pipeline", "pin layout.zero = 0 or 3")
        }
        ZeroStage::Zero1 => None,
        ZeroStage::Zero2 => {
            unsupported("zero 2", "its axis `fsdp` shards weights too; pin layout.zero = 0, 1 or 3")
        }
        ZeroStage::Zero3 if arrangement.shard.is_multiple_of(inner) => None,
        ZeroStage::Zero3 => unsupported(
            "shard groups that hold parts of a sequence or some experts only",
            "pin layout.shard to a multiple of layout.context × layout.expert",
        ),
    }
}

/// Checks the pipeline: MaxText's is circular, with all forward passes before all backward passes, on a mesh
/// `stage × data × fsdp × …`.
fn pipeline(model: &Decoder, arrangement: &Arrangement, micro_batches: u32) -> Option<UnsupportedLayout> {
    let stages = arrangement.layout.pipeline.get();
    if stages == 1 {
        return None;
    }
    if arrangement.schedule != PipelineSchedule::Gpipe {
        return unsupported(
            "a pipeline schedule that mixes forward and backward passes",
            "pin layout.schedule = \"gpipe\"",
        );
    }
    if !model.layers.is_multiple_of(stages) || !arrangement.ends.are_free() {
        return unsupported(
            "pipeline stages of unequal length",
            "pin layout.pipeline to a divisor of model.layers",
        );
    }
    if !micro_batches.is_multiple_of(stages) {
        return unsupported(
            "micro-batches that are no multiple of the pipeline stages",
            "pin a layout.micro_batch that makes a multiple of layout.pipeline",
        );
    }
    None
}

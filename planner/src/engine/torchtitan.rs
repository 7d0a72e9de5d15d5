//! torchtitan: the layouts it can run, from the sources of version 0.3.0.

use super::{Engine, TrainingSpec, UnsupportedLayout, rules, state_support, unsupported};
use crate::engine::SoftwareStyle;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{Decoder, Fp8Recipe, OptimizerKind, PipelineSchedule, Precision, Recompute, ZeroStage};

/// Tokens of a block of FlexAttention: torchtitan's context parallelism divides sequences into whole blocks.
const FLEX_BLOCK: u32 = 128;

/// The engine torchtitan.
#[derive(Clone, Copy, Debug)]
pub struct Torchtitan;

impl Engine for Torchtitan {
    fn name(&self) -> &'static str {
        "torchtitan"
    }

    fn title(&self) -> &'static str {
        "torchtitan"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::Compiled
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::AllGather]
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        let newer = rules::NewerFeatures { llama3_scaling: false, qk_norm: false, fp8: true };
        optimizer(training)
            .or_else(|| rules::training_settings(self, training))
            .or_else(|| rules::no_f16(precision))
            .or_else(|| scales(training, precision))
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
            .or_else(|| rules::every_block(arrangement))
            .or_else(|| rules::pipeline_outermost(arrangement))
            .or_else(|| pipeline(model, arrangement, micro_batches))
            .or_else(|| axes(arrangement))
            .or_else(|| state(arrangement))
    }

    fn unsupported_in_run(&self, model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
        let ranks = arrangement.layout.context.get();
        if ranks == 1 || model.context.is_multiple_of(FLEX_BLOCK * ranks) {
            return None;
        }
        unsupported("sequences that are no multiple of 128 tokens per context rank", "pin layout.context = 1")
    }
}

/// Checks the optimizer: torchtitan's `components/optimizer/optimizer.py` has `Adam` and `AdamW`.
fn optimizer(training: &TrainingSpec) -> Option<UnsupportedLayout> {
    rules::optimizer(training, &[OptimizerKind::Adamw], "its only optimizer here is adamw")
}

/// Checks fp8 scales: `Float8LinearConverter` scales per row, `MXFP8LinearConverter` per 32 values
/// (`components/quantization`).
fn scales(training: &TrainingSpec, precision: Precision) -> Option<UnsupportedLayout> {
    let what = match training.fp8_recipe {
        _ if precision != Precision::Fp8 => return None,
        Fp8Recipe::Blockwise | Fp8Recipe::Mxfp8 => return None,
        Fp8Recipe::Tensorwise => "train.fp8_recipe = \"tensorwise\"",
        Fp8Recipe::Delayed => "train.fp8_recipe = \"delayed\"",
    };
    let instead =
        "it has no scale for a whole tensor; set \"blockwise\", which it scales by row, or \"mxfp8\"";
    unsupported(what, instead)
}

fn family(model: &Decoder) -> Option<UnsupportedLayout> {
    if rules::is_llama(model) && rules::has_no_biases(model) {
        return None;
    }
    unsupported(
        "a decoder that is not of the Llama family",
        "it needs model.positions = \"rotary\", norm = \"rms\", activation = \"swiglu\" and bias = false; \
         `megatron`, `deepspeed` and `hf-trainer` know GPT-2",
    )
}

/// Checks the schedule against `torch.distributed.pipelining`. Its `InterleavedZeroBubble` is ZB1P, with one
/// chunk per stage the ZB-H1 of a plan; its split backward does not combine with checkpointed blocks.
fn pipeline(model: &Decoder, arrangement: &Arrangement, micro_batches: u32) -> Option<UnsupportedLayout> {
    let stages = arrangement.layout.pipeline.get();
    if stages == 1 {
        return None;
    }
    if model.tied {
        return unsupported("a tied head in a pipeline", "set model.tied = false or pin layout.pipeline = 1");
    }
    if micro_batches < stages {
        return unsupported(
            "fewer micro-batches than pipeline stages",
            "pin a smaller layout.micro_batch or layout.pipeline",
        );
    }
    let is_again = arrangement.recompute != Recompute::None;
    if arrangement.schedule == PipelineSchedule::ZeroBubble {
        if is_again {
            return unsupported("zero_bubble with recompute", "pin layout.recompute = \"none\"");
        }
        if !micro_batches.is_multiple_of(stages) {
            return unsupported(
                "micro-batches of zero_bubble that are no multiple of the stages",
                "pin a layout.micro_batch that makes a multiple of layout.pipeline",
            );
        }
    }
    None
}

/// Checks axes: flex attention gathers keys and values; expert ranks are counted from the
/// innermost axis.
fn axes(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.layout.context.get() > 1 && arrangement.context_exchange != ContextExchange::AllGather {
        return unsupported(
            "context parallelism in a ring or by all-to-all",
            "let keys and values be gathered (all_gather)",
        );
    }
    let layout = &arrangement.layout;
    if layout.expert.get() > 1 && arrangement.expert_fold == 1 && layout.tensor.get() > 1 {
        return unsupported(
            "experts that are spread over replicas and cut along tensor ranks",
            "fold over all tensor and context ranks",
        );
    }
    rules::experts_from_the_nearest(arrangement)
}

/// Checks sharding: shards span `dp_shard × cp`; experts borrow ranks from these and from tensor ranks.
fn state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    let context = layout.context.get();
    match arrangement.zero {
        ZeroStage::Zero0 if context * layout.expert.get() > 1 => unsupported(
            "zero 0 with context or expert parallelism",
            "it shards weights along these ranks; pin layout.zero = 2 or 3",
        ),
        ZeroStage::Zero0 => None,
        ZeroStage::Zero1 => unsupported("zero 1", "FSDP2 shards gradients too; pin layout.zero = 0, 2 or 3"),
        ZeroStage::Zero2 | ZeroStage::Zero3 => {
            let spread = layout.expert.get() * arrangement.expert_fold;
            let ranks = arrangement.shard * layout.tensor.get();
            if arrangement.shard.is_multiple_of(context) && ranks.is_multiple_of(spread) {
                None
            } else {
                unsupported(
                    "shard groups that hold parts of a sequence or some experts only",
                    "pin layout.shard to a multiple of layout.context × layout.expert",
                )
            }
        }
    }
}

//! The Trainer of Hugging Face transformers, with PyTorch FSDP2 through accelerate: the layouts it can run, from
//! `parallelism_config.py` of accelerate 1.15.0 and the tensor-parallel plans of transformers 5.23.0.

use super::{
    Engine, StateSupport, TrainingSpec, UnsupportedLayout, rules, state_layout, state_support, unsupported,
};
use crate::engine::SoftwareStyle;
use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{
    AttentionImplementation, Decoder, FrozenPrecision, LossKernel, MomentPrecision, Offload, OptimizerKind,
    Precision, StatePrecision, ZeroStage,
};

/// The Trainer of Hugging Face transformers, with PyTorch FSDP2 through accelerate.
#[derive(Clone, Copy, Debug)]
pub struct HfTrainer;

/// State of transformers: `dtype`, `optim`, `use_liger_kernel` and `attn_implementation`, with adapters of
/// peft and quantized weights of bitsandbytes. Host memory takes FSDP's `fsdp_offload_params`, or DeepSpeed below
/// accelerate.
static STATE: StateSupport = StateSupport {
    weights: &[StatePrecision::F32, StatePrecision::Bf16],
    gradients: &[],
    moments: &[MomentPrecision::F32, MomentPrecision::Bf16, MomentPrecision::Int8],
    offload: &[Offload::None, Offload::Optimizer, Offload::All],
    loss: &[LossKernel::Plain, LossKernel::Fused],
    attention: AttentionImplementation::ALL,
    frozen: FrozenPrecision::ALL,
};

impl Engine for HfTrainer {
    fn name(&self) -> &'static str {
        "hf-trainer"
    }

    fn title(&self) -> &'static str {
        "Hugging Face Trainer"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::HuggingFace
    }

    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia, AcceleratorKind::Amd, AcceleratorKind::Intel]
    }

    fn state_support(&self) -> &'static StateSupport {
        &STATE
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::AllGather, ContextExchange::Ring]
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        optimizer(training)
            .or_else(|| rules::training_settings(self, training))
            .or_else(|| rules::hugging_face(&training.model, precision))
    }

    fn unsupported_layout(
        &self,
        training: &TrainingSpec,
        arrangement: &Arrangement,
        micro_batches: u32,
    ) -> Option<UnsupportedLayout> {
        let model = &training.model;
        self.unsupported_training(training, arrangement.precision)
            .or_else(|| rules::no_pipeline(arrangement))
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| state_support::of_layout(self, arrangement))
            .or_else(|| rules::exact(arrangement))
            .or_else(|| rules::whole_heads(model, arrangement))
            .or_else(|| rules::whole_blocks(arrangement))
            .or_else(|| axes(model, arrangement))
            .or_else(|| state(arrangement))
            .or_else(|| state_layout::of_hf_trainer(training, arrangement))
    }
}

/// Checks the optimizer against `OptimizerNames` of `training_args.py`.
fn optimizer(training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let known = [OptimizerKind::Adamw, OptimizerKind::Lion, OptimizerKind::Sgd];
    rules::optimizer(training, &known, "transformers have adamw, lion and sgd")
}

fn axes(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    if layout.expert.get() > 1 || arrangement.expert_fold > 1 {
        return unsupported("expert parallelism", "pin layout.expert = 1");
    }
    if arrangement.sequence {
        return unsupported("sequence parallelism between tensor ranks", "pin layout.sequence = false");
    }
    if layout.tensor.get() > 1 && rules::is_gpt2(model) {
        return unsupported(
            "tensor parallelism of GPT-2",
            "transformers have no plan for it; pin layout.tensor = 1",
        );
    }
    if layout.context.get() == 1 {
        return None;
    }
    if arrangement.context_exchange == ContextExchange::AllToAll {
        return unsupported(
            "context parallelism by all-to-all of heads",
            "exchange keys and values in a ring, or gather them",
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

/// Checks sharding as `dp_replicate × dp_shard × cp × tp`: shards span `dp_shard × cp`; replicas of unsharded
/// state use `DistributedDataParallel`, which combines with nothing else.
fn state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    let (data, context) = (layout.data.get(), layout.context.get());
    let is_cut = layout.tensor.get() * context > 1;
    match arrangement.zero {
        ZeroStage::Zero0 if is_cut => {
            unsupported("zero 0 with tensor or context parallelism", "pin layout.zero = 2 or 3")
        }
        ZeroStage::Zero0 => None,
        ZeroStage::Zero1 => unsupported("zero 1", "FSDP2 shards gradients too; pin layout.zero = 0, 2 or 3"),
        ZeroStage::Zero2 | ZeroStage::Zero3 if !arrangement.shard.is_multiple_of(context) => unsupported(
            "shard groups that hold parts of a sequence only",
            "pin layout.shard to a multiple of layout.context",
        ),
        ZeroStage::Zero2 | ZeroStage::Zero3 => {
            let groups = data * context / arrangement.shard;
            let is_alone = arrangement.shard == 1 && (is_cut || data > 1);
            if is_alone || arrangement.shard == context && groups > 1 {
                unsupported("shard groups of one reader", "pin a larger layout.shard")
            } else {
                None
            }
        }
    }
}

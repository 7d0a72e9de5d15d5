//! dtrain's own program for PyTorch FSDP2, which `dtrain run` starts: the layouts it can run, as `fsdp_model.py`
//! of the Python package checks them.

use super::{Engine, StateSupport, TrainingSpec, UnsupportedLayout, rules, state_support, unsupported};
use crate::engine::SoftwareStyle;
use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{
    AttentionImplementation, Decoder, LossKernel, MomentPrecision, Offload, OptimizerKind, Precision,
    Recompute, StatePrecision,
};

/// The engine PyTorch FSDP2, through dtrain's own program.
#[derive(Clone, Copy, Debug)]
pub struct FsdpProgram;

/// State of the program: `CPUOffloadPolicy`, weights of bf16 with moments like them, and a loss in chunks.
static STATE: StateSupport = StateSupport {
    weights: &[StatePrecision::F32, StatePrecision::Bf16],
    gradients: &[],
    moments: &[MomentPrecision::F32, MomentPrecision::Bf16],
    offload: &[Offload::None, Offload::All],
    loss: &[LossKernel::Plain, LossKernel::Chunked],
    attention: &[AttentionImplementation::Eager, AttentionImplementation::Sdpa],
    frozen: &[],
};

impl Engine for FsdpProgram {
    fn name(&self) -> &'static str {
        "fsdp"
    }

    fn title(&self) -> &'static str {
        "FSDP2"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::FullyShard
    }

    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia, AcceleratorKind::Amd, AcceleratorKind::Intel]
    }

    fn state_support(&self) -> &'static StateSupport {
        &STATE
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[]
    }

    fn unsupported_training(
        &self,
        training: &TrainingSpec,
        precision: Precision,
    ) -> Option<UnsupportedLayout> {
        optimizer(training)
            .or_else(|| rules::training_settings(self, training))
            .or_else(|| experts(&training.model))
            .or_else(|| products(precision))
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
            .or_else(|| axes(model, arrangement))
            .or_else(|| recompute(arrangement))
    }
}

/// Checks the optimizer against `optimizers.py` of the Python package.
fn optimizer(training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let known = [OptimizerKind::Adamw, OptimizerKind::Lion, OptimizerKind::Sgd];
    rules::optimizer(training, &known, "it has adamw, lion and sgd")
}

/// Checks experts: the program leaves the load-balancing loss out.
fn experts(model: &Decoder) -> Option<UnsupportedLayout> {
    model.experts.as_ref().filter(|experts| experts.balance > 0.0)?;
    unsupported(
        "model.balance",
        "it has no load-balancing loss; set model.balance = 0, or use `megatron`, `torchtitan` or `hf-trainer`",
    )
}

fn products(precision: Precision) -> Option<UnsupportedLayout> {
    if matches!(precision, Precision::F32 | Precision::Bf16) {
        return None;
    }
    unsupported("products in f16 or fp8", "set train.precision = \"bf16\" or \"f32\"")
}

/// Checks the axes: it splits matrices as Megatron-LM does, without sequence parallelism. State is sharded
/// among any number of replicas, at every stage of ZeRO.
fn axes(model: &Decoder, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.layout.context.get() > 1 {
        return unsupported("context parallelism", "pin layout.context = 1");
    }
    if arrangement.sequence {
        return unsupported("sequence parallelism between tensor ranks", "pin layout.sequence = false");
    }
    if arrangement.layout.tensor.get() > 1 && rules::is_gpt2(model) {
        return unsupported(
            "tensor parallelism of GPT-2",
            "it splits Llama and Qwen2; pin layout.tensor = 1",
        );
    }
    // Each rank would have a part of the gradient of these norms, and nothing sums the parts.
    if arrangement.layout.tensor.get() > 1 && (model.qk_norm || model.experts.is_some()) {
        return unsupported(
            "tensor parallelism of models with qk_norm or experts",
            "it splits Llama and Qwen2; pin layout.tensor = 1",
        );
    }
    None
}

fn recompute(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.recompute != Recompute::Selective {
        return None;
    }
    unsupported("selective recompute", "pin layout.recompute = \"full\" or \"none\"")
}

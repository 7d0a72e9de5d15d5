//! DeepSpeed: the layouts it can run, from the sources of version 0.19.8.

use super::{
    Engine, StateSupport, TrainingSpec, UnsupportedLayout, rules, state_layout, state_support, unsupported,
};
use crate::engine::SoftwareStyle;
use crate::hardware::AcceleratorKind;
use dtrain_protocol::{Arrangement, ContextExchange};
use dtrain_recipes::{
    AttentionImplementation, Compression, FrozenPrecision, LossKernel, MomentPrecision, Offload,
    OptimizerKind, Precision, StatePrecision, ZeroStage,
};

/// The engine DeepSpeed.
#[derive(Clone, Copy, Debug)]
pub struct DeepSpeed;

/// State of `ds_config.json`: `offload_optimizer`, `offload_param`, `bf16_master_weights_and_grads` and
/// `grad_accum_dtype`, with optimizers of bitsandbytes.
static STATE: StateSupport = StateSupport {
    weights: &[StatePrecision::F32, StatePrecision::Bf16],
    gradients: &[StatePrecision::F32, StatePrecision::Bf16],
    moments: &[MomentPrecision::F32, MomentPrecision::Bf16, MomentPrecision::Int8],
    offload: &[Offload::None, Offload::Optimizer, Offload::All],
    loss: &[LossKernel::Plain],
    attention: AttentionImplementation::ALL,
    frozen: FrozenPrecision::ALL,
};

impl Engine for DeepSpeed {
    fn name(&self) -> &'static str {
        "deepspeed"
    }

    fn title(&self) -> &'static str {
        "DeepSpeed"
    }

    fn style(&self) -> SoftwareStyle {
        SoftwareStyle::HuggingFace
    }

    fn kinds(&self) -> &'static [AcceleratorKind] {
        &[AcceleratorKind::Nvidia, AcceleratorKind::Amd, AcceleratorKind::Gaudi]
    }

    fn has_master_copy(&self) -> Option<bool> {
        Some(true)
    }

    fn state_support(&self) -> &'static StateSupport {
        &STATE
    }

    fn context_exchanges(&self) -> &'static [ContextExchange] {
        &[ContextExchange::Ring]
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
            .or_else(|| no_pipeline(arrangement))
            .or_else(|| rules::of_all(model, arrangement, micro_batches))
            .or_else(|| state_support::of_layout(self, arrangement))
            .or_else(|| sums(arrangement))
            .or_else(|| rules::whole_heads(model, arrangement))
            .or_else(|| rules::whole_blocks(arrangement))
            .or_else(|| axes(arrangement))
            .or_else(|| state(arrangement))
            .or_else(|| state_layout::of_deepspeed(training, arrangement))
    }
}

/// Checks the optimizer against `DEEPSPEED_OPTIMIZERS` of `runtime/config.py` and `torch.optim`. `FusedLamb`
/// clamps the trust ratio between `min_coeff` and `max_coeff`.
fn optimizer(training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let known = [OptimizerKind::Adamw, OptimizerKind::Lion, OptimizerKind::Sgd];
    let instead = "its Lamb bounds the trust ratio, which trains something else; use adamw, lion or sgd";
    rules::optimizer(training, &known, instead)
}

fn no_pipeline(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let instead = "it cuts pipelines in the program (PipelineModule), not in its configuration; pin layout.pipeline = 1";
    rules::no_pipeline(arrangement).map(|reason| UnsupportedLayout { instead, ..reason })
}

/// Checks gradient compression: DeepSpeed supports only reduced precision (`communication_data_type`).
fn sums(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let sync = &arrangement.sync;
    match sync.compress {
        Compression::F16 | Compression::Bf16 if sync.local.is_none() && sync.staleness == 0 => None,
        _ => rules::exact(arrangement),
    }
}

fn axes(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    if layout.context.get() > 1 {
        return unsupported(
            "context parallelism",
            "its sequence parallelism (Ulysses) is set up in the program; pin layout.context = 1",
        );
    }
    if arrangement.sequence {
        return unsupported("sequence parallelism between tensor ranks", "pin layout.sequence = false");
    }
    // AutoEP keeps experts whole, on ranks counted from the innermost axis.
    if layout.expert.get() > 1 && arrangement.expert_fold == 1 && layout.tensor.get() > 1 {
        return unsupported(
            "experts that are spread over replicas and cut along tensor ranks",
            "fold over all tensor ranks",
        );
    }
    rules::experts_from_the_nearest(arrangement)
}

/// Checks sharding: DeepSpeed shards only among all replicas, as shard groups (MiCS) were removed.
fn state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.zero == ZeroStage::Zero0 || arrangement.shard == arrangement.replicas() {
        return None;
    }
    unsupported("shard groups smaller than all replicas", "pin layout.shard to all replicas")
}

//! The training state that each engine can hold: precision, place, adapters, and kernels of loss and attention.

use super::{Engine, TrainingSpec, UnsupportedLayout, unsupported};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{
    AttentionImplementation, FrozenPrecision, LossKernel, MomentPrecision, Offload, OptimizerKind, Precision,
    StatePolicy, StatePrecision,
};

/// The settings of training state that an engine has.
#[derive(Clone, Copy, Debug)]
pub struct StateSupport {
    /// Precisions of the weights that the optimizer updates.
    pub weights: &'static [StatePrecision],
    /// Precisions of gradients that a recipe can ask for.
    pub gradients: &'static [StatePrecision],
    /// Precisions of moments.
    pub moments: &'static [MomentPrecision],
    /// State in host memory.
    pub offload: &'static [Offload],
    /// Implementations of the loss.
    pub loss: &'static [LossKernel],
    /// Implementations of attention that a recipe can ask for.
    pub attention: &'static [AttentionImplementation],
    /// Precisions of frozen weights below adapters; empty if the engine trains no adapters.
    pub frozen: &'static [FrozenPrecision],
}

impl StateSupport {
    /// State in f32 on the device, without adapters.
    pub const PLAIN: Self = Self {
        weights: &[StatePrecision::F32],
        gradients: &[],
        moments: &[MomentPrecision::F32],
        offload: &[Offload::None],
        loss: &[LossKernel::Plain],
        attention: &[],
        frozen: &[],
    };

    /// Returns `true` if the engine can hold the state of `policy`.
    pub fn has(&self, policy: &StatePolicy) -> bool {
        lacking(self, policy).is_none()
    }
}

/// Returns the key of the first setting of `policy` that `support` lacks.
fn lacking(support: &StateSupport, policy: &StatePolicy) -> Option<&'static str> {
    let settings = [
        (WEIGHTS, support.weights.contains(&policy.weights)),
        (GRADIENTS, policy.gradients.is_none_or(|gradients| support.gradients.contains(&gradients))),
        (MOMENTS, support.moments.contains(&policy.moments)),
        (OFFLOAD, support.offload.contains(&policy.offload)),
        (LOSS, support.loss.contains(&policy.loss)),
    ];
    settings.into_iter().find(|(_, has)| !has).map(|(key, _)| key)
}

const WEIGHTS: &str = "train.state.weights";
const GRADIENTS: &str = "train.state.gradients";
const MOMENTS: &str = "train.state.moments";
const OFFLOAD: &str = "train.state.offload";
const LOSS: &str = "train.state.loss";

/// Refuses state and adapters of a training that the engine lacks in every layout.
pub(super) fn of_training(engine: &dyn Engine, training: &TrainingSpec) -> Option<UnsupportedLayout> {
    let (support, pins) = (engine.state_support(), &training.state);
    if let Some(key) = lacking(support, &pins.policy(StatePolicy::PLAIN)) {
        return unsupported(key, instead(key));
    }
    if pins.attention.is_some_and(|attention| !support.attention.contains(&attention)) {
        return unsupported(
            "train.state.attention",
            "hf-trainer, deepspeed and fsdp choose the kernel; or remove it",
        );
    }
    let is_bf16 = pins.weights == StatePrecision::Bf16;
    if is_bf16 != (pins.moments == MomentPrecision::Bf16) && pins.moments != MomentPrecision::Int8 {
        return unsupported(
            "train.state.moments of another precision than train.state.weights",
            "set both to \"bf16\" or both to \"f32\", or moments = \"int8\"",
        );
    }
    if pins.moments == MomentPrecision::Int8 && training.optimizer == OptimizerKind::Sgd {
        return unsupported("8-bit moments of SGD", "take adamw or lion, or remove train.state.moments");
    }
    let lora = training.model.lora?;
    if support.frozen.is_empty() {
        return unsupported("model.lora", "dtrain, hf-trainer and deepspeed train adapters");
    }
    if lora.base.is_some_and(|base| !support.frozen.contains(&base)) {
        return unsupported(
            "model.lora.base",
            "hf-trainer and deepspeed freeze weights in f32, bf16, int8 and nf4",
        );
    }
    None
}

/// Refuses a layout whose state the engine cannot hold.
pub(super) fn of_layout(engine: &dyn Engine, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.state.is_plain() {
        return None;
    }
    if let Some(key) = lacking(engine.state_support(), &arrangement.state) {
        return unsupported(key, instead(key));
    }
    if arrangement.state.weights == StatePrecision::Bf16 && arrangement.precision != Precision::Bf16 {
        return unsupported(
            "weights in bf16 with products in another precision",
            "set train.precision = \"bf16\"",
        );
    }
    None
}

fn instead(key: &str) -> &'static str {
    match key {
        WEIGHTS => "hf-trainer, deepspeed and fsdp update weights in bf16; or remove it",
        GRADIENTS => "deepspeed reduces gradients in f32 or bf16; or remove it",
        MOMENTS => "hf-trainer and deepspeed have 8-bit moments; or remove it",
        OFFLOAD => "hf-trainer, deepspeed and fsdp keep state in host memory; or remove it",
        // The only other key of `lacking`.
        _ => "hf-trainer and fsdp have other kernels of the loss; or remove it",
    }
}

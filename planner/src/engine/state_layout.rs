//! Layouts whose training state Hugging Face's Trainer or DeepSpeed cannot hold, from the sources of DeepSpeed
//! 0.19.8, accelerate 1.15.0, transformers 5.23.0, peft 0.21.2 and bitsandbytes 0.50.2.

use super::{TrainingSpec, UnsupportedLayout, rules, unsupported};
use dtrain_protocol::Arrangement;
use dtrain_recipes::{
    FrozenPrecision, LossKernel, MomentPrecision, Offload, OptimizerKind, Precision, StatePrecision,
    ZeroStage,
};

/// Returns `true` if Hugging Face's Trainer runs DeepSpeed below accelerate in place of FSDP2: for state in
/// host memory, unless FSDP2 shards all of it.
pub(crate) fn is_deepspeed_below_accelerate(arrangement: &Arrangement) -> bool {
    match arrangement.state.offload {
        Offload::None => false,
        Offload::Optimizer => true,
        Offload::All => arrangement.zero == ZeroStage::Zero0,
    }
}

/// Returns the stage of ZeRO that DeepSpeed is given: that of the layout, or the least that holds its state,
/// which makes no difference to a single replica.
pub(crate) fn deepspeed_stage(arrangement: &Arrangement) -> u32 {
    let state = &arrangement.state;
    let least = match state.offload {
        Offload::All => 3,
        Offload::Optimizer if arrangement.zero == ZeroStage::Zero0 => 2,
        // Stage 0 accumulates gradients in the precision of products, and keeps no weights in bf16.
        _ if state.weights == StatePrecision::Bf16 || state.gradients == Some(StatePrecision::F32) => 1,
        Offload::None | Offload::Optimizer => 0,
    };
    let stage = match arrangement.zero {
        ZeroStage::Zero0 => 0,
        ZeroStage::Zero1 => 1,
        ZeroStage::Zero2 => 2,
        ZeroStage::Zero3 => 3,
    };
    least.max(stage)
}

/// Refuses layouts whose state Hugging Face's Trainer cannot hold.
pub(super) fn of_hf_trainer(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let below = is_deepspeed_below_accelerate(arrangement);
    let is_sharded =
        if below { deepspeed_stage(arrangement) == 3 } else { arrangement.zero != ZeroStage::Zero0 };
    if training.optimizer == OptimizerKind::Lion && is_sharded && !below {
        // Of transformers' optimizers, only those of bitsandbytes are Lion, and their kernels take no DTensor.
        return unsupported(
            "train.optimizer = \"lion\" with zero 2 or 3",
            "the Lion of bitsandbytes takes no parts of FSDP2; take adamw, or pin layout.zero = 0",
        );
    }
    if arrangement.state.weights == StatePrecision::Bf16 {
        if training.optimizer == OptimizerKind::Lion {
            return unsupported(
                "weights in bf16 with Lion",
                "bitsandbytes keeps its moments in f32; take adamw, or f32 weights",
            );
        }
        if training.model.lora.is_some_and(|lora| lora.base == Some(FrozenPrecision::F32)) {
            return unsupported("adapters in bf16 of weights in f32", "remove model.lora.base");
        }
    }
    unsharded_host_state(arrangement)
        .or_else(|| if below { below_accelerate(arrangement) } else { None })
        .or_else(|| if below { host_bf16(training, arrangement) } else { None })
        .or_else(|| fused_loss(training, arrangement))
        .or_else(|| adapters(training, arrangement, below, is_sharded))
}

/// Refuses layouts whose state DeepSpeed cannot hold.
pub(super) fn of_deepspeed(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let is_sharded = deepspeed_stage(arrangement) == 3;
    unsharded_host_state(arrangement)
        .or_else(|| host_weights(arrangement))
        .or_else(|| raised_stage(arrangement))
        .or_else(|| gradients(arrangement))
        .or_else(|| host_bf16(training, arrangement))
        .or_else(|| adapters(training, arrangement, true, is_sharded))
        .or_else(|| cut_adapters(training, arrangement))
}

/// Refuses state in host memory of which every replica would hold a copy: DeepSpeed shards it.
fn unsharded_host_state(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let is_whole = arrangement.zero == ZeroStage::Zero0 && arrangement.replicas() > 1;
    if arrangement.state.offload == Offload::None || !is_whole {
        return None;
    }
    unsupported("unsharded state of several replicas in host memory", "pin layout.zero = 2 or 3")
}

/// Refuses weights in host memory where replicas keep whole weights: `offload_param` needs stage 3.
fn host_weights(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let is_whole = arrangement.zero != ZeroStage::Zero3 && arrangement.replicas() > 1;
    if arrangement.state.offload != Offload::All || !is_whole {
        return None;
    }
    unsupported("weights in host memory with zero 0, 1 or 2", "pin layout.zero = 3")
}

/// Refuses other state that needs ZeRO where replicas keep whole state.
fn raised_stage(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.replicas() == 1 || arrangement.zero != ZeroStage::Zero0 {
        return None;
    }
    if deepspeed_stage(arrangement) == 0 {
        return None;
    }
    unsupported("weights in bf16, or gradients in f32, with zero 0", "pin layout.zero = 1, 2 or 3")
}

/// Checks `grad_accum_dtype`: `get_data_types` of `runtime/engine.py` pairs it with the precision of products.
fn gradients(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let state = &arrangement.state;
    match (state.gradients?, arrangement.precision) {
        (StatePrecision::F32, _) if state.weights == StatePrecision::Bf16 => unsupported(
            "gradients in f32 of weights in bf16",
            "bf16_master_weights_and_grads has both in bf16; remove train.state.gradients",
        ),
        (StatePrecision::F32, Precision::F16) => unsupported(
            "gradients in f32 of products in f16",
            "set train.precision = \"bf16\", or remove train.state.gradients",
        ),
        (StatePrecision::Bf16, Precision::F32 | Precision::F16) => unsupported(
            "gradients in bf16 of products in another precision",
            "set train.precision = \"bf16\", or remove train.state.gradients",
        ),
        _ => None,
    }
}

/// Checks weights in bf16 in host memory: `_configure_master_weights` of `runtime/base_optimizer.py` demands
/// `DeepSpeedCPUAdam` with moments in bf16.
fn host_bf16(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let state = &arrangement.state;
    if state.weights != StatePrecision::Bf16 || state.offload == Offload::None {
        return None;
    }
    if state.moments == MomentPrecision::Int8 {
        return unsupported(
            "8-bit moments of bf16 weights in host memory",
            "DeepSpeed has bf16 moments for these; set train.state.moments = \"bf16\"",
        );
    }
    if training.optimizer != OptimizerKind::Adamw {
        return unsupported("weights in bf16 in host memory without AdamW", "take adamw, or f32 weights");
    }
    None
}

/// Checks DeepSpeed below accelerate, which has the data axis only, and shards among all replicas.
fn below_accelerate(arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    if layout.tensor.get() * layout.context.get() > 1 {
        return unsupported(
            "an optimizer in host memory with tensor or context parallelism",
            "pin layout.tensor = 1 and layout.context = 1",
        );
    }
    if arrangement.zero != ZeroStage::Zero0 && arrangement.shard != arrangement.replicas() {
        return unsupported(
            "an optimizer in host memory with shard groups smaller than all replicas",
            "pin layout.shard to all replicas",
        );
    }
    None
}

/// Checks the fused loss against `MODEL_TYPE_TO_APPLY_LIGER_FN` of liger-kernel 0.8.5; its kernel reads the
/// weights of the head itself, which tensor ranks split.
fn fused_loss(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    if arrangement.state.loss != LossKernel::Fused {
        return None;
    }
    if rules::is_gpt2(&training.model) {
        return unsupported("a fused loss of GPT-2", "Liger has none; set train.state.loss = \"plain\"");
    }
    if arrangement.layout.tensor.get() > 1 {
        return unsupported(
            "a fused loss with tensor parallelism",
            "set train.state.loss = \"plain\", or pin layout.tensor = 1",
        );
    }
    None
}

/// Checks frozen weights below adapters. `below`: DeepSpeed casts the model to the precision of products;
/// `is_sharded`: frozen weights are sharded too.
fn adapters(
    training: &TrainingSpec,
    arrangement: &Arrangement,
    below: bool,
    is_sharded: bool,
) -> Option<UnsupportedLayout> {
    let base = training.model.lora?.base?;
    match (base, arrangement.precision) {
        (FrozenPrecision::F32, Precision::F32) | (FrozenPrecision::Bf16, Precision::Bf16) => return None,
        (FrozenPrecision::Bf16, Precision::F32) => {
            return unsupported(
                "frozen weights in bf16 with products in f32",
                "set train.precision = \"bf16\"",
            );
        }
        (FrozenPrecision::F32 | FrozenPrecision::Bf16, _) if below => {
            return unsupported(
                "frozen weights in another precision than products",
                "DeepSpeed casts them; remove model.lora.base",
            );
        }
        (FrozenPrecision::F32 | FrozenPrecision::Bf16, _) => return None,
        (FrozenPrecision::Int8 | FrozenPrecision::Nf4, _) => {}
    }
    if arrangement.layout.tensor.get() > 1 {
        return unsupported("quantized weights with tensor parallelism", "pin layout.tensor = 1");
    }
    if arrangement.state.offload == Offload::All {
        return unsupported("quantized weights in host memory", "set train.state.offload = \"none\"");
    }
    if is_sharded && base == FrozenPrecision::Int8 {
        return unsupported(
            "sharded frozen weights in int8",
            "set model.lora.base = \"nf4\", or pin layout.zero to keep them whole",
        );
    }
    None
}

/// Refuses adapters of matrices that DeepSpeed itself splits among ranks: it replaces whole linear layers.
fn cut_adapters(training: &TrainingSpec, arrangement: &Arrangement) -> Option<UnsupportedLayout> {
    let layout = &arrangement.layout;
    let is_cut = layout.tensor.get() * layout.expert.get() * arrangement.expert_fold > 1;
    if training.model.lora.is_none() || !is_cut {
        return None;
    }
    unsupported("adapters with tensor or expert parallelism", "pin layout.tensor = 1 and layout.expert = 1")
}

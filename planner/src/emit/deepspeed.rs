//! Emits DeepSpeed's `ds_config.json`, the model for transformers, and a start script.
//!
//! JSON has no comments, so the notes are at the head of the script.

use super::adapters;
use super::hosts::HostShape;
use super::hugging_face;
use super::json::OrderedObject;
use super::source::DecoderPlan;
use super::{ConfigFile, ConfigFiles, head};
use crate::engine::state_layout::deepspeed_stage;
use dtrain_protocol::Axis;
use dtrain_recipes::{
    Compression, MomentPrecision, Offload, OptimizerKind, Precision, Recompute, Schedule, StatePrecision,
};

/// Version of DeepSpeed against which the names were checked.
pub(crate) const VERSION: &str = "0.19.8";

/// Emits the files `ds_config.json`, `config.json` and `deepspeed.sh`; with adapters those of peft too.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let family = hugging_face::family(source.model);
    let mut notes = source.notes();
    notes.extend(own_notes(source));
    notes.extend(hugging_face::notes(source));
    let config = ConfigFile { name: "ds_config.json".into(), text: configuration(source).text() };
    let script = ConfigFile { name: "deepspeed.sh".into(), text: script(source, &notes) };
    let mut files = vec![config, hugging_face::config(source, family), script];
    files.extend(adapters::files(source, family, deepspeed_stage(source.arrangement) == 3));
    ConfigFiles::of(files, notes, "bash deepspeed.sh")
}

fn own_notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = vec![format!(
        "DeepSpeed takes no seed: call transformers.set_seed({}) before the model is made",
        source.train().seed
    )];
    if source.arrangement.recompute == Recompute::Full {
        notes.push(
            "recompute: call model.gradient_checkpointing_enable(), which computes every block again".into(),
        );
    }
    if source.warmup() < 2 {
        notes.push("the warm-up takes 2 steps, the least it can do".into());
    }
    if source.train().schedule == Schedule::Linear && source.train().final_fraction > 0.0 {
        notes.push(format!("the learning rate falls to 0, not to {:?}", source.rate_last()));
    }
    if source.optimizer().kind == OptimizerKind::Sgd {
        notes.push("sgd: weight decay is added to the gradient here, not applied beside it".into());
    }
    if has_own_optimizer(source) {
        notes.push(eight_bit_optimizer(source));
    }
    notes.push("weight decay is for matrices only in the plan: give the optimizer two groups of parameters, or it is for all".into());
    notes
}

fn configuration(source: &DecoderPlan) -> OrderedObject {
    let (split, state) = (source.split, &source.arrangement.state);
    let mut object = OrderedObject::default()
        .with("train_batch_size", split.global())
        .with("train_micro_batch_size_per_gpu", split.micro())
        .with("gradient_accumulation_steps", split.micro_batches().get())
        .with("gradient_clipping", source.train().clip.unwrap_or(0.0))
        .object("scheduler", scheduler(source))
        .object("zero_optimization", zero(source));
    if !has_own_optimizer(source) {
        object = object.object("optimizer", optimizer(source));
    }
    if source.optimizer().kind == OptimizerKind::Sgd || has_own_optimizer(source) {
        object = object.with("zero_allow_untested_optimizer", true);
        if state.offload != Offload::None && has_own_optimizer(source) {
            object = object.with("zero_force_ds_cpu_optimizer", false);
        }
    }
    let enabled = || OrderedObject::default().with("enabled", true);
    object = match source.arrangement.precision {
        Precision::F32 => object,
        Precision::Bf16 if state.weights == StatePrecision::Bf16 => object.object(
            "bf16",
            enabled().with("bf16_master_weights_and_grads", true).with("bf16_optimizer_states", true),
        ),
        Precision::Bf16 => object.object("bf16", enabled()),
        // Zero selects a dynamic loss scale.
        Precision::Fp8 => unreachable!("no family of models has fp8"),
        Precision::F16 => object.object("fp16", enabled().with("loss_scale", 0)),
    };
    if let Some(gradients) = state.gradients {
        let word = match gradients {
            StatePrecision::F32 => "fp32",
            StatePrecision::Bf16 => "bf16",
        };
        object = object.object("data_types", OrderedObject::default().with("grad_accum_dtype", word));
    }
    if let Some(word) = compress_word(source) {
        object = object.with("communication_data_type", word);
    }
    if source.degree(Axis::Tensor) > 1 {
        let tensor = OrderedObject::default().with("autotp_size", source.degree(Axis::Tensor));
        object = object.object("tensor_parallel", tensor);
    }
    let spread = source.degree(Axis::Expert) * source.arrangement.expert_fold;
    if spread > 1 {
        let expert = enabled().with("autoep_size", spread).with("preset_model", "mixtral");
        object = object.object("expert_parallel", expert);
    }
    object
}

fn optimizer(source: &DecoderPlan) -> OrderedObject {
    let rule = source.optimizer();
    let params = OrderedObject::default().with("lr", source.rate());
    let (kind, params) = match rule.kind {
        OptimizerKind::Sgd => ("SGD", params.with("momentum", rule.beta1)),
        OptimizerKind::Lion => ("Lion", params.with("betas", vec![rule.beta1, rule.beta2])),
        OptimizerKind::Adamw | OptimizerKind::Lamb => {
            ("AdamW", params.with("betas", vec![rule.beta1, rule.beta2]).with("eps", rule.epsilon))
        }
    };
    OrderedObject::default()
        .with("type", kind)
        .object("params", params.with("weight_decay", rule.weight_decay))
}

fn scheduler(source: &DecoderPlan) -> OrderedObject {
    let warmup = OrderedObject::default()
        .with("warmup_num_steps", source.warmup().max(2))
        .with("warmup_type", "linear");
    let linear =
        |params: OrderedObject| params.with("warmup_min_lr", 0.0).with("warmup_max_lr", source.rate());
    let (kind, params) = match source.train().schedule {
        Schedule::Cosine => (
            "WarmupCosineLR",
            warmup
                .with("total_num_steps", source.steps())
                .with("warmup_min_ratio", 0.0)
                .with("cos_min_ratio", source.train().final_fraction),
        ),
        Schedule::Linear => ("WarmupDecayLR", linear(warmup).with("total_num_steps", source.steps())),
        Schedule::Constant => ("WarmupLR", linear(warmup)),
    };
    OrderedObject::default().with("type", kind).object("params", params)
}

fn zero(source: &DecoderPlan) -> OrderedObject {
    let on_host = || OrderedObject::default().with("device", "cpu");
    let object = OrderedObject::default().with("stage", deepspeed_stage(source.arrangement));
    match source.arrangement.state.offload {
        Offload::None => object,
        Offload::Optimizer => object.object("offload_optimizer", on_host()),
        Offload::All => object.object("offload_optimizer", on_host()).object("offload_param", on_host()),
    }
}

/// Returns `true` if the program makes the optimizer: DeepSpeed has none with 8-bit moments.
fn has_own_optimizer(source: &DecoderPlan) -> bool {
    source.arrangement.state.moments == MomentPrecision::Int8
}

/// Returns the note on the optimizer with 8-bit moments.
fn eight_bit_optimizer(source: &DecoderPlan) -> String {
    let rule = source.optimizer();
    let (class, epsilon) = match rule.kind {
        OptimizerKind::Lion => ("Lion8bit", String::new()),
        _ => ("AdamW8bit", format!(", eps={:?}", rule.epsilon)),
    };
    format!(
        "8-bit moments: give deepspeed.initialize the argument optimizer=bitsandbytes.optim.{class}(parameters, \
         lr={:?}, betas=({:?}, {:?}){epsilon}, weight_decay={:?}), with bitsandbytes installed",
        source.rate(),
        rule.beta1,
        rule.beta2,
        rule.weight_decay
    )
}

fn script(source: &DecoderPlan, notes: &[String]) -> String {
    let HostShape { count, each } = HostShape::of(source.plan);
    let (hosts, meet) = if count > 1 {
        let hosts =
            "# SET: the hosts, each with its `slots=` (one line a host).\nHOSTFILE=${HOSTFILE:-hostfile}\n";
        (hosts, format!("--hostfile \"$HOSTFILE\" --num_nodes {count} "))
    } else {
        ("", String::new())
    };
    let what = format!(
        "DeepSpeed {VERSION} with transformers {}: ds_config.json is for deepspeed.initialize, config.json for AutoConfig",
        hugging_face::VERSION
    );
    format!(
        "#!/usr/bin/env bash\n{}set -euo pipefail\n\n# SET: your program, which reads the data, and calls deepspeed.initialize or transformers.Trainer.\n\
         PROGRAM=${{PROGRAM:-train.py}}\n{hosts}# It trains for {} optimizer steps, with sequences of {} tokens.\n\
         exec deepspeed {meet}--num_gpus {each} \"$PROGRAM\" --deepspeed_config ds_config.json \"$@\"\n",
        head(source.plan, &what, notes),
        source.steps(),
        source.model.context
    )
}

/// Returns DeepSpeed's name for the precision in which gradients are reduced; `None` if it is not lowered.
fn compress_word(source: &DecoderPlan) -> Option<&'static str> {
    let sync = &source.arrangement.sync;
    match sync.compress {
        _ if sync.local.is_some() || sync.staleness > 0 => None,
        Compression::F16 => Some("fp16"),
        Compression::Bf16 => Some("bf16"),
        Compression::None | Compression::PowerSgd { .. } | Compression::TopK { .. } => None,
    }
}

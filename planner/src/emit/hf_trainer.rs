//! Emits configuration for the Trainer of Hugging Face transformers with PyTorch FSDP2: the YAML file of
//! accelerate, the training arguments, and the model.

use super::adapters;
use super::hosts::HostShape;
use super::hugging_face;
use super::json::OrderedObject;
use super::source::DecoderPlan;
use super::yaml::number;
use super::{ConfigFile, ConfigFiles, head};
use crate::engine::state_layout::{deepspeed_stage, is_deepspeed_below_accelerate};
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_protocol::{Axis, ContextExchange};
use dtrain_recipes::{
    LossKernel, MomentPrecision, Offload, OptimizerKind, Precision, Recompute, Schedule, StatePrecision,
    ZeroStage,
};

/// Version of accelerate against which the names were checked.
pub(crate) const VERSION: &str = "1.15.0";

/// Emits the files `accelerate.yaml`, `training_arguments.yaml` and `config.json`; with DeepSpeed below accelerate
/// `ds_config.json` too, and with adapters those of peft.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let family = hugging_face::family(source.model);
    let mut notes = source.notes();
    notes.extend(own_notes(source));
    notes.extend(hugging_face::notes(source));
    let world = source.arrangement.layout.world();
    let start = "accelerate launch --config_file accelerate.yaml YOUR_PROGRAM.py training_arguments.yaml";
    let what = format!("accelerate {VERSION}, {world} processes: {start}");
    let text = head(source.plan, &what, &notes) + &configuration(source, family);
    let config = ConfigFile { name: "accelerate.yaml".into(), text };
    let what = format!(
        "transformers {}: HfArgumentParser((TrainingArguments,)).parse_yaml_file(\"training_arguments.yaml\")",
        hugging_face::VERSION
    );
    let text = head(source.plan, &what, &[]) + &arguments(source);
    let training = ConfigFile { name: "training_arguments.yaml".into(), text };
    let mut files = vec![config, training, hugging_face::config(source, family)];
    if is_below(source) {
        files.push(ConfigFile { name: DS_CONFIG.into(), text: deepspeed(source).text() });
    }
    let is_sharded = is_fsdp(source) || is_below(source) && deepspeed_stage(source.arrangement) == 3;
    files.extend(adapters::files(source, family, is_sharded));
    ConfigFiles::of(files, notes, start)
}

/// Name of the file with the configuration of DeepSpeed.
const DS_CONFIG: &str = "ds_config.json";

/// Returns `true` if DeepSpeed runs below accelerate.
fn is_below(source: &DecoderPlan) -> bool {
    is_deepspeed_below_accelerate(source.arrangement)
}

/// Returns `true` if FSDP shards the state; otherwise replicas use DistributedDataParallel or DeepSpeed.
fn is_fsdp(source: &DecoderPlan) -> bool {
    source.arrangement.zero != ZeroStage::Zero0 && !is_below(source)
}

/// Returns `true` if PyTorch casts products: without DeepSpeed, weights in bf16 need no casts.
fn is_autocast(source: &DecoderPlan) -> bool {
    is_below(source) || source.arrangement.state.weights == StatePrecision::F32
}

/// Returns `true` if the plan uses axes other than `data`, or several shard groups.
fn is_parallel(source: &DecoderPlan) -> bool {
    source.degree(Axis::Tensor) * source.degree(Axis::Context) > 1 || is_fsdp(source) && source.copies() > 1
}

fn own_notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = Vec::new();
    if source.degree(Axis::Tensor) > 1 {
        let tensor = source.degree(Axis::Tensor);
        notes.push(format!(
            "tensor {tensor}: give from_config or from_pretrained tp_plan=\"auto\" and the mesh of accelerate"
        ));
    }
    if source.train().schedule == Schedule::Linear && source.train().final_fraction > 0.0 {
        notes.push(format!("the learning rate falls to 0, not to {:?}", source.rate_last()));
    }
    match source.optimizer().kind {
        OptimizerKind::Lion => notes.push("lion is that of bitsandbytes, which must be installed".into()),
        OptimizerKind::Sgd => {
            notes.push("sgd: weight decay is added to the gradient here, not applied beside it".into());
        }
        OptimizerKind::Adamw | OptimizerKind::Lamb => {}
    }
    let state = &source.arrangement.state;
    if state.moments == MomentPrecision::Int8 && source.optimizer().kind == OptimizerKind::Adamw {
        let package = if is_fsdp(source) { "torchao" } else { "bitsandbytes" };
        notes.push(format!("8-bit moments are those of {package}, which must be installed"));
    }
    if is_below(source) {
        notes.push("state in host memory: DeepSpeed runs below accelerate, and must be installed".into());
    }
    if state.loss == LossKernel::Fused {
        notes.push("fused loss: Liger replaces norms, rotary positions and SwiGLU too; liger-kernel must be installed".into());
    }
    notes
}

fn configuration(source: &DecoderPlan, family: ModelFamily) -> String {
    let world = source.arrangement.layout.world();
    let sharded = is_fsdp(source) || is_parallel(source);
    let kind = match (sharded, world) {
        _ if is_below(source) => "DEEPSPEED",
        (true, _) => "FSDP",
        (false, 1) => "'NO'",
        (false, _) => "MULTI_GPU",
    };
    // accelerate refuses it beside a file of DeepSpeed, which has the precision.
    let precision = match source.arrangement.precision {
        _ if is_below(source) => "",
        Precision::Bf16 if is_autocast(source) => "mixed_precision: bf16\n",
        Precision::F32 | Precision::Bf16 => "mixed_precision: 'no'\n",
        Precision::F16 => "mixed_precision: fp16\n",
        Precision::Fp8 => unreachable!("no family of models has fp8"),
    };
    let count = HostShape::of(source.plan).count;
    let meet = if count > 1 {
        "machine_rank: 0 # SET: 0 on the first host, 1 on the second and so on\n\
         main_process_ip: FIRST_HOST # SET: the first host\nmain_process_port: 29500\n"
    } else {
        "machine_rank: 0\n"
    };
    let mut text = format!(
        "compute_environment: LOCAL_MACHINE\ndebug: false\ndistributed_type: {kind}\n{meet}\
         {precision}num_machines: {count}\nnum_processes: {world}\nuse_cpu: false\n"
    );
    if sharded {
        text += &sharding(source, family);
    }
    if is_below(source) {
        let is_stage_3 = deepspeed_stage(source.arrangement) == 3;
        text += &format!(
            "deepspeed_config:\n  deepspeed_config_file: {DS_CONFIG}\n  zero3_init_flag: {is_stage_3}\n"
        );
        if count > 1 {
            text += "  deepspeed_multinode_launcher: standard\n";
        }
    }
    if is_parallel(source) {
        text += &parallelism(source);
    }
    text
}

/// Returns the configuration of DeepSpeed below accelerate. Optimizer and schedule are those of transformers.
fn deepspeed(source: &DecoderPlan) -> OrderedObject {
    let (split, state) = (source.split, &source.arrangement.state);
    let on_host = || OrderedObject::default().with("device", "cpu");
    let mut zero = OrderedObject::default()
        .with("stage", deepspeed_stage(source.arrangement))
        .object("offload_optimizer", on_host());
    if state.offload == Offload::All {
        zero = zero.object("offload_param", on_host());
    }
    let mut object = OrderedObject::default()
        .with("train_batch_size", split.global())
        .with("train_micro_batch_size_per_gpu", split.micro())
        .with("gradient_accumulation_steps", split.micro_batches().get())
        .with("gradient_clipping", source.train().clip.unwrap_or(0.0))
        .object("zero_optimization", zero);
    if source.optimizer().kind != OptimizerKind::Adamw || state.moments == MomentPrecision::Int8 {
        // accelerate would replace the optimizer with DeepSpeed's AdamW in f32.
        object = object.with("zero_force_ds_cpu_optimizer", false);
    }
    let enabled = OrderedObject::default().with("enabled", true);
    match source.arrangement.precision {
        Precision::F32 => object,
        Precision::Bf16 if state.weights == StatePrecision::Bf16 => object.object(
            "bf16",
            enabled.with("bf16_master_weights_and_grads", true).with("bf16_optimizer_states", true),
        ),
        Precision::Bf16 => object.object("bf16", enabled),
        // Zero selects a dynamic loss scale.
        Precision::F16 => object.object("fp16", enabled.with("loss_scale", 0)),
        Precision::Fp8 => unreachable!("no family of models has fp8"),
    }
}

fn sharding(source: &DecoderPlan, family: ModelFamily) -> String {
    format!(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  \
         fsdp_transformer_layer_cls_to_wrap: {}\n  fsdp_reshard_after_forward: {}\n  \
         fsdp_activation_checkpointing: {}\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n  \
         fsdp_offload_params: {}\n  fsdp_cpu_ram_efficient_loading: false\n",
        family.block(),
        source.arrangement.zero == ZeroStage::Zero3,
        source.arrangement.recompute == Recompute::Full,
        source.arrangement.state.offload == Offload::All
    )
}

fn parallelism(source: &DecoderPlan) -> String {
    let context = source.degree(Axis::Context);
    let shard = if is_fsdp(source) { source.shard() / context } else { 1 };
    let prefix = "  parallelism_config_";
    let mut text = format!(
        "parallelism_config:\n{prefix}dp_replicate_size: {}\n{prefix}dp_shard_size: {shard}\n\
         {prefix}tp_size: {}\n{prefix}cp_size: {context}\n",
        source.degree(Axis::Data) / shard,
        source.degree(Axis::Tensor)
    );
    if context > 1 {
        // PyTorch's ring passes keys and values by all-to-all.
        let strategy = match source.arrangement.context_exchange {
            ContextExchange::AllGather => "allgather",
            ContextExchange::Ring | ContextExchange::AllToAll => "alltoall",
        };
        text += &format!("{prefix}cp_backend: torch\n{prefix}cp_comm_strategy: {strategy}\n");
    }
    text
}

/// Returns the training arguments of transformers, one per line.
fn arguments(source: &DecoderPlan) -> String {
    let (train, rule, pace) = (source.train(), source.optimizer(), &source.choice.run_length);
    let is_8_bit = source.arrangement.state.moments == MomentPrecision::Int8;
    let mut lines = vec![
        "output_dir: checkpoints".into(),
        format!("per_device_train_batch_size: {}", source.split.micro()),
        format!("gradient_accumulation_steps: {}", source.split.micro_batches()),
        format!("max_steps: {}", source.steps()),
        format!("learning_rate: {}", number(source.rate())),
        format!("warmup_steps: {}", source.warmup()),
    ];
    lines.extend(match train.schedule {
        Schedule::Cosine => vec![
            "lr_scheduler_type: cosine_with_min_lr".into(),
            format!("lr_scheduler_kwargs:\n  min_lr_rate: {}", number(train.final_fraction)),
        ],
        Schedule::Linear => vec!["lr_scheduler_type: linear".into()],
        Schedule::Constant => vec!["lr_scheduler_type: constant_with_warmup".into()],
    });
    lines.extend(match rule.kind {
        OptimizerKind::Sgd => vec![
            "optim: sgd".into(),
            format!("optim_args: momentum={:?},weight_decay={:?}", rule.beta1, rule.weight_decay),
        ],
        OptimizerKind::Lion if is_8_bit => vec!["optim: lion_8bit".into()],
        OptimizerKind::Lion => vec!["optim: lion_32bit".into()],
        OptimizerKind::Adamw | OptimizerKind::Lamb => {
            let name = match (is_8_bit, is_fsdp(source)) {
                (false, _) => "adamw_torch",
                // The kernels of bitsandbytes take no parts of FSDP2.
                (true, true) => "adamw_torch_8bit",
                (true, false) => "adamw_bnb_8bit",
            };
            vec![format!("optim: {name}"), format!("adam_epsilon: {}", number(rule.epsilon))]
        }
    });
    if rule.kind != OptimizerKind::Sgd {
        lines.push(format!("adam_beta1: {}", number(rule.beta1)));
        lines.push(format!("adam_beta2: {}", number(rule.beta2)));
    }
    lines.extend([
        format!("weight_decay: {}", number(rule.weight_decay)),
        format!("max_grad_norm: {}", number(train.clip.unwrap_or(0.0))),
        format!("bf16: {}", source.arrangement.precision == Precision::Bf16 && is_autocast(source)),
        format!("fp16: {}", source.arrangement.precision == Precision::F16),
        format!("activation_checkpointing: {}", recomputes_alone(source)),
        format!("seed: {}", train.seed),
        "save_strategy: steps".into(),
        format!("save_steps: {}", pace.save_every),
        format!("save_total_limit: {}", source.plan.recipe.checkpoint.keep),
    ]);
    if source.arrangement.state.loss == LossKernel::Fused {
        lines.push("use_liger_kernel: true".into());
    }
    lines.join("\n") + "\n"
}

/// Returns `true` if transformers itself recomputes blocks, as FSDP is not used.
fn recomputes_alone(source: &DecoderPlan) -> bool {
    source.arrangement.recompute == Recompute::Full && !is_fsdp(source) && !is_parallel(source)
}

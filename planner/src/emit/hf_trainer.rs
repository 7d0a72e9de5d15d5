//! Emits configuration for the Trainer of Hugging Face transformers with PyTorch FSDP2: the YAML file of
//! accelerate, the training arguments, and the model.

use super::hosts::HostShape;
use super::hugging_face::{self, DecoderArchitecture};
use super::source::DecoderPlan;
use super::yaml::number;
use super::{ConfigFile, ConfigFiles, head};
use dtrain_protocol::{Axis, ContextExchange};
use dtrain_recipes::{OptimizerKind, Precision, Recompute, Schedule, ZeroStage};

/// Version of accelerate against which the names were checked.
pub(crate) const VERSION: &str = "1.15.0";

/// Emits the files `accelerate.yaml`, `training_arguments.yaml` and `config.json`.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let family = DecoderArchitecture::of(source.model);
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
    let files = vec![config, training, hugging_face::config(source, family)];
    ConfigFiles::of(files, notes, start)
}

/// Returns `true` if FSDP shards the state; otherwise replicas use DistributedDataParallel.
fn is_fsdp(source: &DecoderPlan) -> bool {
    source.arrangement.zero != ZeroStage::Zero0
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
    notes
}

fn configuration(source: &DecoderPlan, family: DecoderArchitecture) -> String {
    let world = source.arrangement.layout.world();
    let sharded = is_fsdp(source) || is_parallel(source);
    let kind = match (sharded, world) {
        (true, _) => "FSDP",
        (false, 1) => "'NO'",
        (false, _) => "MULTI_GPU",
    };
    let precision = match source.arrangement.precision {
        Precision::F32 => "'no'",
        Precision::Bf16 => "bf16",
        Precision::F16 => "fp16",
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
         mixed_precision: {precision}\nnum_machines: {count}\nnum_processes: {world}\nuse_cpu: false\n"
    );
    if sharded {
        text += &sharding(source, family);
    }
    if is_parallel(source) {
        text += &parallelism(source);
    }
    text
}

fn sharding(source: &DecoderPlan, family: DecoderArchitecture) -> String {
    format!(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  \
         fsdp_transformer_layer_cls_to_wrap: {}\n  fsdp_reshard_after_forward: {}\n  \
         fsdp_activation_checkpointing: {}\n  fsdp_state_dict_type: SHARDED_STATE_DICT\n  \
         fsdp_offload_params: false\n  fsdp_cpu_ram_efficient_loading: false\n",
        family.block(),
        source.arrangement.zero == ZeroStage::Zero3,
        source.arrangement.recompute == Recompute::Full
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
        OptimizerKind::Lion => vec!["optim: lion_32bit".into()],
        OptimizerKind::Adamw | OptimizerKind::Lamb => {
            vec!["optim: adamw_torch".into(), format!("adam_epsilon: {}", number(rule.epsilon))]
        }
    });
    if rule.kind != OptimizerKind::Sgd {
        lines.push(format!("adam_beta1: {}", number(rule.beta1)));
        lines.push(format!("adam_beta2: {}", number(rule.beta2)));
    }
    lines.extend([
        format!("weight_decay: {}", number(rule.weight_decay)),
        format!("max_grad_norm: {}", number(train.clip.unwrap_or(0.0))),
        format!("bf16: {}", source.arrangement.precision == Precision::Bf16),
        format!("fp16: {}", source.arrangement.precision == Precision::F16),
        format!("activation_checkpointing: {}", recomputes_alone(source)),
        format!("seed: {}", train.seed),
        "save_strategy: steps".into(),
        format!("save_steps: {}", pace.save_every),
        format!("save_total_limit: {}", source.plan.recipe.checkpoint.keep),
    ]);
    lines.join("\n") + "\n"
}

/// Returns `true` if transformers itself recomputes blocks, as FSDP is not used.
fn recomputes_alone(source: &DecoderPlan) -> bool {
    source.arrangement.recompute == Recompute::Full && !is_fsdp(source) && !is_parallel(source)
}

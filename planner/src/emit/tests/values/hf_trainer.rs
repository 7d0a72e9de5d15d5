//! Files of accelerate and transformers for Hugging Face's Trainer.

use super::super::readers::{flat, yaml};
use super::deepspeed::{BALANCE, SELECTIVE, SEQUENCE, WEIGHTS, model};
use super::*;

fn read(emitted: &ConfigFiles) -> Lines {
    let mut found = start(emitted);
    for (path, name) in [("accelerate", "accelerate.yaml"), ("training", "training_arguments.yaml")] {
        let documents = yaml::documents(file(emitted, name));
        assert_eq!(documents.len(), 1, "{name} is one document");
        found.append(&mut flat(path, &documents[0]));
    }
    let config = serde_json::from_str(file(emitted, "config.json")).expect("it is JSON");
    found.append(&mut flat("config", &config));
    found
}

/// What follows from the plan, and is the same for all.
fn all(of: &SampleValues) -> String {
    let is_half = of.precision() == Precision::Bf16;
    format!(
        "files accelerate.yaml training_arguments.yaml config.json
        start accelerate launch --config_file accelerate.yaml YOUR_PROGRAM.py training_arguments.yaml
        accelerate.mixed_precision {}
        accelerate.num_machines {}
        accelerate.num_processes {}
        training.per_device_train_batch_size {}
        training.gradient_accumulation_steps {}
        training.max_steps {}
        training.learning_rate {:?}
        training.warmup_steps {}
        training.save_steps {}
        training.save_total_limit {}
        training.bf16 {is_half}{RECIPE}{}",
        if is_half { "bf16" } else { "no" },
        of.hosts,
        of.ranks,
        of.micro,
        of.micro_batches,
        of.steps,
        of.rate,
        of.warmup,
        of.save_every,
        of.keep,
        model(of)
    )
}

/// The optimizer and schedule of the recipe that all sample plans have.
const RECIPE: &str = "
    accelerate.compute_environment LOCAL_MACHINE
    accelerate.debug false
    accelerate.machine_rank 0
    accelerate.use_cpu false
    training.output_dir checkpoints
    training.lr_scheduler_type cosine_with_min_lr
    training.lr_scheduler_kwargs.min_lr_rate 0.1
    training.optim adamw_torch
    training.adam_epsilon 1e-8
    training.adam_beta1 0.9
    training.adam_beta2 0.95
    training.weight_decay 0.1
    training.max_grad_norm 1.0
    training.fp16 false
    training.activation_checkpointing false
    training.seed 1
    training.save_strategy steps
";

/// FSDP2 over blocks of this class; whether weights are gathered for each pass, and blocks computed again.
macro_rules! sharded {
    ($class:literal, $reshard:literal, $again:literal $($own:literal)*) => {
        concat!(
            "accelerate.distributed_type FSDP
            accelerate.fsdp_config.fsdp_version 2
            accelerate.fsdp_config.fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP
            accelerate.fsdp_config.fsdp_transformer_layer_cls_to_wrap ", $class, "
            accelerate.fsdp_config.fsdp_reshard_after_forward ", $reshard, "
            accelerate.fsdp_config.fsdp_activation_checkpointing ", $again, "
            accelerate.fsdp_config.fsdp_state_dict_type SHARDED_STATE_DICT
            accelerate.fsdp_config.fsdp_offload_params false
            accelerate.fsdp_config.fsdp_cpu_ram_efficient_loading false",
            $("\naccelerate.parallelism_config.parallelism_config_", $own),*
        )
    };
}

const MESH: &str =
    "tensor 2: give from_config or from_pretrained tp_plan=\"auto\" and the mesh of accelerate";
const STAGES: (&str, &str) = ("pipeline parallelism", "pin layout.pipeline = 1");
const EXPERTS: (&str, &str) = ("expert parallelism", "pin layout.expert = 1");
const MOMENTS: (&str, &str) = ("zero 1", "FSDP2 shards gradients too; pin layout.zero = 0, 2 or 3");

#[test]
fn hf_trainer_is_given_what_each_plan_says() {
    table(
        ConfigFormat::HfTrainer,
        all,
        &[
            ("single", "accelerate.distributed_type NO", &[CPU_NOTE, DATA_NOTE, WEIGHTS]),
            ("gradients", sharded!("GPT2Block", false, false), &[DATA_NOTE, WEIGHTS]),
            ("whole", sharded!("MixtralDecoderLayer", true, false), &[DATA_NOTE, WEIGHTS, BALANCE]),
            (
                "cut",
                sharded!("LlamaDecoderLayer", true, true
                    "dp_replicate_size 1" "dp_shard_size 4" "tp_size 2" "cp_size 1"),
                &[DATA_NOTE, MESH, WEIGHTS],
            ),
            (
                "hybrid",
                sharded!("LlamaDecoderLayer", true, false
                    "dp_replicate_size 2" "dp_shard_size 2" "tp_size 1" "cp_size 2" "cp_backend torch"
                    "cp_comm_strategy alltoall"),
                &[DATA_NOTE, WEIGHTS],
            ),
        ],
        &[
            ("circular", STAGES.0, STAGES.1),
            ("ends", STAGES.0, STAGES.1),
            ("gathered", STAGES.0, STAGES.1),
            ("pipeline", STAGES.0, STAGES.1),
            ("experts", EXPERTS.0, EXPERTS.1),
            ("folded", EXPERTS.0, EXPERTS.1),
            ("gpt", MOMENTS.0, MOMENTS.1),
            ("hosts", MOMENTS.0, MOMENTS.1),
            ("llama", SEQUENCE.0, SEQUENCE.1),
            ("mixture", SELECTIVE.0, SELECTIVE.1),
        ],
        read,
    );
}

/// No sample plan of several hosts is one of Hugging Face's Trainer.
#[test]
fn accelerate_meets_at_the_first_of_several_hosts() {
    let mut plan = gradients();
    plan.host.hosts = n(2);
    let found = read(&emit(&plan, ConfigFormat::HfTrainer).expect("it runs on several hosts"));
    for (key, value) in [
        ("num_machines", "2"),
        ("num_processes", "4"),
        ("main_process_ip", "FIRST_HOST"),
        ("main_process_port", "29500"),
    ] {
        assert_eq!(found.get(&format!("accelerate.{key}")).map(String::as_str), Some(value), "{key}");
    }
}

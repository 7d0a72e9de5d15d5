//! `ds_config.json`, the model of transformers and the command of DeepSpeed.

use super::super::readers::{add, flat, shell};
use super::*;

fn read(emitted: &ConfigFiles) -> Lines {
    let json = |name| serde_json::from_str(file(emitted, name)).expect("it is JSON");
    let mut found = flat("", &json("ds_config.json"));
    found.append(&mut flat("config", &json("config.json")));
    found.append(&mut start(emitted));
    for mut command in shell::commands(file(emitted, "deepspeed.sh")) {
        let name = command.remove(0);
        add(&mut found, name, command.join(" "));
    }
    found
}

/// `config.json` of transformers, below `config`.
pub(super) fn model(of: &SampleValues) -> String {
    let model = of.model;
    let sizes = [model.layers, model.hidden, model.heads, model.ffn, model.context, model.vocab];
    let keys = match model.positions {
        Positions::Learned => ["n_layer", "n_embd", "n_head", "n_inner", "n_positions", "vocab_size"],
        Positions::Rotary => [
            "num_hidden_layers",
            "hidden_size",
            "num_attention_heads",
            "intermediate_size",
            "max_position_embeddings",
            "vocab_size",
        ],
    };
    let sizes: String = keys.iter().zip(sizes).map(|(key, size)| format!("config.{key} {size}\n")).collect();
    let kind = match (&model.experts, model.positions) {
        (_, Positions::Learned) => GPT,
        (None, Positions::Rotary) => &[LLAMA, LLAMA_ALONE].concat(),
        (Some(_), Positions::Rotary) => &[LLAMA, EXPERTS].concat(),
    };
    format!("{sizes}{kind}config.tie_word_embeddings {}\nconfig.dtype float32\n", model.tied)
}

const GPT: &str = "
    config.architectures [GPT2LMHeadModel]
    config.model_type gpt2
    config.activation_function gelu
    config.layer_norm_epsilon 1e-5
    config.resid_pdrop 0.0
    config.embd_pdrop 0.0
    config.attn_pdrop 0.0
";

const LLAMA: &str = "
    config.num_key_value_heads 4
    config.hidden_act silu
    config.rms_norm_eps 1e-5
    config.rope_parameters.rope_type default
    config.rope_parameters.rope_theta 10000.0
";

const LLAMA_ALONE: &str = "
    config.architectures [LlamaForCausalLM]
    config.model_type llama
    config.attention_bias false
    config.mlp_bias false
";

const EXPERTS: &str = "
    config.architectures [MixtralForCausalLM]
    config.model_type mixtral
    config.num_local_experts 8
    config.num_experts_per_tok 2
    config.output_router_logits true
    config.router_aux_loss_coef 0.01
";

/// What follows from the plan, and is the same for all.
fn all(of: &SampleValues) -> String {
    let hosts = match of.hosts {
        1 => String::new(),
        several => format!("--hostfile hostfile --num_nodes {several} "),
    };
    let stage = match of.plan.best().candidate.arrangement.zero {
        ZeroStage::Zero0 => 0,
        ZeroStage::Zero1 => 1,
        ZeroStage::Zero2 => 2,
        ZeroStage::Zero3 => 3,
    };
    let precision = if of.precision() == Precision::Bf16 { "bf16.enabled true" } else { "" };
    format!(
        "files ds_config.json config.json deepspeed.sh
        start bash deepspeed.sh
        set -euo pipefail
        exec deepspeed {hosts}--num_gpus {} train.py --deepspeed_config ds_config.json $@
        train_batch_size {}
        train_micro_batch_size_per_gpu {}
        gradient_accumulation_steps {}
        optimizer.params.lr {:?}
        scheduler.params.warmup_num_steps {}
        scheduler.params.total_num_steps {}
        zero_optimization.stage {stage}
        {precision}{RECIPE}{}",
        of.ranks_per_host(),
        of.global,
        of.micro,
        of.micro_batches,
        of.rate,
        of.warmup,
        of.steps,
        model(of)
    )
}

/// The optimizer and schedule of the recipe that all sample plans have.
const RECIPE: &str = "
    gradient_clipping 1.0
    optimizer.type AdamW
    optimizer.params.betas [0.9, 0.95]
    optimizer.params.eps 1e-8
    optimizer.params.weight_decay 0.1
    scheduler.type WarmupCosineLR
    scheduler.params.warmup_type linear
    scheduler.params.warmup_min_ratio 0.0
    scheduler.params.cos_min_ratio 0.1
";

const SEED: &str = "DeepSpeed takes no seed: call transformers.set_seed(1) before the model is made";
const DECAY: &str = "weight decay is for matrices only in the plan: give the optimizer two groups of parameters, or it is for all";
pub(super) const WEIGHTS: &str = "weights begin as transformers draw them, not as dtrain does";
pub(super) const BALANCE: &str =
    "balance of experts is counted over a micro-batch here, over each sequence in the plan";
const AGAIN: &str = "recompute: call model.gradient_checkpointing_enable(), which computes every block again";

const STAGES: (&str, &str) = (
    "pipeline parallelism",
    "it cuts pipelines in the program (PipelineModule), not in its configuration; pin layout.pipeline = 1",
);
pub(super) const SEQUENCE: (&str, &str) =
    ("sequence parallelism between tensor ranks", "pin layout.sequence = false");
pub(super) const SELECTIVE: (&str, &str) =
    ("selective recompute", "pin layout.recompute = \"none\": its fused attention does not keep its scores");

#[test]
fn deepspeed_is_given_what_each_plan_says() {
    table(
        ConfigFormat::Deepspeed,
        all,
        &[
            ("gpt", "", &[DATA_NOTE, SEED, DECAY, WEIGHTS]),
            ("hosts", "", &[DATA_NOTE, SEED, DECAY, WEIGHTS]),
            ("gradients", "", &[DATA_NOTE, SEED, DECAY, WEIGHTS]),
            ("single", "", &[CPU_NOTE, DATA_NOTE, SEED, DECAY, WEIGHTS]),
            ("cut", "tensor_parallel.autotp_size 2", &[DATA_NOTE, SEED, AGAIN, DECAY, WEIGHTS]),
            ("whole", "", &[DATA_NOTE, SEED, DECAY, WEIGHTS, BALANCE]),
            (
                "experts",
                "expert_parallel.enabled true\nexpert_parallel.autoep_size 2\nexpert_parallel.preset_model mixtral",
                &[DATA_NOTE, SEED, DECAY, WEIGHTS, BALANCE],
            ),
        ],
        &[
            ("circular", STAGES.0, STAGES.1),
            ("ends", STAGES.0, STAGES.1),
            ("gathered", STAGES.0, STAGES.1),
            ("pipeline", STAGES.0, STAGES.1),
            ("folded", SEQUENCE.0, SEQUENCE.1),
            ("llama", SEQUENCE.0, SEQUENCE.1),
            ("mixture", SELECTIVE.0, SELECTIVE.1),
            (
                "hybrid",
                "context parallelism",
                "its sequence parallelism (Ulysses) is set up in the program; pin layout.context = 1",
            ),
        ],
        read,
    );
}

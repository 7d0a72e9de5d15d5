//! `maxtext.yml`, and the script that starts MaxText.

use super::super::readers::{add, flat, shell, yaml};
use super::*;

fn read(emitted: &ConfigFiles) -> Lines {
    let documents = yaml::documents(file(emitted, "maxtext.yml"));
    assert_eq!(documents.len(), 1, "it is one document");
    let mut found = flat("", &documents[0]);
    found.append(&mut start(emitted));
    for mut command in shell::commands(file(emitted, "maxtext.sh")) {
        let name = command.remove(0);
        add(&mut found, name, command.join(" "));
    }
    found
}

/// What follows from the plan, and is the same for all.
fn all(of: &SampleValues) -> String {
    let (model, layout) = (of.model, of.layout());
    let kind = if model.experts.is_some() { EXPERTS } else { "decoder_block llama2" };
    format!(
        "files maxtext.yml maxtext.sh
        start bash maxtext.sh
        base_num_decoder_layers {}
        base_emb_dim {}
        base_num_query_heads {}
        base_num_kv_heads {}
        base_mlp_dim {}
        vocab_size {}
        max_target_length {}
        ici_pipeline_parallelism {}
        ici_expert_parallelism {}
        ici_context_parallelism {}
        ici_tensor_sequence_parallelism {}
        steps {}
        learning_rate {:?}
        learning_rate_schedule_steps {}
        checkpoint_period {}
        max_num_checkpoints_to_keep {}
        eval_interval {}
        eval_steps {}
        {kind}{RECIPE}",
        model.layers,
        model.hidden,
        model.heads,
        model.kv_heads,
        model.ffn,
        model.vocab,
        model.context,
        layout.pipeline,
        layout.expert,
        layout.context,
        layout.tensor,
        of.steps,
        of.rate,
        of.steps,
        of.save_every,
        of.keep,
        of.validate_every,
        of.validations
    )
}

const EXPERTS: &str = "
    decoder_block mixtral
    base_moe_mlp_dim 1024
    num_experts 8
    num_experts_per_tok 2
    load_balance_loss_weight 0.01
    megablox false
    sparse_matmul true
    capacity_factor -1.0
";

/// The model but for its sizes, the optimizer, the schedule and the data of all sample plans for MaxText.
const RECIPE: &str = "
    set -euo pipefail
    exec python3 -m maxtext.trainers.pre_train.train maxtext.yml $@
    base_config base.yml
    hardware gpu
    model_name default
    head_dim 32
    mlp_activations [silu, linear]
    logits_via_embedding false
    normalize_embedding_logits false
    normalization_layer_epsilon 1e-5
    rope_max_timescale 10000
    enable_dropout false
    num_slices 1
    dcn_data_parallelism 1
    opt_type adamw
    adam_b1 0.9
    adam_b2 0.95
    adam_eps 1e-8
    adam_weight_decay 0.1
    adamw_mask [.*norm.*]
    gradient_clipping_threshold 1.0
    z_loss_multiplier 0.0
    lr_schedule_type cosine
    warmup_steps_fraction 0.016584766584766583
    learning_rate_final_fraction 0.1
    dtype bfloat16
    weight_dtype float32
    attention cudnn_flash_te
    data_shuffle_seed 1
    init_weights_seed 1
    dataset_type hf
    hf_path text
    hf_train_files /data/data/*.txt
    hf_eval_files validation.txt
    hf_eval_split train
    tokenizer_type huggingface
    tokenizer_path tokenizer
    packing true
    max_segments_per_seq 32
    run_name tiny-llama
    base_output_directory checkpoints
    enable_checkpointing true
";

const WEIGHTS: &str = "weights begin as MaxText draws them, not as dtrain does";
const KEEPS: (&str, &str) =
    ("no recompute", "its `remat_policy` keeps products at most; pin layout.recompute = \"selective\"");
const FAMILY: (&str, &str) = (
    "a decoder that is not of the Llama family",
    "it needs model.positions = \"rotary\", norm = \"rms\", activation = \"swiglu\" and bias = false",
);

#[test]
fn maxtext_is_given_what_each_plan_says() {
    table(
        ConfigFormat::Maxtext,
        all,
        &[
            (
                "llama",
                "ici_data_parallelism 1\nici_fsdp_parallelism 4\nremat_policy full
                per_device_batch_size 1.0\ngradient_accumulation_steps 4",
                &[DATA_NOTE, WEIGHTS],
            ),
            (
                "circular",
                "ici_data_parallelism 1\nici_fsdp_parallelism 2\nremat_policy full
                per_device_batch_size 8.0\ngradient_accumulation_steps 1
                num_layers_per_pipeline_stage 2\nnum_pipeline_repeats 1\nnum_pipeline_microbatches 8\nscan_layers false",
                &[DATA_NOTE, WEIGHTS],
            ),
            (
                "mixture",
                "ici_data_parallelism 2\nici_fsdp_parallelism 2\nremat_policy minimal
                per_device_batch_size 0.5\ngradient_accumulation_steps 2
                context_parallel_strategy ring\ncontext_parallel_load_balance true
                mesh_axes [diloco, data, stage, fsdp, fsdp_transpose, expert, context, context_usp_ulysses, context_autoregressive, tensor, tensor_sequence, autoregressive]",
                &[
                    DATA_NOTE,
                    WEIGHTS,
                    "selective recompute: the policy `minimal` keeps what products with weights made and computes the rest again",
                    "balance of experts is counted over a batch here, over each sequence in the plan",
                ],
            ),
        ],
        &[
            ("experts", KEEPS.0, KEEPS.1),
            ("folded", KEEPS.0, KEEPS.1),
            ("gathered", KEEPS.0, KEEPS.1),
            ("hybrid", KEEPS.0, KEEPS.1),
            ("single", KEEPS.0, KEEPS.1),
            ("whole", KEEPS.0, KEEPS.1),
            ("gpt", FAMILY.0, FAMILY.1),
            ("gradients", FAMILY.0, FAMILY.1),
            ("hosts", FAMILY.0, FAMILY.1),
            (
                "cut",
                "tensor parallelism without sequence parallelism",
                "its axis `tensor_sequence` divides sequences between matrices; pin layout.sequence = true",
            ),
            (
                "ends",
                "pipeline stages nearer to each other than replicas",
                "let the pipeline be the outermost axis",
            ),
            ("pipeline", "zero 1 in a pipeline", "pin layout.zero = 0 or 3"),
        ],
        read,
    );
}

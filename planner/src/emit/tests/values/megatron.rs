//! Arguments of Megatron-LM.

use super::super::readers::{add, shell};
use super::*;

/// Returns the arguments of the program as lines, with those of `torchrun`, and other commands.
fn read(emitted: &ConfigFiles) -> Lines {
    let mut commands = shell::commands(file(emitted, "megatron.sh"));
    let last = commands.pop().expect("the script starts something");
    let program = last.iter().position(|word| word == "pretrain_gpt.py").expect("the program");
    let mut found = shell::options(&last[..program]);
    found.append(&mut shell::options(&last[program + 1..]));
    found.append(&mut start(emitted));
    for command in commands {
        add(&mut found, command[0].clone(), command[1..].join(" "));
    }
    found
}

/// What follows from the plan, and is the same for all.
fn all(of: &SampleValues) -> String {
    let (model, layout) = (of.model, of.layout());
    let kind = match (&model.experts, model.positions) {
        (_, Positions::Learned) => GPT,
        (None, Positions::Rotary) => LLAMA,
        (Some(_), Positions::Rotary) => &[LLAMA, EXPERTS].concat(),
    };
    let precision = if of.precision() == Precision::Bf16 { "--bf16" } else { "" };
    format!(
        "files megatron.sh
        start in MEGATRON-LM: bash megatron.sh
        set -euo pipefail
        0 exec
        1 torchrun
        --nnodes {}
        --nproc-per-node {}
        --rdzv-backend c10d
        --rdzv-endpoint localhost:29500
        --num-layers {}
        --hidden-size {}
        --ffn-hidden-size {}
        --num-attention-heads {}
        --seq-length {}
        --max-position-embeddings {}
        --vocab-size {}
        --tensor-model-parallel-size {}
        --pipeline-model-parallel-size {}
        --context-parallel-size {}
        --micro-batch-size {}
        --global-batch-size {}
        --train-iters {}
        --lr {:?}
        --min-lr {:?}
        --lr-decay-iters {}
        --lr-warmup-iters {}
        --save-interval {}
        --eval-interval {}
        --eval-iters {}
        {precision}{kind}{RECIPE}",
        of.hosts,
        of.ranks_per_host(),
        model.layers,
        model.hidden,
        model.ffn,
        model.heads,
        model.context,
        model.context,
        model.vocab,
        layout.tensor,
        layout.pipeline,
        layout.context,
        of.micro,
        of.global,
        of.steps,
        of.rate,
        of.rate_last,
        of.steps,
        of.warmup,
        of.save_every,
        of.validate_every,
        of.validations
    )
}

/// The optimizer, schedule and data of the recipe that all sample plans have.
const RECIPE: &str = "
    --optimizer adam
    --adam-beta1 0.9
    --adam-beta2 0.95
    --adam-eps 1e-8
    --weight-decay 0.1
    --clip-grad 1.0
    --lr-decay-style cosine
    --seed 1
    --data-path corpus_text_document
    --split 95.0,5.0,0
    --tokenizer-type HuggingFaceTokenizer
    --tokenizer-model tokenizer
    --save checkpoints
    --load checkpoints
    --log-interval 10
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.02
    --norm-epsilon 1e-5
";

const GPT: &str = "
    --position-embedding-type learned_absolute
    --normalization LayerNorm
    --no-bias-gelu-fusion
";

const LLAMA: &str = "
    --group-query-attention
    --num-query-groups 4
    --position-embedding-type rope
    --rotary-base 10000
    --normalization RMSNorm
    --swiglu
    --untie-embeddings-and-output-weights
    --disable-bias-linear
";

const EXPERTS: &str = "
    --num-experts 8
    --moe-ffn-hidden-size 1024
    --moe-router-topk 2
    --moe-router-load-balancing-type seq_aux_loss
    --moe-token-dispatcher-type alltoall
    --moe-aux-loss-coeff 0.01
";

const SHARDED_MOMENTS: &str = "--use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather";

/// Megatron-FSDP with these parts sharded, and the arguments of one plan.
macro_rules! sharded {
    ($parts:literal $($own:literal)*) => {
        concat!(
            "--use-megatron-fsdp\n--data-parallel-sharding-strategy ", $parts,
            "\n--ckpt-format fsdp_dtensor\n--no-gradient-accumulation-fusion\n--use-distributed-optimizer
            --overlap-grad-reduce\n--overlap-param-gather",
            $("\n", $own),*
        )
    };
}

#[test]
fn megatron_is_given_what_each_plan_says() {
    table(
        ConfigFormat::Megatron,
        all,
        &[
            ("gpt", SHARDED_MOMENTS, &[DATA_NOTE]),
            ("hosts", SHARDED_MOMENTS, &[DATA_NOTE]),
            ("single", "", &[CPU_NOTE, DATA_NOTE]),
            ("gradients", sharded!("optim_grads"), &[DATA_NOTE]),
            (
                "llama",
                sharded!("optim_grads_params" "--sequence-parallel" "--tp-comm-overlap" "--recompute-granularity full"
                    "--recompute-method uniform" "--recompute-num-layers 1"),
                &[DATA_NOTE],
            ),
            (
                "cut",
                sharded!("optim_grads_params" "--recompute-granularity full" "--recompute-method uniform"
                    "--recompute-num-layers 1"),
                &[DATA_NOTE],
            ),
            (
                "hybrid",
                sharded!("optim_grads_params" "--cp-comm-type p2p" "--num-distributed-optimizer-instances 2"),
                &[DATA_NOTE],
            ),
            (
                "pipeline",
                "--num-virtual-stages-per-pipeline-rank 2\n--use-distributed-optimizer
                --overlap-grad-reduce\n--overlap-param-gather\n--recompute-granularity selective\n--recompute-modules core_attn",
                &[DATA_NOTE],
            ),
            (
                "ends",
                "--cp-comm-type a2a\n--use-tp-pp-dp-mapping\n--pipeline-model-parallel-layout Et*4|t*2L
                --use-distributed-optimizer\n--overlap-grad-reduce\n--overlap-param-gather
                export CUDA_DEVICE_MAX_CONNECTIONS=1",
                &[DATA_NOTE],
            ),
            (
                "experts",
                sharded!("optim_grads" "--expert-model-parallel-size 2" "--expert-tensor-parallel-size 1"),
                &[DATA_NOTE],
            ),
            (
                "folded",
                sharded!("optim_grads" "--expert-model-parallel-size 2" "--expert-tensor-parallel-size 1"
                    "--sequence-parallel" "--tp-comm-overlap"),
                &[DATA_NOTE],
            ),
            (
                "whole",
                sharded!("optim_grads_params" "--expert-model-parallel-size 1" "--expert-tensor-parallel-size 1"),
                &[DATA_NOTE],
            ),
        ],
        &[
            ("circular", "zero 2 or 3 in a pipeline", WITHOUT_STAGES),
            ("gathered", "zero 2 or 3 in a pipeline", WITHOUT_STAGES),
            (
                "mixture",
                "experts spread over replicas but not over the context ranks between them",
                "fold over all tensor and context ranks",
            ),
        ],
        read,
    );
}

const WITHOUT_STAGES: &str =
    "Megatron-FSDP shards gradients without one; pin layout.zero = 1 or layout.pipeline = 1";

/// Latent attention, shared experts, a first dense block and a further token to predict.
#[test]
fn megatron_is_given_all_of_a_newer_model() {
    let mut plan = newer::newer(fixtures::deepseek(), Precision::Fp8);
    plan.recipe.train.fp8_recipe = Some(Fp8Recipe::Blockwise);
    let emitted = emit(&plan, ConfigFormat::Megatron).expect("Megatron-LM has all of it");
    let mut found = read(&emitted);
    let expected = lines(
        "--ffn-hidden-size 512\n--kv-channels 24\n--multi-latent-attention\n--q-lora-rank 48\n--kv-lora-rank 32
        --qk-head-dim 24\n--qk-pos-emb-head-dim 8\n--v-head-dim 16\n--qk-layernorm\n--rope-type rope\n--no-rope-fusion
        --rotary-base 50000\n--moe-shared-expert-intermediate-size 96\n--moe-layer-freq [0]*1+[1]*3
        --mtp-num-layers 1\n--bf16\n--fp8-format e4m3\n--fp8-recipe blockwise",
    );
    let own: Lines = expected.keys().filter_map(|key| found.remove_entry(key)).collect();
    same("deepseek", &own, &expected);
    assert_eq!(emitted.notes, [DATA_NOTE]);
    // The rest is that of a mixture of experts without these, and as many key as query heads.
    let mut plain = lines(&all(&SampleValues::of(&{
        let mut plan = newer::newer(fixtures::experts(), Precision::F32);
        plan.recipe.train.fp8_recipe = None;
        plan
    })));
    for key in ["--group-query-attention", "--num-query-groups", "--ffn-hidden-size", "--rotary-base"] {
        plain.remove(key);
    }
    plain.append(&mut lines(
        "--expert-model-parallel-size 2\n--expert-tensor-parallel-size 1\n--use-distributed-optimizer
        --overlap-grad-reduce\n--overlap-param-gather",
    ));
    same("deepseek beside a mixture of experts", &found, &plain);
}

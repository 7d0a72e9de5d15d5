//! torchtitan's Python module: all that it assigns, and what its functions return.

use super::super::readers::flat;
use super::super::readers::python::PythonModule;
use super::*;
use serde_json::Value;

fn read(emitted: &ConfigFiles) -> Lines {
    let module = PythonModule::of(file(emitted, "dtrain_config.py"));
    assert_eq!(module.functions.keys().collect::<Vec<_>>(), ["documents"]);
    let mut found = flat("", &Value::Object(module.values));
    found.append(&mut start(emitted));
    found
}

/// What follows from the plan, and is the same for all.
fn all(of: &SampleValues) -> String {
    let (model, layout) = (of.model, of.layout());
    let local = if layout.pipeline.get() > 1 { of.micro * of.micro_batches } else { of.micro };
    let products = if of.precision() == Precision::F32 { "float32" } else { "bfloat16" };
    let arrangement = &of.plan.best().candidate.arrangement;
    let reshard = if arrangement.zero == ZeroStage::Zero3 { "always" } else { "never" };
    let groups: String = [("norm", 0.0), (".*", 0.1)]
        .iter()
        .enumerate()
        .map(|(place, (pattern, decay))| {
            let group = format!("train.optimizer.param_groups.{place}");
            format!(
                "{group} ParamGroupConfig()
                {group}.pattern {pattern}
                {group}.optimizer_name AdamW
                {group}.optimizer_kwargs.lr {:?}
                {group}.optimizer_kwargs.betas [0.9, 0.95]
                {group}.optimizer_kwargs.eps 1e-8
                {group}.optimizer_kwargs.weight_decay {decay:?}\n",
                of.rate
            )
        })
        .collect();
    format!(
        "files dtrain_config.py
        start PYTHONPATH=. torchrun --nproc-per-node {} -m torchtitan.train --module dtrain_config --config train
        READERS {}
        HIDDEN {}
        HEADS {}
        KV_HEADS {}
        HEAD_WIDTH {}
        FFN {}
        VOCAB {}
        SPEC.model.layers.in.0 {}
        block.attention.rope.max_seq_len {}
        train.lr_scheduler.warmup_steps {}
        train.lr_scheduler.total_steps {}
        train.training.local_batch_size {local}
        train.training.global_batch_size {}
        train.training.seq_len {}
        train.training.steps {}
        train.training.mixed_precision_param {products}
        train.parallelism.fsdp_reshard_after_forward {reshard}
        train.parallelism.tensor_parallel_degree {}
        train.parallelism.enable_sequence_parallel {}
        train.parallelism.context_parallel_degree {}
        train.parallelism.pipeline_parallel_degree {}
        train.checkpoint.interval {}
        train.checkpoint.keep_latest_k {}
        {groups}{RECIPE}{}",
        of.ranks_per_host(),
        layout.readers(),
        model.hidden,
        model.heads,
        model.kv_heads,
        model.hidden / model.heads,
        model.ffn,
        model.vocab,
        model.layers,
        model.context,
        of.warmup,
        of.steps,
        of.global,
        model.context,
        of.steps,
        layout.tensor,
        arrangement.sequence,
        layout.context,
        layout.pipeline,
        of.save_every,
        of.keep,
        if model.experts.is_some() { EXPERTS } else { LLAMA }
    )
}

/// What every module has: data, norms, attention, schedule and the classes of the parts.
const RECIPE: &str = "
    TOKENIZER assets/tokenizer
    FILES [/data/data/*.txt]
    DATASETS[recipe] DatasetConfig()
    DATASETS[recipe].path text
    DATASETS[recipe].loader documents
    DATASETS[recipe].sample_processor.lambda-sample sample[text]
    INIT.weight partial()
    INIT.weight.0 nn.init.normal_
    INIT.weight.std 0.02
    INIT.bias nn.init.zeros_
    norm RMSNorm.Config()
    norm.normalized_shape 256
    norm.eps 1e-5
    norm.param_init.weight nn.init.ones_
    block.attention_norm norm()
    block.ffn_norm norm()
    block.attention make_gqa_config()
    block.attention.dim 256
    block.attention.n_heads 8
    block.attention.n_kv_heads 4
    block.attention.head_dim 32
    block.attention.wqkv_param_init INIT
    block.attention.wo_param_init INIT
    block.attention.inner_attention get_attention_config()
    block.attention.inner_attention.0 flex
    block.attention.fuse_qkv true
    block.attention.rope.dim 32
    block.attention.rope.theta 10000.0
    SPEC ModelSpec()
    SPEC.flavor recipe
    SPEC.pipelining_fn pipeline_llm
    SPEC.model.dim 256
    SPEC.model.vocab_size 256
    SPEC.model.enable_weight_tying false
    SPEC.model.tok_embeddings Embedding.Config()
    SPEC.model.tok_embeddings.num_embeddings 256
    SPEC.model.tok_embeddings.embedding_dim 256
    SPEC.model.tok_embeddings.param_init INIT
    SPEC.model.norm norm()
    SPEC.model.lm_head Linear.Config()
    SPEC.model.lm_head.in_features 256
    SPEC.model.lm_head.out_features 256
    SPEC.model.lm_head.param_init INIT
    SPEC.model.layers.each block()
    SPEC.model.layers.in range()
    train Trainer.Config()
    train.model_spec SPEC
    train.hf_assets_path assets/tokenizer
    train.dataloader HuggingFaceTextDataLoader.Config()
    train.dataloader.dataset recipe
    train.loss ChunkedLossWrapper.Config()
    train.loss.loss_fn CrossEntropyLoss.Config()
    train.loss.loss_fn.global_vocab_size 256
    train.optimizer OptimizersContainer.Config()
    train.lr_scheduler LRSchedulersContainer.Config()
    train.lr_scheduler.decay_ratio null
    train.lr_scheduler.decay_type cosine
    train.lr_scheduler.min_lr_factor 0.1
    train.training TrainingConfig()
    train.training.max_norm 1.0
    train.parallelism ParallelismConfig()
    train.checkpoint CheckpointManager.Config()
    train.checkpoint.enable true
    train.checkpoint.last_save_model_only false
    train.debug DebugConfig()
    train.debug.seed 1
";

const LLAMA: &str = "
    block Llama3TransformerBlock.Config()
    block.attention.rope ComplexRoPE.Config()
    block.feed_forward make_ffn_config()
    block.feed_forward.dim 256
    block.feed_forward.hidden_dim 1024
    block.feed_forward.w1_param_init INIT
    block.feed_forward.w2w3_param_init INIT
    SPEC.name llama3
    SPEC.model Llama3Model.Config()
    SPEC.parallelize_fn parallelize_llama
    SPEC.post_optimizer_build_fn null
    SPEC.state_dict_adapter Llama3StateDictAdapter
";

const EXPERTS: &str = "
    block Qwen3TransformerBlock.Config()
    block.attention.rope CosSinRoPE.Config()
    block.moe make_moe_config()
    block.moe.num_experts 8
    block.moe.load_balance_coeff 0.001
    block.moe.router make_router_config()
    block.moe.router.dim 256
    block.moe.router.num_experts 8
    block.moe.router.gate_param_init INIT
    block.moe.router.top_k 2
    block.moe.router.score_func softmax
    block.moe.router.route_norm true
    block.moe.routed_experts make_routed_experts_config()
    block.moe.routed_experts.dim 256
    block.moe.routed_experts.hidden_dim 1024
    block.moe.routed_experts.num_experts 8
    block.moe.routed_experts.top_k 2
    block.moe.routed_experts.param_init.each INIT[weight]
    block.moe.routed_experts.param_init.in [w1_EFD, w2_EDF, w3_EFD]
    block.moe.routed_experts.comm_backend standard
    SPEC.name qwen3
    SPEC.model Qwen3Model.Config()
    SPEC.parallelize_fn parallelize_qwen3
    SPEC.post_optimizer_build_fn register_moe_load_balancing_hook
    SPEC.state_dict_adapter null
";

/// The degrees of replicas, shards and experts, and the class of recompute.
macro_rules! degrees {
    ($replicate:literal, $shard:literal, $expert:literal, $again:literal $($own:literal)*) => {
        concat!(
            "train.parallelism.data_parallel_replicate_degree ", $replicate, "
            train.parallelism.data_parallel_shard_degree ", $shard, "
            train.parallelism.expert_parallel_degree ", $expert, "
            train.activation_checkpoint ", $again,
            $("\ntrain.", $own),*
        )
    };
}

const BALANCE: &str =
    "experts are balanced by a bias on the router's scores (torchtitan's way), not by a loss";
const MOMENTS: (&str, &str) = ("zero 1", "FSDP2 shards gradients too; pin layout.zero = 0, 2 or 3");
const RING: (&str, &str) =
    ("context parallelism in a ring or by all-to-all", "let keys and values be gathered (all_gather)");
const FAMILY: (&str, &str) = (
    "a decoder that is not of the Llama family",
    "it needs model.positions = \"rotary\", norm = \"rms\", activation = \"swiglu\" and bias = false; \
     `megatron`, `deepspeed` and `hf-trainer` know GPT-2",
);
const SHARDED: &str = degrees!(1, 4, 1, "FullAC.Config()");
const SPREAD: &str = degrees!(1, 4, 2, "null" "training.disable_cuda_graphs true");

#[test]
fn torchtitan_is_given_what_each_plan_says() {
    table(
        ConfigFormat::Torchtitan,
        all,
        &[
            ("single", degrees!(1, 1, 1, "null" "training.disable_cuda_graphs true"), &[CPU_NOTE, DATA_NOTE]),
            ("llama", SHARDED, &[DATA_NOTE]),
            ("cut", SHARDED, &[DATA_NOTE]),
            ("whole", degrees!(1, 4, 1, "null"), &[DATA_NOTE, BALANCE]),
            ("experts", SPREAD, &[DATA_NOTE, BALANCE]),
            ("folded", SPREAD, &[DATA_NOTE, BALANCE]),
            (
                "circular",
                degrees!(1, 2, 1, "FullAC.Config()" "training.disable_cuda_graphs true"
                    "parallelism.pipeline_parallel_schedule GPipe"
                    "parallelism.pipeline_parallel_microbatch_size 2"
                    "parallelism.module_fqns_per_model_part.0 [tok_embeddings, layers.0, layers.1]"
                    "parallelism.module_fqns_per_model_part.1 [layers.2, layers.3, norm, lm_head]"),
                &[DATA_NOTE],
            ),
            (
                "gathered",
                degrees!(1, 2, 1, "null" "training.disable_cuda_graphs true"
                    "parallelism.pipeline_parallel_schedule Interleaved1F1B"
                    "parallelism.pipeline_parallel_microbatch_size 2"
                    "parallelism.module_fqns_per_model_part.0 [tok_embeddings, layers.0]"
                    "parallelism.module_fqns_per_model_part.1 [layers.1]"
                    "parallelism.module_fqns_per_model_part.2 [layers.2]"
                    "parallelism.module_fqns_per_model_part.3 [layers.3, norm, lm_head]"),
                &[DATA_NOTE],
            ),
        ],
        &[
            ("gpt", FAMILY.0, FAMILY.1),
            ("gradients", FAMILY.0, FAMILY.1),
            ("hosts", FAMILY.0, FAMILY.1),
            ("pipeline", MOMENTS.0, MOMENTS.1),
            ("hybrid", RING.0, RING.1),
            ("mixture", RING.0, RING.1),
            (
                "ends",
                "pipeline stages nearer to each other than replicas",
                "let the pipeline be the outermost axis",
            ),
        ],
        read,
    );
}

const PACKAGE: &str = "fp8 needs the package torchao";
const ROWS: &str = "fp8 has a scale for each row of an operand, not for each block of 128";
const APART: &str = "blocks are not compiled, so that values are cast to fp8 in kernels of their own";

/// The loop that converts the model, with the converters of linear layers and of experts.
macro_rules! converted {
    ($linear:literal, $compiled:literal, $scales:literal $(, $experts:literal)*) => {
        concat!(
            "
            for-converter.SPEC.model converter.build().convert()
            for-converter.SPEC.model.0 SPEC.model
            for-converter.in.0 ", $linear, "LinearConverter.Config()
            for-converter.in.0.model_compile_enabled ", $compiled, "
            for-converter.in.0.", $scales,
            $("\nfor-converter.in.1", $experts),*
        )
    };
}

#[test]
fn torchtitan_converts_layers_and_experts_to_fp8() {
    const COMPILED: &str = "
        train.compile CompileConfig()
        train.compile.enable true
        train.compile.components [model]";
    for (plan, scales, own, notes) in [
        (
            llama(),
            Fp8Recipe::Blockwise,
            [
                SHARDED,
                COMPILED,
                converted!(
                    "Float8",
                    true,
                    "recipe_name rowwise\nfor-converter.in.0.filter_fqns [lm_head, router.gate]"
                ),
            ],
            &[DATA_NOTE, PACKAGE, ROWS][..],
        ),
        (
            experts(),
            Fp8Recipe::Blockwise,
            [
                SPREAD,
                "",
                converted!(
                    "Float8",
                    false,
                    "recipe_name rowwise\nfor-converter.in.0.filter_fqns [lm_head, router.gate]",
                    " Float8GroupedExpertsConverter.Config()",
                    ".model_compile_enabled false"
                ),
            ],
            &[DATA_NOTE, BALANCE, PACKAGE, ROWS, APART],
        ),
        (
            llama(),
            Fp8Recipe::Mxfp8,
            [SHARDED, COMPILED, converted!("MXFP8", true, "fqns [attention, feed_forward]")],
            &[DATA_NOTE, PACKAGE],
        ),
        (
            experts(),
            Fp8Recipe::Mxfp8,
            [
                SPREAD,
                "",
                converted!(
                    "MXFP8",
                    false,
                    "fqns [attention, feed_forward]",
                    " MXFP8GroupedExpertsConverter.Config()",
                    ".model_compile_enabled false",
                    ".pad_multiple 128"
                ),
            ],
            &[DATA_NOTE, BALANCE, PACKAGE, APART],
        ),
    ] {
        let plan = newer::in_fp8(plan, Some(scales));
        let all = all(&SampleValues::of(&plan));
        let row: AcceptedPlan = (scales.name(), "", notes);
        accepts(ConfigFormat::Torchtitan, &plan, &(all + &own.concat()), row, read);
    }
}

//! Emits torchtitan's config registry: a Python module, which newer versions read instead of TOML.
//!
//! Dense models use its Llama 3, mixtures of experts its Qwen 3 without norms of queries and keys, both with
//! the sizes of the plan. The user sets the tokenizer folder and the data.

mod fp8;
mod model;

use super::hosts::HostShape;
use super::source::DecoderPlan;
use super::{ConfigFile, ConfigFiles, head};
use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::{Axis, DeviceKind};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, Schedule, ZeroStage};

/// Version of torchtitan against which the names were checked.
pub const VERSION: &str = "0.3.0";

/// Name of the emitted Python module.
const MODULE: &str = "dtrain_config";

/// Number of copies of the state, and of ranks among which each copy is sharded.
struct HybridSharding {
    replicate: u32,
    shard: u32,
}

/// Emits one Python module with a function `train`, which returns the `Trainer.Config`.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let sharding = sharding(source);
    let mut notes = source.notes();
    notes.extend(own_notes(source));
    let HostShape { count, each } = HostShape::of(source.plan);
    let meet = if count > 1 {
        format!("--nnodes {count} --rdzv-backend c10d --rdzv-endpoint FIRST_HOST:29500 ")
    } else {
        String::new()
    };
    let start = format!(
        "PYTHONPATH=. torchrun {meet}--nproc-per-node {each} -m torchtitan.train --module {MODULE} --config train"
    );
    let what = format!("torchtitan {VERSION} (PyPI): {start}");
    let mut text = head(source.plan, &what, &notes);
    text += &model::module(source);
    text += &trainer(source, &sharding);
    ConfigFiles::of(vec![ConfigFile { name: format!("{MODULE}.py"), text }], notes, start)
}

/// Returns the sharding of the plan: shards span `data × expert × context`.
fn sharding(source: &DecoderPlan) -> HybridSharding {
    let context = source.degree(Axis::Context);
    let shard = (source.shard() / context).max(1);
    HybridSharding { replicate: source.readers() / shard, shard }
}

fn own_notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = Vec::new();
    if source.arrangement.recompute == Recompute::Selective {
        notes.push(
            "selective recompute: SelectiveAC computes cheap operations and every second product again, not the attention core".into(),
        );
    }
    notes.extend(model::notes(source));
    notes.extend(fp8::notes(source));
    notes
}

fn trainer(source: &DecoderPlan, sharding: &HybridSharding) -> String {
    let checkpoint = format!(
        "CheckpointManager.Config(enable=True, interval={}, keep_latest_k={}, last_save_model_only=False)",
        source.choice.run_length.save_every, source.plan.recipe.checkpoint.keep
    );
    let recompute = match source.arrangement.recompute {
        Recompute::None => "None",
        Recompute::Selective => "SelectiveAC.Config()",
        Recompute::Full => "FullAC.Config()",
    };
    [
        "\n\ndef train() -> Trainer.Config:\n    return Trainer.Config(\n".into(),
        "        model_spec=SPEC,\n        hf_assets_path=TOKENIZER,\n".into(),
        "        dataloader=HuggingFaceTextDataLoader.Config(dataset=\"recipe\"),\n".into(),
        loss(source).into(),
        optimizer(source),
        schedule(source),
        training(source),
        parallelism(source, sharding),
        fp8::compile(source).into(),
        format!("        activation_checkpoint={recompute},\n"),
        format!("        checkpoint={checkpoint},\n"),
        format!("        debug=DebugConfig(seed={}),\n    )\n", source.train().seed),
    ]
    .concat()
}

/// Returns `true` if the backward pass computes the gradients of weights apart from those of activations.
fn has_split_backward(source: &DecoderPlan) -> bool {
    source.degree(Axis::Pipeline) > 1 && source.arrangement.schedule == PipelineSchedule::ZeroBubble
}

/// Returns the argument for the loss, in chunks of the sequence unless the backward pass is split: the chunked
/// loss drops the gathered weights of the final norm, and a split pass would then find no gradient of them.
fn loss(source: &DecoderPlan) -> &'static str {
    if has_split_backward(source) {
        "        loss=CrossEntropyLoss.Config(global_vocab_size=VOCAB),\n"
    } else {
        "        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB)),\n"
    }
}

fn optimizer(source: &DecoderPlan) -> String {
    let o = source.optimizer();
    let group = |pattern: &str, decay: f64| {
        format!(
            "                ParamGroupConfig(\n                    pattern=r\"{pattern}\",\n                    \
             optimizer_name=\"AdamW\",\n                    optimizer_kwargs={{\"lr\": {:?}, \"betas\": ({:?}, \
             {:?}), \"eps\": {:?}, \"weight_decay\": {decay:?}}},\n                ),\n",
            source.rate(),
            o.beta1,
            o.beta2,
            o.epsilon
        )
    };
    format!(
        "        optimizer=OptimizersContainer.Config(\n            param_groups=[\n{}{}            ]\n        ),\n",
        group("norm", 0.0),
        group(".*", o.weight_decay)
    )
}

fn schedule(source: &DecoderPlan) -> String {
    let (decay, ratio) = match source.train().schedule {
        Schedule::Cosine => ("cosine", "None"),
        Schedule::Linear => ("linear", "None"),
        Schedule::Constant => ("linear", "0.0"),
    };
    format!(
        "        lr_scheduler=LRSchedulersContainer.Config(\n            warmup_steps={},\n            \
         total_steps={},\n            decay_ratio={ratio},\n            decay_type=\"{decay}\",\n            \
         min_lr_factor={:?},\n        ),\n",
        source.warmup(),
        source.steps(),
        source.train().final_fraction
    )
}

fn training(source: &DecoderPlan) -> String {
    let (split, piped) = (source.split, source.degree(Axis::Pipeline) > 1);
    let local = if piped { split.micro() * split.micro_batches().get() } else { split.micro() };
    let clip = source.train().clip.map_or("float(\"inf\")".into(), |clip| format!("{clip:?}"));
    let products = match source.arrangement.precision {
        Precision::Bf16 | Precision::Fp8 => "bfloat16",
        Precision::F32 | Precision::F16 => "float32",
    };
    // Graphs are CUDA's, and torchtitan captures none of a pipeline or of an exchange with experts.
    let exchanges = source.degree(Axis::Expert) * source.arrangement.expert_fold > 1;
    let has_no_graphs = piped || exchanges || source.arrangement.device == DeviceKind::Cpu;
    let graphs = if has_no_graphs { "            disable_cuda_graphs=True,\n" } else { "" };
    format!(
        "        training=TrainingConfig(\n            local_batch_size={local},\n            \
         global_batch_size={},\n            seq_len={},\n            max_norm={clip},\n            steps={},\n            \
         mixed_precision_param=\"{products}\",\n{graphs}        ),\n",
        split.global(),
        source.model.context,
        source.steps()
    )
}

fn parallelism(source: &DecoderPlan, sharding: &HybridSharding) -> String {
    let degree = |axis| source.degree(axis);
    let reshard = if source.arrangement.zero == ZeroStage::Zero3 { "always" } else { "never" };
    let sequence = if source.arrangement.sequence { "True" } else { "False" };
    let mut text = format!(
        "        parallelism=ParallelismConfig(\n            data_parallel_replicate_degree={},\n            \
         data_parallel_shard_degree={},\n            fsdp_reshard_after_forward=\"{reshard}\",\n            \
         tensor_parallel_degree={},\n            enable_sequence_parallel={sequence},\n            \
         context_parallel_degree={},\n            expert_parallel_degree={},\n            \
         pipeline_parallel_degree={},\n",
        sharding.replicate,
        sharding.shard,
        degree(Axis::Tensor),
        degree(Axis::Context),
        degree(Axis::Expert) * source.arrangement.expert_fold,
        degree(Axis::Pipeline)
    );
    if degree(Axis::Pipeline) > 1 {
        text += &stages(source);
    }
    text + "        ),\n"
}

/// Returns the argument for the pipeline schedule, with the modules of every chunk in order of chunks, then
/// stages.
fn stages(source: &DecoderPlan) -> String {
    let arrangement = source.arrangement;
    let name = match arrangement.schedule {
        PipelineSchedule::Gpipe => "GPipe",
        PipelineSchedule::Interleaved => "Interleaved1F1B",
        PipelineSchedule::OneForwardOneBackward => "1F1B",
        // ZB1P, which with one chunk per stage is ZB-H1.
        PipelineSchedule::ZeroBubble => "InterleavedZeroBubble",
    };
    let blocks = source.model.layers;
    let mut parts = String::new();
    for chunk in 0..arrangement.chunks {
        for stage in 0..source.degree(Axis::Pipeline) {
            let run =
                chunks_of(stage, arrangement, blocks).nth(chunk as usize).expect("a run for each chunk");
            let mut modules: Vec<String> = run.clone().map(|block| format!("\"layers.{block}\"")).collect();
            if run.start == 0 {
                modules.insert(0, "\"tok_embeddings\"".into());
            }
            if run.end == blocks {
                modules.extend(["\"norm\"".into(), "\"lm_head\"".into()]);
            }
            parts += &format!("                [{}],\n", modules.join(", "));
        }
    }
    format!(
        "            pipeline_parallel_schedule=\"{name}\",\n            pipeline_parallel_microbatch_size={},\n            \
         module_fqns_per_model_part=[\n{parts}            ],\n",
        source.split.micro()
    )
}

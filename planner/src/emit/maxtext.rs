//! Emits configuration for MaxText (JAX): YAML that overrides its `base.yml`, and a script that starts one
//! process on each host.

use super::hosts::HostShape;
use super::source::DecoderPlan;
use super::yaml::{number, text};
use super::{ConfigFile, ConfigFiles, head};
use dtrain_protocol::{Axis, ContextExchange};
use dtrain_recipes::{Precision, Recompute, Schedule, ZeroStage};

/// Version of MaxText against which the keys were checked.
pub(crate) const VERSION: &str = "0.2.5";

/// Lines of YAML, each a key with its value.
type Lines = Vec<String>;

/// Emits the files `maxtext.yml` and `maxtext.sh`.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let mut notes = source.notes();
    notes.extend(own_notes(source));
    let what =
        format!("MaxText {VERSION} (PyPI: maxtext): python3 -m maxtext.trainers.pre_train.train maxtext.yml");
    let groups = [
        ("Model", model(source)),
        ("Layout; all of it in the `ici` axes, as hosts are one slice", layout(source)),
        ("Training", training(source)),
        ("Data and output", data(source)),
    ];
    let mut config = head(source.plan, &what, &notes) + "base_config: base.yml\nhardware: gpu\n";
    for (name, lines) in groups {
        config += &format!("\n# {name}\n{}\n", lines.join("\n"));
    }
    let files = vec![
        ConfigFile { name: "maxtext.yml".into(), text: config },
        ConfigFile { name: "maxtext.sh".into(), text: script(source) },
    ];
    ConfigFiles::of(files, notes, "bash maxtext.sh")
}

fn own_notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = vec!["weights begin as MaxText draws them, not as dtrain does".to_owned()];
    if source.arrangement.recompute == Recompute::Selective {
        notes.push(
            "selective recompute: the policy `minimal` keeps what products with weights made and computes the rest again".into(),
        );
    }
    let files = source.data().train.len();
    if files > 1 {
        notes.push(format!(
            "hf_train_files takes one path or pattern: name all {files} files of the recipe with it"
        ));
    }
    if !is_packed(source) {
        notes.push("sequences are not packed, as gathered keys and values do not allow it: make documents as long as sequences".into());
    }
    let Some(experts) = source.model.experts else { return notes };
    if experts.per_token == 1 {
        notes.push(
            "one expert a token: it is weighed with 1, so that the router learns from the balance loss only"
                .into(),
        );
    }
    if experts.balance > 0.0 {
        notes.push("balance of experts is counted over a batch here, over each sequence in the plan".into());
    }
    notes
}

fn model(source: &DecoderPlan) -> Lines {
    let model = source.model;
    let block = if model.experts.is_some() { "mixtral" } else { "llama2" };
    let mut lines = vec![
        "model_name: default".into(),
        format!("decoder_block: {block}"),
        format!("base_num_decoder_layers: {}", model.layers),
        format!("base_emb_dim: {}", model.hidden),
        format!("base_num_query_heads: {}", model.heads),
        format!("base_num_kv_heads: {}", model.kv_heads),
        format!("head_dim: {}", model.head_width()),
        format!("base_mlp_dim: {}", model.ffn),
        "mlp_activations: [silu, linear]".into(),
        format!("vocab_size: {}", model.vocab),
        format!("max_target_length: {}", model.context),
        format!("logits_via_embedding: {}", model.tied),
        "normalize_embedding_logits: false".into(),
        format!("normalization_layer_epsilon: {}", number(model.norm_epsilon())),
        format!("rope_max_timescale: {}", model.rotary_base()),
        "enable_dropout: false".into(),
    ];
    if let Some(experts) = &model.experts {
        // Megablox kernels are for TPUs. A capacity factor selects products with a mask.
        lines.extend([
            format!("base_moe_mlp_dim: {}", model.ffn),
            format!("num_experts: {}", experts.count),
            format!("num_experts_per_tok: {}", experts.per_token),
            format!("load_balance_loss_weight: {}", number(experts.balance)),
            "megablox: false".into(),
            format!("sparse_matmul: {}", experts.capacity.is_none()),
            format!("capacity_factor: {}", number(experts.capacity.unwrap_or(-1.0))),
        ]);
    }
    lines
}

fn layout(source: &DecoderPlan) -> Lines {
    let arrangement = source.arrangement;
    let degree = |axis| source.degree(axis);
    // Weights are sharded along context and expert ranks as well as the axis `fsdp`.
    let inner = degree(Axis::Context) * degree(Axis::Expert);
    let fsdp = if arrangement.zero == ZeroStage::Zero3 { arrangement.shard / inner } else { 1 };
    let mut lines = vec![
        "num_slices: 1".into(),
        "dcn_data_parallelism: 1".into(),
        format!("ici_pipeline_parallelism: {}", degree(Axis::Pipeline)),
        format!("ici_data_parallelism: {}", degree(Axis::Data) / fsdp),
        format!("ici_fsdp_parallelism: {fsdp}"),
        format!("ici_expert_parallelism: {}", degree(Axis::Expert)),
        format!("ici_context_parallelism: {}", degree(Axis::Context)),
        format!("ici_tensor_sequence_parallelism: {}", degree(Axis::Tensor)),
    ];
    if degree(Axis::Expert) > 1 && degree(Axis::Tensor) * degree(Axis::Context) > 1 {
        // Order of the plan: tensor ranks innermost, then context, then expert ranks.
        lines.push(
            "mesh_axes: [diloco, data, stage, fsdp, fsdp_transpose, expert, context, context_usp_ulysses, \
             context_autoregressive, tensor, tensor_sequence, autoregressive]"
                .into(),
        );
    }
    if degree(Axis::Context) > 1 {
        let strategy = match arrangement.context_exchange {
            ContextExchange::Ring => "ring",
            ContextExchange::AllGather | ContextExchange::AllToAll => "all_gather",
        };
        lines.push(format!("context_parallel_strategy: {strategy}"));
        lines.push("context_parallel_load_balance: true".into());
    }
    if arrangement.zero == ZeroStage::Zero1 {
        lines.push("shard_optimizer_over_data: true".into());
    }
    if degree(Axis::Pipeline) > 1 {
        lines.extend([
            format!("num_layers_per_pipeline_stage: {}", source.model.layers / degree(Axis::Pipeline)),
            "num_pipeline_repeats: 1".into(),
            format!("num_pipeline_microbatches: {}", source.split.micro_batches()),
            "scan_layers: false".into(),
        ]);
    }
    let policy = if arrangement.recompute == Recompute::Full { "full" } else { "minimal" };
    lines.push(format!("remat_policy: {policy}"));
    lines
}

fn training(source: &DecoderPlan) -> Lines {
    let (train, rule, split) = (source.train(), source.optimizer(), source.split);
    let micro_batches = split.micro_batches().get();
    let is_piped = source.degree(Axis::Pipeline) > 1;
    let (passes, accumulated) = if is_piped { (micro_batches, 1) } else { (1, micro_batches) };
    let samples = u64::from(split.micro()) * u64::from(passes) * u64::from(source.readers());
    let is_half = source.arrangement.precision == Precision::Bf16;
    let mut lines = vec![
        format!("per_device_batch_size: {}", per_device(samples, source.arrangement.layout.world())),
        format!("gradient_accumulation_steps: {accumulated}"),
        format!("steps: {}", source.steps()),
        "opt_type: adamw".into(),
        format!("adam_b1: {}", number(rule.beta1)),
        format!("adam_b2: {}", number(rule.beta2)),
        format!("adam_eps: {}", number(rule.epsilon)),
        format!("adam_weight_decay: {}", number(rule.weight_decay)),
        "adamw_mask: ['.*norm.*']".into(),
        format!("gradient_clipping_threshold: {}", number(train.clip.unwrap_or(0.0))),
        format!("z_loss_multiplier: {}", number(train.z_loss)),
        format!("learning_rate: {}", number(source.rate())),
        format!("learning_rate_schedule_steps: {}", source.steps()),
    ];
    let warmup = fraction(source.warmup(), source.steps());
    let (kind, last, decay) = match train.schedule {
        Schedule::Cosine => ("cosine", train.final_fraction, None),
        Schedule::Linear => ("wsd", train.final_fraction, Some(1.0 - warmup)),
        Schedule::Constant => ("wsd", 1.0, Some(0.0)),
    };
    lines.push(format!("lr_schedule_type: {kind}"));
    lines.push(format!("warmup_steps_fraction: {}", number(warmup)));
    lines.push(format!("learning_rate_final_fraction: {}", number(last)));
    if let Some(decay) = decay {
        lines.push(format!("wsd_decay_steps_fraction: {}", number(decay)));
        lines.push("wsd_decay_style: linear".into());
    }
    // cuDNN's fused attention needs 16 bits.
    let (products, attention) =
        if is_half { ("bfloat16", "cudnn_flash_te") } else { ("float32", "dot_product") };
    lines.extend([
        format!("dtype: {products}"),
        "weight_dtype: float32".into(),
        format!("attention: {attention}"),
        format!("data_shuffle_seed: {}", train.seed),
        format!("init_weights_seed: {}", train.seed),
    ]);
    lines
}

/// Returns a fraction near `part / whole` whose product with `whole`, rounded down, is `part`.
#[expect(clippy::cast_precision_loss, reason = "numbers of steps, far below 2^52")]
fn fraction(part: u64, whole: u64) -> f64 {
    if part == 0 || whole == 0 {
        return 0.0;
    }
    ((part as f64 + 0.5) / whole as f64).min(1.0)
}

/// Returns a number near `samples / devices` as text; MaxText multiplies it by the devices, rounds down, and
/// gets `samples`.
#[expect(clippy::cast_precision_loss, reason = "numbers of samples, far below 2^52")]
fn per_device(samples: u64, devices: u32) -> String {
    let (whole, devices) = (samples as f64, f64::from(devices));
    let mut each = whole / devices;
    while each * devices < whole {
        each = each.next_up();
    }
    number(each)
}

/// Returns `true` if a sequence may pack several documents: not if Transformer Engine gathers keys and
/// values.
fn is_packed(source: &DecoderPlan) -> bool {
    source.degree(Axis::Context) == 1 || source.arrangement.context_exchange == ContextExchange::Ring
}

fn data(source: &DecoderPlan) -> Lines {
    let pace = &source.choice.run_length;
    let validations = pace.validate_samples.div_ceil(source.split.global()).max(1);
    let files = source.train_files();
    let first = files.first().map_or("", String::as_str);
    let is_packed = is_packed(source);
    let mut lines = vec![
        "# SET: the training text, and a tokenizer of at most as many tokens as the model has.".into(),
        "dataset_type: hf".into(),
        "hf_path: text".into(),
        format!("hf_train_files: {}", text(first)),
        "hf_eval_files: validation.txt # SET: the text for validation".into(),
        "hf_eval_split: train".into(),
        "tokenizer_type: huggingface".into(),
        "tokenizer_path: tokenizer".into(),
        format!("packing: {is_packed}"),
    ];
    if is_packed {
        lines.push("max_segments_per_seq: 32".into());
    }
    lines.extend([
        format!("eval_interval: {}", pace.validate_every),
        format!("eval_steps: {validations}"),
        format!("run_name: {}", text(&super::slurm::name(source.plan))),
        "base_output_directory: checkpoints # SET: where checkpoints go".into(),
        "enable_checkpointing: true".into(),
        format!("checkpoint_period: {}", pace.save_every),
        format!("max_num_checkpoints_to_keep: {}", source.plan.recipe.checkpoint.keep),
    ]);
    lines
}

/// Emits the start script: one process per host, which uses all its GPUs.
fn script(source: &DecoderPlan) -> String {
    let HostShape { count, each } = HostShape::of(source.plan);
    let meet = if count > 1 {
        format!(
            "# SET on each host: its place, from 0; and the address of the first.\nexport NODE_RANK=${{NODE_RANK:?}}\n\
             export JAX_COORDINATOR_IP=${{JAX_COORDINATOR_IP:?}}\nexport JAX_COORDINATOR_PORT=${{JAX_COORDINATOR_PORT:-29500}}\n\
             export NNODES={count}\n"
        )
    } else {
        String::new()
    };
    let what = format!("MaxText {VERSION}: bash maxtext.sh on every host, with {each} GPUs on each");
    format!(
        "#!/usr/bin/env bash\n{}set -euo pipefail\n\n# SET: the Python that MaxText is installed for.\nPYTHON=${{PYTHON:-python3}}\n{meet}\n\
         exec \"$PYTHON\" -m maxtext.trainers.pre_train.train maxtext.yml \"$@\"\n",
        head(source.plan, &what, &[])
    )
}

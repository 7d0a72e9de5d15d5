//! Emits a shell script that calls Megatron-LM's `pretrain_gpt.py` with its arguments.

mod data;
mod model;
mod overlap;

use super::hosts::HostShape;
use super::source::DecoderPlan;
use super::{ConfigFile, ConfigFiles, head};
use crate::pipeline_schedule::chunks_of;
use dtrain_protocol::{Axis, ContextExchange, RankOrder};
use dtrain_recipes::{OptimizerKind, Precision, Recompute, Schedule, ZeroStage};

/// Version of Megatron-LM against which the arguments were checked; `megatron-core` on PyPI now includes it.
pub(crate) const VERSION: &str = "0.19.2";

/// Repository of Megatron-LM, whose releases have tags `core_v…`.
const REPOSITORY: &str = "https://github.com/NVIDIA/Megatron-LM";

/// Placeholder for the folder of the repository on a host.
const CHECKOUT: &str = "MEGATRON-LM";

/// A command-line argument with its values, such as `--micro-batch-size 4`.
type Argument = String;

/// Emits one shell script.
pub(crate) fn emit(source: &DecoderPlan) -> ConfigFiles {
    let mut notes = source.notes();
    notes.extend(own_notes(source));
    let what = format!(
        "Megatron-LM, core {VERSION}: run in the root of its repository, on every host; installed as its docs/get-started/install.md says, with Transformer Engine"
    );
    let hosts = HostShape::of(source.plan);
    let mut text = String::from("#!/usr/bin/env bash\n") + &head(source.plan, &what, &notes);
    text += &format!(
        "set -euo pipefail\n\n{}# SET: where checkpoints go.\nCHECKPOINTS=${{CHECKPOINTS:-checkpoints}}\n\
         # Hosts, and ranks on each; their product is {}.\nNODES=${{NODES:-{}}}\nRANKS=${{RANKS:-{}}}\n\
         # SET where there are several hosts: the address of the first.\nFIRST=${{FIRST:-localhost:29500}}\n",
        data::settings(source),
        source.arrangement.layout.world(),
        hosts.count,
        hosts.each
    );
    text += &data::preparation(source);
    for (name, arguments) in groups(source) {
        text += &format!("\n{name}=(\n    {}\n)\n", arguments.join("\n    "));
    }
    let all: Vec<String> = groups(source).iter().map(|(name, _)| format!("\"${{{name}[@]}}\"")).collect();
    text += &format!(
        "\n{}exec torchrun --nnodes \"$NODES\" --nproc-per-node \"$RANKS\" --rdzv-backend c10d --rdzv-endpoint \"$FIRST\" \\\n    \
         pretrain_gpt.py {}\n",
        connections(source),
        all.join(" ")
    );
    ConfigFiles {
        files: vec![ConfigFile { name: "megatron.sh".into(), text }],
        notes,
        start: "bash megatron.sh".into(),
        checkout: Some(CHECKOUT),
        clone: Some(format!("git clone --depth 1 --branch core_v{VERSION} {REPOSITORY} {CHECKOUT}")),
        prepare: Some("bash megatron.sh data".into()),
    }
}

fn groups(source: &DecoderPlan) -> [(&'static str, Vec<Argument>); 4] {
    [
        ("MODEL", model::arguments(source)),
        ("LAYOUT", layout(source)),
        ("TRAINING", training(source)),
        ("DATA_AND_OUTPUT", data::arguments(source)),
    ]
}

/// Returns `true` if Megatron-FSDP shards the state, which is the only way to shard gradients and weights.
fn is_fsdp(source: &DecoderPlan) -> bool {
    source.arrangement.zero >= ZeroStage::Zero2
}

/// Returns the setting of `CUDA_DEVICE_MAX_CONNECTIONS`: tensor and context ranks on older GPUs need one
/// queue, so that communication starts first; Megatron-FSDP needs more.
fn connections(source: &DecoderPlan) -> &'static str {
    let cuts = source.degree(Axis::Tensor) > 1 || source.degree(Axis::Context) > 1;
    if cuts && !is_fsdp(source) { "export CUDA_DEVICE_MAX_CONNECTIONS=1\n" } else { "" }
}

fn own_notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = Vec::new();
    let arrangement = source.arrangement;
    if arrangement.recompute == Recompute::Full && arrangement.recompute_every > 1 {
        let every = arrangement.recompute_every;
        notes.push(format!("recompute of every {every} blocks: here of as many, but the first of each run"));
    }
    if source.optimizer().kind == OptimizerKind::Sgd {
        notes.push("sgd: weight decay is added to the gradient here, not applied beside it".into());
    }
    if source.train().schedule == Schedule::Constant && source.train().final_fraction < 1.0 {
        notes.push("train.final_fraction is not used by a constant rate".into());
    }
    notes.extend(model::notes(source));
    notes.extend(data::notes(source));
    notes
}

fn layout(source: &DecoderPlan) -> Vec<Argument> {
    let arrangement = source.arrangement;
    let degree = |axis| source.degree(axis);
    let mut arguments = vec![
        format!("--tensor-model-parallel-size {}", degree(Axis::Tensor)),
        format!("--pipeline-model-parallel-size {}", degree(Axis::Pipeline)),
        format!("--context-parallel-size {}", degree(Axis::Context)),
    ];
    if source.model.experts.is_some() {
        let fold = arrangement.expert_fold;
        // Experts folded over tensor ranks are whole on each of them.
        let cut = if fold > 1 { 1 } else { degree(Axis::Tensor) };
        arguments.push(format!("--expert-model-parallel-size {}", degree(Axis::Expert) * fold));
        arguments.push(format!("--expert-tensor-parallel-size {cut}"));
    }
    if arrangement.sequence {
        arguments.push("--sequence-parallel".into());
    }
    if degree(Axis::Context) > 1 {
        let kind = match arrangement.context_exchange {
            ContextExchange::Ring => "p2p",
            ContextExchange::AllGather => "all_gather",
            ContextExchange::AllToAll => "a2a",
        };
        arguments.push(format!("--cp-comm-type {kind}"));
    }
    if arrangement.order == RankOrder::DataOutermost {
        arguments.push("--use-tp-pp-dp-mapping".into());
    }
    arguments.extend(stages(source));
    arguments.extend(state(source));
    arguments.extend(overlap::arguments(source));
    arguments.extend(recompute(source));
    arguments
}

/// Returns the argument that divides the layers among pipeline stages: the number of chunks if they are even,
/// otherwise a letter `t` per block, with `E` and `L` at the ends. `None` if the default division is right.
fn stages(source: &DecoderPlan) -> Option<Argument> {
    let (stages, chunks) = (source.degree(Axis::Pipeline), source.arrangement.chunks);
    let blocks = source.model.layers;
    if blocks.is_multiple_of(stages * chunks) && source.arrangement.ends.are_free() || stages == 1 {
        return (chunks > 1).then(|| format!("--num-virtual-stages-per-pipeline-rank {chunks}"));
    }
    let runs =
        (0..chunks).flat_map(|chunk| (0..stages).map(move |stage| (chunk, stage))).map(|(chunk, stage)| {
            let run = chunks_of(stage, source.arrangement, blocks)
                .nth(chunk as usize)
                .expect("a run for each chunk");
            format!("t*{}", run.len())
        });
    let layout = runs.collect::<Vec<_>>().join("|");
    let further = "m".repeat(source.model.mtp_layers as usize);
    Some(format!("--pipeline-model-parallel-layout 'E{layout}{further}L'"))
}

fn state(source: &DecoderPlan) -> Vec<Argument> {
    let copies = match source.copies() {
        1 => None,
        copies => Some(format!("--num-distributed-optimizer-instances {copies}")),
    };
    let strategy = match source.arrangement.zero {
        ZeroStage::Zero0 => return Vec::new(),
        ZeroStage::Zero1 => {
            return ["--use-distributed-optimizer".into()].into_iter().chain(copies).collect();
        }
        ZeroStage::Zero2 => "optim_grads",
        ZeroStage::Zero3 => "optim_grads_params",
    };
    let fsdp = [
        "--use-megatron-fsdp".into(),
        format!("--data-parallel-sharding-strategy {strategy}"),
        "--ckpt-format fsdp_dtensor".into(),
        "--no-gradient-accumulation-fusion".into(),
        "--use-distributed-optimizer".into(),
    ];
    fsdp.into_iter().chain(copies).collect()
}

fn recompute(source: &DecoderPlan) -> Vec<Argument> {
    let arrangement = source.arrangement;
    let full = |method: &str, layers: usize| {
        ["--recompute-granularity full".into(), format!("--recompute-method {method}")]
            .into_iter()
            .chain([format!("--recompute-num-layers {layers}")])
            .collect()
    };
    match (arrangement.recompute, arrangement.recompute_every) {
        (Recompute::None, _) => Vec::new(),
        (Recompute::Selective, _) => {
            vec!["--recompute-granularity selective".into(), "--recompute-modules core_attn".into()]
        }
        (Recompute::Full, 1) => full("uniform", 1),
        (Recompute::Full, every) => {
            let longest = chunks_of(0, arrangement, source.model.layers).map(|run| run.len()).max();
            full("block", longest.unwrap_or(1).div_ceil(every as usize))
        }
    }
}

fn training(source: &DecoderPlan) -> Vec<Argument> {
    let (train, optimizer) = (source.train(), source.optimizer());
    let mut arguments = vec![
        format!("--micro-batch-size {}", source.split.micro()),
        format!("--global-batch-size {}", source.split.global()),
        format!("--train-iters {}", source.steps()),
    ];
    arguments.extend(match optimizer.kind {
        OptimizerKind::Sgd => vec!["--optimizer sgd".into(), format!("--sgd-momentum {:?}", optimizer.beta1)],
        OptimizerKind::Lion => vec![
            "--optimizer lion".into(),
            format!("--lion-beta1 {:?}", optimizer.beta1),
            format!("--lion-beta2 {:?}", optimizer.beta2),
        ],
        OptimizerKind::Adamw | OptimizerKind::Lamb => vec![
            "--optimizer adam".into(),
            format!("--adam-beta1 {:?}", optimizer.beta1),
            format!("--adam-beta2 {:?}", optimizer.beta2),
            format!("--adam-eps {:?}", optimizer.epsilon),
        ],
    });
    let decay = match train.schedule {
        Schedule::Cosine => "cosine",
        Schedule::Linear => "linear",
        Schedule::Constant => "constant",
    };
    let lowest = if train.schedule == Schedule::Constant { 0.0 } else { source.rate_last() };
    arguments.extend([
        format!("--weight-decay {:?}", optimizer.weight_decay),
        format!("--clip-grad {:?}", train.clip.unwrap_or(0.0)),
        format!("--lr {:?}", source.rate()),
        format!("--min-lr {lowest:?}"),
        format!("--lr-decay-style {decay}"),
        format!("--lr-decay-iters {}", source.steps()),
        format!("--lr-warmup-iters {}", source.warmup()),
        format!("--seed {}", train.seed),
    ]);
    match source.arrangement.precision {
        Precision::F32 => {}
        Precision::Bf16 => arguments.push("--bf16".into()),
        Precision::F16 => arguments.push("--fp16".into()),
        Precision::Fp8 => arguments.extend(model::fp8(train.fp8_recipe.unwrap_or_default())),
    }
    arguments
}

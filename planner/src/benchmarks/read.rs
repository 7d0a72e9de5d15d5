//! Converts the cells of a row into a training, with a default for each blank cell.

use super::bounds;
use super::families::{FamilyTraits, family, is_gated, vocabulary};
use super::gpu_cell::gpu_of;
use super::row_degrees::{RowDegrees, shape};
use super::sharding::{shard, stage, zero};
use super::software::style;
use super::table::{TableRow, has_any, has_word};
use super::training::ResolvedTraining;
use crate::analytic::search::to_count;
use crate::analytic::{
    Constants, Degrees, ExpertDims, Interconnect, LatentDims, MatmulPrecision, MissingInputs, Software,
    StepConfig, Transformer, WindowDims,
};
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::{AcceleratorKind, GpuSpec, HostGroup, normalized_gpu_name, unknown};
use dtrain_protocol::{Arrangement, DeviceKind, EmbeddingHeadCost};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};

/// Columns without which a row cannot be priced.
const NEEDED: [&str; 6] = ["layers", "hidden", "heads", "seq", "global_batch", "num_gpus"];

/// Resolves the training that a row describes, or returns the reason why it cannot be priced.
pub fn resolve_training<'a>(
    row: &TableRow,
    constants: &'a Constants,
) -> Result<ResolvedTraining<'a>, String> {
    bounds::check(row)?;
    let missing: Vec<_> = NEEDED.into_iter().filter(|column| row.positive(column).is_none()).collect();
    if !missing.is_empty() {
        return Err(format!("{} missing or not above 0", missing.join(", ")));
    }
    let named = gpu_of(row)?;
    let part = named.map(|named| named.gpu);
    let model = model(row);
    let shape = shape(row);
    let known = style(row.text("framework"), row.text("notes"));
    refuse_part(row, known, part)?;
    let engine = engine(row, known.unwrap_or_else(|| likely_style(shape, part)), constants);
    let config = config(row, &model, engine.style, shape);
    let gpu = part.unwrap_or_else(unknown);
    let network = row.positive("internode_gbps_per_gpu");
    let (kernel, products) = (kernel(row, engine.style), products(row, gpu));
    let mut training = ResolvedTraining {
        power: named.and_then(|named| named.watts).map_or(1.0, |watts| gpu.clock_at(watts)),
        links: links(gpu, network, shape, constants),
        memory: memory(row, gpu),
        unknown: MissingInputs {
            hardware: part.is_none(),
            software: known.is_none(),
            micro_batch: row.positive("micro_batch").is_none(),
            chunks: chunks_are_unknown(row, engine.style, config.pipeline()),
            recompute: recompute(row).is_none(),
            attention: row.text("attention").is_empty(),
            network: network.is_none() && shape.ranks > shape.per_host,
            precision: precision_is_doubtful(row),
            zero: stage(row).is_none(),
        },
        model,
        config,
        engine,
        gpu,
        kernel,
        products,
        constants,
        assumptions: Vec::new(),
    };
    training.assume_recompute();
    describe(&mut training, row, shape);
    if training.unknown.micro_batch && tunes_micro_batch(engine.style) {
        training.assume_micro_batch();
    }
    Ok(training)
}

/// Returns the links of the row's hosts, with a network of `network` Gbit/s per device if that is stated.
fn links(
    gpu: &'static GpuSpec,
    network: Option<f64>,
    shape: RowDegrees,
    constants: &Constants,
) -> Interconnect {
    let usual = HostGroup::of(gpu, 1, to_count(shape.per_host));
    let group = network.map_or(usual, |gbits| usual.with_network(gbits / 8.0 * 1e9));
    Interconnect::of(&group, |bandwidth| bandwidth, &constants.general)
}

/// Returns the bytes of memory per device: from the row, from the name of the GPU, or as usual for the GPU.
fn memory(row: &TableRow, gpu: &GpuSpec) -> f64 {
    let gibibytes = |gibibytes: f64| gibibytes * 1024f64.powi(3);
    row.positive("gpu_mem_gib").map(gibibytes).unwrap_or_else(|| gpu.memory_bytes())
}

/// Returns an error if the engine does not run on the device. Gaudi has a port of Megatron-DeepSpeed, and
/// TPUs have one of PyTorch.
fn refuse_part(row: &TableRow, style: Option<SoftwareStyle>, part: Option<&GpuSpec>) -> Result<(), String> {
    let is_refused = match part.map(GpuSpec::kind) {
        Some(AcceleratorKind::Tpu) => {
            matches!(style, Some(SoftwareStyle::Megatron | SoftwareStyle::Modern | SoftwareStyle::Research))
        }
        Some(AcceleratorKind::Gaudi) => {
            matches!(style, Some(SoftwareStyle::Megatron | SoftwareStyle::Modern | SoftwareStyle::Xla))
        }
        Some(
            AcceleratorKind::Nvidia
            | AcceleratorKind::Amd
            | AcceleratorKind::Intel
            | AcceleratorKind::Trainium,
        )
        | None => false,
    };
    if is_refused {
        let (framework, hardware) = (row.text("framework"), row.text("hardware"));
        return Err(format!(
            "`framework` is `{framework}`, which does not run on `hardware`, which is `{hardware}`"
        ));
    }
    Ok(())
}

/// Guesses the style of an unknown engine: FSDP, or the Megatron of the time of the GPU if matrices or layers
/// are split.
fn likely_style(shape: RowDegrees, part: Option<&GpuSpec>) -> SoftwareStyle {
    let is_old = part.is_some_and(|part| ["volta", "turing", "ampere"].contains(&part.generation.as_str()));
    match () {
        () if part.is_some_and(|part| part.kind() == AcceleratorKind::Tpu) => SoftwareStyle::Xla,
        () if shape.pipeline <= 1.0 && shape.tensor <= 1.0 => SoftwareStyle::Fsdp,
        () if is_old => SoftwareStyle::Megatron,
        () => SoftwareStyle::Modern,
    }
}

fn model(row: &TableRow) -> Transformer {
    let name = row.text("model");
    let number = |column: &str| row.positive(column);
    let [layers, hidden, heads, sequence] =
        ["layers", "hidden", "heads", "seq"].map(|column| number(column).unwrap_or(1.0));
    let family = family(name);
    let is_gated = row.number("gated_mlp").map_or_else(|| is_gated(name), |gated| gated > 0.0);
    let count = number("moe_experts");
    let usual = if is_gated { 8.0 * hidden / 3.0 } else { 4.0 * hidden };
    let ffn = number("ffn").or(count.and(number("moe_ffn"))).unwrap_or(usual);
    let head = family.head.unwrap_or(hidden / heads);
    Transformer {
        layers,
        hidden,
        heads,
        kv_heads: number("kv_heads").unwrap_or(heads),
        head,
        head_value: family.head_value.unwrap_or(head),
        latent: family.latent.map(|(query, key_value, rotary)| LatentDims { query, key_value, rotary }),
        // Every second layer has a window.
        window: family.window.map(|tokens| WindowDims { tokens, share: 0.5 }),
        ffn,
        is_gated,
        experts: count.map(|count| experts(row, &family, count, ffn)),
        vocabulary: number("vocab").unwrap_or_else(|| vocabulary(name)),
        sequence,
        mtp_layers: if name.to_lowercase().contains("mtp") { 1.0 } else { 0.0 },
    }
}

fn experts(row: &TableRow, family: &FamilyTraits, count: f64, ffn: f64) -> ExpertDims {
    ExpertDims {
        count,
        chosen: row.positive("moe_topk").unwrap_or(1.0),
        ffn: row.positive("moe_ffn").unwrap_or(ffn),
        shared: family.shared,
        dense_layers: family.dense_layers,
        drop: row.lower("model").contains("tokendrop"),
    }
}

fn engine(row: &TableRow, style: SoftwareStyle, constants: &Constants) -> Software {
    let name = row.lower("framework");
    let mut engine = Software::of(style, constants);
    let profile = &mut engine.profile;
    if has_any(&name, &["nemo", "bridge"]) {
        // These engines reduce gradients in 16 bits.
        profile.gradient_bytes = 2.0;
    }
    if is_composer(row) {
        // Its loss is fused with the head.
        profile.logit_bytes = 4.0;
    }
    if has_any(&normalized_gpu_name(&format!("{name} {}", row.text("notes"))), &["asynctp"]) {
        profile.hidden_tensor = profile.hidden_tensor.max(0.5);
    }
    engine
}

fn is_composer(row: &TableRow) -> bool {
    has_any(&row.lower("framework"), &["foundry", "composer"])
}

fn config(row: &TableRow, model: &Transformer, style: SoftwareStyle, shape: RowDegrees) -> StepConfig {
    let RowDegrees { tensor, pipeline, context, data, .. } = shape;
    let batch = row.positive("global_batch").unwrap_or(1.0);
    let sequence = row.number("seq_parallel").map(|value| value > 0.0);
    let chunks = chunks(row, model, style, pipeline);
    let zero = zero(row, style);
    let arrangement = Arrangement {
        zero,
        sequence: sequence
            .unwrap_or(tensor > 1.0 && matches!(style, SoftwareStyle::Modern | SoftwareStyle::Compiled)),
        recompute: recompute(row).unwrap_or(Recompute::None),
        schedule: schedule(row, chunks),
        chunks: to_count(chunks),
        ends: ends(model, pipeline * chunks),
        precision: Precision::Bf16,
        device: DeviceKind::Cuda,
        ..Arrangement::SINGLE
    };
    let micro = micro_batch(row, style, shape, batch).min((batch / data).max(1.0));
    let any = StepConfig { arrangement, micro_batch: to_count(micro).max(1), batch: to_count(batch) };
    let expert = if model.experts.is_some() { row.positive("ep").unwrap_or(1.0).max(1.0) } else { 1.0 };
    let degrees = Degrees {
        tensor: to_count(tensor),
        context: to_count(context),
        expert: to_count(expert),
        pipeline: to_count(pipeline),
        data: to_count(data.floor()).max(1),
    };
    // Megatron folds experts over tensor ranks. An impossible expert degree becomes 1.
    let placed =
        any.with_degrees(degrees, style == SoftwareStyle::Modern).or_else(|| any.with_degrees(degrees, true));
    let alone = || any.with_degrees(Degrees { expert: 1, ..degrees }, false).unwrap_or(any);
    let mut config = placed.unwrap_or_else(alone);
    if zero != ZeroStage::Zero0 {
        let replicas = config.arrangement.replicas();
        let on_a_host = to_count((shape.per_host / (tensor * context)).floor().max(1.0));
        config.arrangement.shard = shard(row, on_a_host, replicas).unwrap_or(replicas);
    }
    config
}

/// Returns the numbers of layers that embedding and head count as for the layers to divide into `runs`; zero
/// if they divide by themselves.
fn ends(model: &Transformer, runs: f64) -> EmbeddingHeadCost {
    let divides = |counted: f64| (model.layers + counted) % runs == 0.0;
    match () {
        () if divides(0.0) => EmbeddingHeadCost::FREE,
        () if divides(2.0) => EmbeddingHeadCost { embedding: 1, head: 1 },
        () if divides(1.0) => EmbeddingHeadCost { embedding: 0, head: 1 },
        () => EmbeddingHeadCost::FREE,
    }
}

/// Returns the number of samples per micro-batch: as the row states, otherwise the engine's default, or the
/// value from which [`ResolvedTraining::assume_micro_batch`] starts.
fn micro_batch(row: &TableRow, style: SoftwareStyle, shape: RowDegrees, batch: f64) -> f64 {
    let local = batch / shape.data;
    match () {
        () if row.positive("micro_batch").is_some() => row.positive("micro_batch").unwrap_or(1.0),
        () if tunes_micro_batch(style) => 1.0,
        // torchtitan splits the local batch into as many micro-batches as stages.
        () if shape.pipeline > 1.0 => (local / shape.pipeline).floor().max(1.0),
        () => local.max(1.0),
    }
}

/// Returns `true` if published runs of an engine of this style use the fastest micro-batch.
fn tunes_micro_batch(style: SoftwareStyle) -> bool {
    matches!(style, SoftwareStyle::Research | SoftwareStyle::Megatron | SoftwareStyle::Modern)
}

fn chunks(row: &TableRow, model: &Transformer, style: SoftwareStyle, pipeline: f64) -> f64 {
    if let Some(chunks) = row.positive("vp") {
        return chunks;
    }
    let (layers, interleaved) = (model.layers, row.lower("schedule").contains("interleaved"));
    let divides = |chunks: &f64| layers % (chunks * pipeline) == 0.0;
    match () {
        () if pipeline <= 1.0 => 1.0,
        // Their recipes interleave dense models with up to five chunks.
        () if style == SoftwareStyle::Modern && model.experts.is_none() => {
            if layers % pipeline == 0.0 {
                [5.0, 4.0, 3.0, 2.0].into_iter().find(divides).unwrap_or(1.0)
            } else {
                (layers / pipeline).floor().clamp(1.0, 5.0)
            }
        }
        () if interleaved && style == SoftwareStyle::Megatron => {
            [2.0, 3.0].into_iter().find(divides).unwrap_or(1.0)
        }
        () if interleaved => 2.0,
        () => 1.0,
    }
}

/// Returns the pipeline schedule of a row; several chunks mean interleaving, whatever its name.
fn schedule(row: &TableRow, chunks: f64) -> PipelineSchedule {
    let name = normalized_gpu_name(row.text("schedule"));
    match () {
        () if chunks > 1.0 => PipelineSchedule::Interleaved,
        () if has_any(&name, &["zerobubble", "zbh", "zbv", "dualpipe"]) => PipelineSchedule::ZeroBubble,
        () if name.contains("gpipe") => PipelineSchedule::Gpipe,
        () => PipelineSchedule::OneForwardOneBackward,
    }
}

fn chunks_are_unknown(row: &TableRow, style: SoftwareStyle, pipeline: f64) -> bool {
    let may = row.lower("schedule").contains("interleaved") || style == SoftwareStyle::Modern;
    row.positive("vp").is_none() && pipeline > 1.0 && may
}

fn recompute(row: &TableRow) -> Option<Recompute> {
    match row.lower("recompute").as_str() {
        "full" => Some(Recompute::Full),
        "none" => Some(Recompute::None),
        "selective" | "selective-op" => Some(Recompute::Selective),
        _ => None,
    }
}

fn products(row: &TableRow, gpu: &GpuSpec) -> MatmulPrecision {
    let precision = row.lower("precision");
    let by_tensor = has_any(&precision, &["tensor", "delayed", "current"]) || has_word(&precision, "cs");
    let by_block = has_any(&precision, &["mx", "block", "nv"]);
    match () {
        () if has_any(&precision, &["fp32", "tf32", "float32"]) => MatmulPrecision::Bits32,
        () if gpu.dense_8 <= 0.0 => MatmulPrecision::Bits16,
        () if precision.contains("fp4") => MatmulPrecision::Blocks4,
        () if !has_any(&precision, &["fp8", "float8"]) => MatmulPrecision::Bits16,
        // If a cell names both, per-tensor scales win: they are older and more common.
        () if by_block && !by_tensor => MatmulPrecision::Blocks8,
        () => MatmulPrecision::Bits8,
    }
}

fn precision_is_doubtful(row: &TableRow) -> bool {
    let precision = row.lower("precision");
    precision.is_empty() || has_any(&precision, &["not stated", "fp4", "fp32", "tf32", "float32"])
}

fn kernel(row: &TableRow, style: SoftwareStyle) -> AttentionKernel {
    let (attention, precision) = (row.lower("attention"), row.lower("precision"));
    let is_flash = !attention.contains("sdpa")
        && (has_any(&attention, &["cudnn", "fused", "fa3", "transformer engine"])
            || has_word(&attention, "te"));
    match style {
        _ if attention.contains("unfused") => AttentionKernel::Unfused,
        _ if is_flash => AttentionKernel::Fused,
        _ if !attention.is_empty() && is_composer(row) => AttentionKernel::Flash1,
        _ if !attention.is_empty() => AttentionKernel::Flash2,
        SoftwareStyle::Xla if !has_word(&precision, "te") => AttentionKernel::Unfused,
        _ => style.kernel(),
    }
}

fn recomputed(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "nothing is recomputed",
        Recompute::Selective => "what is selected is recomputed",
        Recompute::Full => "all is recomputed",
    }
}

/// Adds an assumption in words for each setting that the row leaves open.
fn describe(training: &mut ResolvedTraining<'_>, row: &TableRow, degrees: RowDegrees) {
    let MissingInputs { hardware, software, chunks, recompute, attention, network, precision, zero, .. } =
        training.unknown;
    let ResolvedTraining { config, engine, kernel, .. } = training;
    let Arrangement { chunks: runs, recompute: again, zero: stage, .. } = config.arrangement;
    let said = [
        (hardware, "unknown GPU type: a mid-range one is assumed".to_owned()),
        (
            software,
            format!(
                "`{}` is assumed to work like engines of style {}",
                row.text("framework"),
                engine.style.name()
            ),
        ),
        (chunks, format!("layers of a stage in runs: {runs}")),
        (recompute, recomputed(again).to_owned()),
        (attention, format!("{kernel:?} attention").to_lowercase()),
        (network, "network typical for the GPU type".to_owned()),
        (precision && row.text("precision").is_empty(), "products of 16 bits".to_owned()),
        (
            row.positive("dp").is_some_and(|data| data != degrees.data),
            format!("{} replicas: `dp` does not agree with `num_gpus`", degrees.data),
        ),
        (zero, format!("{stage:?}, as engines of style {} do", engine.style.name()).to_lowercase()),
    ];
    let said: Vec<String> =
        said.into_iter().filter(|(applies, _)| *applies).map(|(_, words)| words).collect();
    training.assumptions.extend(said);
}

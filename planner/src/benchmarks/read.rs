//! Converts the cells of a row into a training, with a default for each blank cell.

use super::bounds;
use super::cells::{GPT_2_VOCABULARY, TypedCells, shard_ranks, typed_cells};
use super::gpu_cell::gpu_of;
use super::row_degrees::{RowDegrees, shape};
use super::sharding::{shard, usual_stage};
use super::table::TableRow;
use super::training::ResolvedTraining;
use super::words;
use crate::analytic::search::to_count;
use crate::analytic::{
    Constants, Degrees, ExpertDims, Interconnect, MatmulPrecision, MissingInputs, Software, StepConfig,
    Transformer,
};
use crate::engine::{AttentionKernel, SoftwareStyle};
use crate::hardware::{AcceleratorKind, GpuSpec, HostGroup, unknown};
use dtrain_protocol::{Arrangement, DeviceKind, EmbeddingHeadCost};
use dtrain_recipes::{LossKernel, PipelineSchedule, Precision, Recompute, ZeroStage};

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
    let cells = typed_cells(row)?;
    let model = model(row, &cells)?;
    let shape = shape(row);
    refuse_part(row, cells.style, part)?;
    let engine = engine(&cells, cells.style.unwrap_or_else(|| likely_style(shape, part)), constants);
    let config = config(row, &cells, &model, engine.style, shape)?;
    let gpu = part.unwrap_or_else(unknown);
    let network = row.positive("internode_gbps_per_gpu");
    let products = products(&cells, gpu);
    let mut training = ResolvedTraining {
        power: named.and_then(|named| named.watts).map_or(1.0, |watts| gpu.clock_at(watts)),
        links: links(gpu, network, shape, constants),
        memory: memory(row, gpu),
        unknown: MissingInputs {
            hardware: part.is_none(),
            software: cells.style.is_none(),
            micro_batch: row.positive("micro_batch").is_none(),
            chunks: chunks_are_unknown(row, &cells, engine.style, config.pipeline()),
            recompute: cells.recompute.is_none(),
            attention: cells.kernel.is_none(),
            network: network.is_none() && shape.ranks > shape.per_host,
            precision: products_are_doubtful(&cells, products),
            zero: cells.zero.is_none(),
        },
        model,
        config,
        engine,
        gpu,
        kernel: cells.kernel.unwrap_or_else(|| usual_kernel(engine.style)),
        products,
        constants,
        is_model_assumed: cells.model.vocabulary.is_none() || cells.model.is_gated.is_none(),
        may_recompute: words::is_profile(row),
        assumptions: Vec::new(),
    };
    training.assume_recompute();
    describe(&mut training, row, &cells, shape);
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
        Some(AcceleratorKind::Nvidia | AcceleratorKind::Amd | AcceleratorKind::Intel) | None => false,
    };
    if is_refused {
        let column = if row.text("style").is_empty() { "framework" } else { "style" };
        return Err(format!(
            "`{column}` is `{}`, which does not run on `hardware`, which is `{}`",
            row.text(column),
            row.text("hardware")
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

fn model(row: &TableRow, cells: &TypedCells) -> Result<Transformer, String> {
    let number = |column: &str| row.positive(column);
    let [layers, hidden, heads, sequence] =
        ["layers", "hidden", "heads", "seq"].map(|column| number(column).unwrap_or(1.0));
    let named = &cells.model;
    let is_gated = named.is_gated.unwrap_or(false);
    let count = number("moe_experts");
    let usual = if is_gated { 8.0 * hidden / 3.0 } else { 4.0 * hidden };
    let ffn = number("ffn").or(count.and(number("moe_ffn"))).unwrap_or(usual);
    let head = named.head.unwrap_or(hidden / heads);
    if let Some(latent) = named.latent.filter(|latent| latent.rotary > head) {
        return Err(format!(
            "`latent_rotary` is {}, more than the {head} channels of a head: set `head_width`",
            latent.rotary
        ));
    }
    let experts = count.map(|count| ExpertDims {
        count,
        chosen: number("moe_topk").unwrap_or(1.0),
        ffn: number("moe_ffn").unwrap_or(ffn),
        shared: named.shared,
        dense_layers: named.dense_layers,
        drop: named.drops_tokens,
    });
    Ok(Transformer {
        layers,
        hidden,
        heads,
        kv_heads: number("kv_heads").unwrap_or(heads),
        head,
        head_value: named.head_value.unwrap_or(head),
        latent: named.latent,
        window: named.window,
        ffn,
        is_gated,
        experts,
        is_tied: named.is_tied,
        adapters: cells.state.adapters,
        vocabulary: named.vocabulary.unwrap_or(GPT_2_VOCABULARY),
        sequence,
        mtp_layers: named.mtp_layers,
    })
}

fn engine(cells: &TypedCells, style: SoftwareStyle, constants: &Constants) -> Software {
    let mut engine = Software::of(style, constants);
    cells.state.set_copies(&mut engine);
    let profile = &mut engine.profile;
    profile.gradient_bytes = cells.gradient_bytes.unwrap_or(profile.gradient_bytes);
    if cells.is_loss_fused && cells.state.policy.loss == LossKernel::Plain {
        profile.logit_bytes = 4.0;
    }
    if cells.is_tensor_async {
        profile.hidden_tensor = profile.hidden_tensor.max(0.5);
    }
    engine
}

fn config(
    row: &TableRow,
    cells: &TypedCells,
    model: &Transformer,
    style: SoftwareStyle,
    shape: RowDegrees,
) -> Result<StepConfig, String> {
    let RowDegrees { tensor, pipeline, context, data, .. } = shape;
    let batch = row.positive("global_batch").unwrap_or(1.0);
    let sequence = row.number("seq_parallel").map(|value| value > 0.0);
    let chunks = chunks(row, cells, model, style, pipeline);
    let zero = cells.zero.unwrap_or_else(|| usual_stage(style));
    let arrangement = Arrangement {
        zero,
        sequence: sequence
            .unwrap_or(tensor > 1.0 && matches!(style, SoftwareStyle::Modern | SoftwareStyle::Compiled)),
        recompute: cells.recompute.unwrap_or(Recompute::None),
        schedule: schedule(cells, chunks),
        chunks: to_count(chunks),
        ends: ends(model, pipeline * chunks),
        state: cells.state.policy,
        precision: cells.products.map_or(Precision::Bf16, MatmulPrecision::precision),
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
        let group = cells.shard.and_then(|group| shard(group, on_a_host, replicas));
        config.arrangement.shard = group.unwrap_or(replicas);
    }
    match shard_ranks(row) {
        Some(ranks) if ranks != config.arrangement.shard => Err(format!(
            "`shard_ranks` is {ranks}: it must divide the {} replicas, which share state from \
             stage 1 of ZeRO on",
            config.arrangement.replicas()
        )),
        _ => Ok(config),
    }
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

fn chunks(
    row: &TableRow,
    cells: &TypedCells,
    model: &Transformer,
    style: SoftwareStyle,
    pipeline: f64,
) -> f64 {
    if let Some(chunks) = row.positive("vp") {
        return chunks;
    }
    let (layers, interleaved) = (model.layers, is_interleaved(cells));
    let divides = |chunks: &f64| layers % (chunks * pipeline) == 0.0;
    match () {
        () if pipeline <= 1.0 || (cells.schedule.is_some() && !interleaved) => 1.0,
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

/// Returns the pipeline schedule of a layout with this many chunks per stage.
fn schedule(cells: &TypedCells, chunks: f64) -> PipelineSchedule {
    match cells.schedule {
        _ if chunks > 1.0 => PipelineSchedule::Interleaved,
        Some(schedule @ (PipelineSchedule::ZeroBubble | PipelineSchedule::Gpipe)) => schedule,
        // With one chunk, interleaving is 1F1B.
        Some(PipelineSchedule::Interleaved | PipelineSchedule::OneForwardOneBackward) | None => {
            PipelineSchedule::OneForwardOneBackward
        }
    }
}

/// Returns `true` if the number of chunks per stage follows from the style of the engine alone.
fn chunks_are_unknown(row: &TableRow, cells: &TypedCells, style: SoftwareStyle, pipeline: f64) -> bool {
    let may = is_interleaved(cells) || (style == SoftwareStyle::Modern && cells.schedule.is_none());
    row.positive("vp").is_none() && pipeline > 1.0 && may
}

fn is_interleaved(cells: &TypedCells) -> bool {
    cells.schedule == Some(PipelineSchedule::Interleaved)
}

/// Returns the format of the products: as stated, but of 16 bits on a device without 8.
fn products(cells: &TypedCells, gpu: &GpuSpec) -> MatmulPrecision {
    match cells.products {
        None => MatmulPrecision::Bits16,
        Some(MatmulPrecision::Bits32) => MatmulPrecision::Bits32,
        Some(_) if gpu.dense_8 <= 0.0 => MatmulPrecision::Bits16,
        Some(products) => products,
    }
}

/// Returns `true` if the format of the products is open, not that which the row states, or one that no
/// published run had.
fn products_are_doubtful(cells: &TypedCells, products: MatmulPrecision) -> bool {
    cells.products != Some(products) || matches!(products, MatmulPrecision::Bits32 | MatmulPrecision::Blocks4)
}

/// Returns the attention kernel of an engine whose row does not state it. Programs in JAX fuse none without
/// Transformer Engine.
fn usual_kernel(style: SoftwareStyle) -> AttentionKernel {
    if style == SoftwareStyle::Xla { AttentionKernel::Unfused } else { style.kernel() }
}

fn recomputed(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "nothing is recomputed",
        Recompute::Selective => "what is selected is recomputed",
        Recompute::Full => "all is recomputed",
    }
}

/// Adds an assumption in words for each setting that the row leaves open.
fn describe(training: &mut ResolvedTraining<'_>, row: &TableRow, cells: &TypedCells, degrees: RowDegrees) {
    let MissingInputs { hardware, software, chunks, recompute, attention, network, precision, zero, .. } =
        training.unknown;
    let ResolvedTraining { config, engine, kernel, products, .. } = training;
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
        (precision && cells.products.is_none(), "products of 16 bits".to_owned()),
        (
            cells.products.is_some_and(|stated| stated != *products),
            "products of 16 bits: the device has none of 8".to_owned(),
        ),
        (cells.model.vocabulary.is_none(), format!("vocabulary of {GPT_2_VOCABULARY} tokens")),
        (cells.model.is_gated.is_none(), "feed-forward block without a gate".to_owned()),
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

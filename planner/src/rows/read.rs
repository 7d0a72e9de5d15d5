//! From the cells of a row to a training: every rule for a blank cell stands here.

use super::bounds;
use super::cells::{Row, has_any, has_word};
use super::families::{Family, family, is_gated, vocabulary};
use super::part::part;
use super::sharding::{shard, stage, zero};
use super::software::style;
use super::training::Training;
use crate::analytic::hardware::{squashed, unknown};
use crate::analytic::names::Named;
use crate::analytic::search::whole;
use crate::analytic::{
    Config, Constants, Degrees, Experts, Gpu, Kernel, Latent, Links, PartKind, Products, Software, Style,
    Transformer, Unknown, Window,
};
use dtrain_protocol::{Arrangement, DeviceKind, Ends};
use dtrain_recipes::{PipelineSchedule, Precision, Recompute, ZeroStage};

/// Devices of a host where the row does not say.
const PER_HOST: f64 = 8.0;

/// Columns whose absence leaves nothing to price.
const NEEDED: [&str; 6] = ["layers", "hidden", "heads", "seq", "global_batch", "num_gpus"];

/// The training of a row, or why there is none.
pub fn training<'a>(row: &Row, constants: &'a Constants) -> Result<Training<'a>, String> {
    bounds::check(row)?;
    let missing: Vec<_> = NEEDED.into_iter().filter(|column| row.positive(column).is_none()).collect();
    if !missing.is_empty() {
        return Err(format!("{} missing or not above 0", missing.join(", ")));
    }
    let named = part(row)?;
    let part = named.map(|named| named.gpu);
    let model = model(row);
    let shape = shape(row);
    let known = style(row.text("framework"), row.text("notes"));
    refuse_part(row, known, part)?;
    let engine = engine(row, known.unwrap_or_else(|| likely(shape, part)), constants);
    let config = config(row, &model, engine.style, shape);
    let gpu = part.unwrap_or_else(unknown);
    let network = row.positive("internode_gbps_per_gpu");
    let (kernel, products) = (kernel(row, engine.style), products(row, gpu));
    let mut training = Training {
        power: named.and_then(|named| named.watts).map_or(1.0, |watts| gpu.clock_at(watts)),
        links: Links::of(
            gpu.link * 1e9,
            network.unwrap_or(gpu.network) / 8.0 * 1e9,
            shape.per_host,
            &constants.general,
        ),
        memory: memory(row, gpu, named),
        unknown: Unknown {
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
    training.settle_recompute();
    describe(&mut training, row, shape);
    if training.unknown.micro_batch && tunes_micro_batch(engine.style) {
        training.settle_micro_batch();
    }
    Ok(training)
}

/// Bytes of a device: as the row says, as the name of the GPU says, or as the GPU usually has.
fn memory(row: &Row, gpu: &Gpu, named: Option<Named>) -> f64 {
    let gibibytes = |gibibytes: f64| gibibytes * 1024f64.powi(3);
    let said = row.positive("gpu_mem_gib").map(gibibytes);
    said.or(named.map(|named| named.memory)).unwrap_or_else(|| gibibytes(gpu.gibibytes))
}

/// Fails where an engine does not run on the part. Megatron-DeepSpeed has a port to Gaudi, and PyTorch one to TPUs.
fn refuse_part(row: &Row, style: Option<Style>, part: Option<&Gpu>) -> Result<(), String> {
    let is_refused = match part.map(Gpu::kind) {
        Some(PartKind::Tpu) => matches!(style, Some(Style::Megatron | Style::Modern | Style::Research)),
        Some(PartKind::Gaudi) => matches!(style, Some(Style::Megatron | Style::Modern | Style::Xla)),
        Some(PartKind::Gpu) | None => false,
    };
    if is_refused {
        let (framework, hardware) = (row.text("framework"), row.text("hardware"));
        return Err(format!(
            "`framework` is `{framework}`, which does not run on `hardware`, which is `{hardware}`"
        ));
    }
    Ok(())
}

/// The style of an engine whose name says nothing: what cuts matrices or layers is no plain FSDP, and works as Megatron did when
/// the part was new.
fn likely(shape: Shape, part: Option<&Gpu>) -> Style {
    let is_old = part.is_some_and(|part| ["volta", "turing", "ampere"].contains(&part.generation.as_str()));
    match () {
        () if part.is_some_and(|part| part.kind() == PartKind::Tpu) => Style::Xla,
        () if shape.pipeline <= 1.0 && shape.tensor <= 1.0 => Style::Fsdp,
        () if is_old => Style::Megatron,
        () => Style::Modern,
    }
}

/// Degrees that do not depend on the model.
#[derive(Clone, Copy, Debug)]
struct Shape {
    ranks: f64,
    per_host: f64,
    tensor: f64,
    pipeline: f64,
    context: f64,
    data: f64,
}

fn shape(row: &Row) -> Shape {
    let ranks = row.positive("num_gpus").unwrap_or(1.0);
    let degree = |column| row.positive(column).unwrap_or(1.0).max(1.0);
    let (tensor, pipeline, context) = (degree("tp"), degree("pp"), degree("cp"));
    let others = tensor * pipeline * context;
    let rest = (ranks / others).max(1.0);
    // The number of devices is the truth: some tables count replicas of other things.
    let data = row.positive("dp").filter(|data| (others * data - ranks).abs() < 0.5).unwrap_or(rest);
    let name = squashed(row.text("hardware"));
    let said = row.positive("gpus_per_node").unwrap_or(PER_HOST);
    let domain = match () {
        // One NVLink domain is a rack.
        () if has_any(&name, &["gb200", "gb300", "nvl72"]) => said.max(72.0),
        () if name.contains("tpu") => said.max(256.0),
        () => said,
    };
    Shape { ranks, per_host: domain.min(ranks), tensor, pipeline, context, data }
}

fn model(row: &Row) -> Transformer {
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
        latent: family.latent.map(|(query, key_value, rotary)| Latent { query, key_value, rotary }),
        // Every second layer has it.
        window: family.window.map(|tokens| Window { tokens, share: 0.5 }),
        ffn,
        is_gated,
        experts: count.map(|count| experts(row, &family, count, ffn)),
        vocabulary: number("vocab").unwrap_or_else(|| vocabulary(name)),
        sequence,
        mtp_layers: if name.to_lowercase().contains("mtp") { 1.0 } else { 0.0 },
    }
}

fn experts(row: &Row, family: &Family, count: f64, ffn: f64) -> Experts {
    Experts {
        count,
        chosen: row.positive("moe_topk").unwrap_or(1.0),
        ffn: row.positive("moe_ffn").unwrap_or(ffn),
        shared: family.shared,
        dense_layers: family.dense_layers,
        drop: row.lower("model").contains("tokendrop"),
    }
}

fn engine(row: &Row, style: Style, constants: &Constants) -> Software {
    let name = row.lower("framework");
    let mut engine = Software::of(style, constants);
    let profile = &mut engine.profile;
    if has_any(&name, &["nemo", "bridge"]) {
        // They sum gradients in 16 bits.
        profile.gradient_bytes = 2.0;
    }
    if is_composer(row) {
        // Its loss is fused with the head.
        profile.logit_bytes = 4.0;
    }
    if has_any(&squashed(&format!("{name} {}", row.text("notes"))), &["asynctp"]) {
        profile.hidden_tensor = profile.hidden_tensor.max(0.5);
    }
    engine
}

fn is_composer(row: &Row) -> bool {
    has_any(&row.lower("framework"), &["foundry", "composer"])
}

fn config(row: &Row, model: &Transformer, style: Style, shape: Shape) -> Config {
    let Shape { tensor, pipeline, context, data, .. } = shape;
    let batch = row.positive("global_batch").unwrap_or(1.0);
    let sequence = row.number("seq_parallel").map(|value| value > 0.0);
    let chunks = chunks(row, model, style, pipeline);
    let zero = zero(row, style);
    let arrangement = Arrangement {
        zero,
        sequence: sequence.unwrap_or(tensor > 1.0 && matches!(style, Style::Modern | Style::Compiled)),
        recompute: recompute(row).unwrap_or(Recompute::None),
        schedule: schedule(row, chunks),
        chunks: whole(chunks),
        ends: ends(model, pipeline * chunks),
        precision: Precision::Bf16,
        device: DeviceKind::Cuda,
        ..Arrangement::SINGLE
    };
    let micro = micro_batch(row, style, shape, batch).min((batch / data).max(1.0));
    let any = Config { arrangement, micro_batch: whole(micro).max(1), batch: whole(batch) };
    let expert = if model.experts.is_some() { row.positive("ep").unwrap_or(1.0).max(1.0) } else { 1.0 };
    let degrees = Degrees {
        tensor: whole(tensor),
        context: whole(context),
        expert: whole(expert),
        pipeline: whole(pipeline),
        data: whole(data.floor()).max(1),
    };
    // Megatron folds experts over tensor ranks. A degree that no ranks have is taken to be one.
    let placed =
        any.with_degrees(degrees, style == Style::Modern).or_else(|| any.with_degrees(degrees, true));
    let alone = || any.with_degrees(Degrees { expert: 1, ..degrees }, false).unwrap_or(any);
    let mut config = placed.unwrap_or_else(alone);
    if zero != ZeroStage::Zero0 {
        let replicas = config.arrangement.replicas();
        let on_a_host = whole((shape.per_host / (tensor * context)).floor().max(1.0));
        config.arrangement.shard = shard(row, on_a_host, replicas).unwrap_or(replicas);
    }
    config
}

/// What the ends count as where layers do not divide into so many runs, and do so with the ends.
fn ends(model: &Transformer, runs: f64) -> Ends {
    let divides = |counted: f64| (model.layers + counted) % runs == 0.0;
    match () {
        () if divides(0.0) => Ends::FREE,
        () if divides(2.0) => Ends { embedding: 1, head: 1 },
        () if divides(1.0) => Ends { embedding: 0, head: 1 },
        () => Ends::FREE,
    }
}

/// Samples of a micro-batch; where the row does not say, one that [`Training::settle_micro_batch`] starts from, or what
/// engines do that do not tune it.
fn micro_batch(row: &Row, style: Style, shape: Shape, batch: f64) -> f64 {
    let local = batch / shape.data;
    match () {
        () if row.positive("micro_batch").is_some() => row.positive("micro_batch").unwrap_or(1.0),
        () if tunes_micro_batch(style) => 1.0,
        // torchtitan cuts the local batch into as many parts as there are stages.
        () if shape.pipeline > 1.0 => (local / shape.pipeline).floor().max(1.0),
        () => local.max(1.0),
    }
}

/// Whether those who publish runs of this style choose the micro-batch that is fastest.
fn tunes_micro_batch(style: Style) -> bool {
    matches!(style, Style::Research | Style::Megatron | Style::Modern)
}

fn chunks(row: &Row, model: &Transformer, style: Style, pipeline: f64) -> f64 {
    if let Some(chunks) = row.positive("vp") {
        return chunks;
    }
    let (layers, interleaved) = (model.layers, row.lower("schedule").contains("interleaved"));
    let divides = |chunks: &f64| layers % (chunks * pipeline) == 0.0;
    match () {
        () if pipeline <= 1.0 => 1.0,
        // Their recipes interleave dense models: the most chunks up to five.
        () if style == Style::Modern && model.experts.is_none() => {
            if layers % pipeline == 0.0 {
                [5.0, 4.0, 3.0, 2.0].into_iter().find(divides).unwrap_or(1.0)
            } else {
                (layers / pipeline).floor().clamp(1.0, 5.0)
            }
        }
        () if interleaved && style == Style::Megatron => [2.0, 3.0].into_iter().find(divides).unwrap_or(1.0),
        () if interleaved => 2.0,
        () => 1.0,
    }
}

/// Order of the passes; chunks are interleaved, whatever they are called.
fn schedule(row: &Row, chunks: f64) -> PipelineSchedule {
    let name = squashed(row.text("schedule"));
    match () {
        () if chunks > 1.0 => PipelineSchedule::Interleaved,
        () if has_any(&name, &["zerobubble", "zbh", "zbv", "dualpipe"]) => PipelineSchedule::ZeroBubble,
        () if name.contains("gpipe") => PipelineSchedule::Gpipe,
        () => PipelineSchedule::OneForwardOneBackward,
    }
}

fn chunks_are_unknown(row: &Row, style: Style, pipeline: f64) -> bool {
    let may = row.lower("schedule").contains("interleaved") || style == Style::Modern;
    row.positive("vp").is_none() && pipeline > 1.0 && may
}

fn recompute(row: &Row) -> Option<Recompute> {
    match row.lower("recompute").as_str() {
        "full" => Some(Recompute::Full),
        "none" => Some(Recompute::None),
        "selective" | "selective-op" => Some(Recompute::Selective),
        _ => None,
    }
}

fn products(row: &Row, gpu: &Gpu) -> Products {
    let precision = row.lower("precision");
    let by_tensor = has_any(&precision, &["tensor", "delayed", "current"]) || has_word(&precision, "cs");
    let by_block = has_any(&precision, &["mx", "block", "nv"]);
    match () {
        () if has_any(&precision, &["fp32", "tf32", "float32"]) => Products::Bits32,
        () if gpu.dense_8 <= 0.0 => Products::Bits16,
        () if precision.contains("fp4") => Products::Blocks4,
        () if !has_any(&precision, &["fp8", "float8"]) => Products::Bits16,
        // Where a cell names both, the scale of a tensor is the older and more common one.
        () if by_block && !by_tensor => Products::Blocks8,
        () => Products::Bits8,
    }
}

fn precision_is_doubtful(row: &Row) -> bool {
    let precision = row.lower("precision");
    precision.is_empty() || has_any(&precision, &["not stated", "fp4", "fp32", "tf32", "float32"])
}

fn kernel(row: &Row, style: Style) -> Kernel {
    let (attention, precision) = (row.lower("attention"), row.lower("precision"));
    let is_flash = !attention.contains("sdpa")
        && (has_any(&attention, &["cudnn", "fused", "fa3", "transformer engine"])
            || has_word(&attention, "te"));
    match style {
        _ if attention.contains("unfused") => Kernel::Unfused,
        _ if is_flash => Kernel::Fused,
        _ if !attention.is_empty() && is_composer(row) => Kernel::Flash1,
        _ if !attention.is_empty() => Kernel::Flash2,
        Style::Xla if !has_word(&precision, "te") => Kernel::Unfused,
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

/// Says in words what the row leaves open.
fn describe(training: &mut Training<'_>, row: &Row, degrees: Shape) {
    let Unknown { hardware, software, chunks, recompute, attention, network, precision, zero, .. } =
        training.unknown;
    let Training { config, engine, kernel, .. } = training;
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

//! Fills in the default values of absent recipe keys, which `keys.rs` describes in words.

use super::CheckContext;
use super::parsed::ParsedValue;
use super::values::ParsedValues;
use crate::architecture::{Activation, Family, Norm, Positions, RotaryScalingKind};
use crate::cluster::{Devices, GrowthPolicy, LauncherKind, SshBackend};
use crate::data::{DataKind, LossOn};
use crate::decoder::{AdaptedLayers, NORM_EPSILON, ROTARY_BASE};
use crate::keys::Kind;
use crate::model::{Framework, MlpActivation};
use crate::notice::NoticePoll;
use crate::state::{MomentPrecision, StatePrecision};
use crate::sync::CompressionKind;
use crate::train::{Fp8Recipe, OptimizerKind, Precision, Schedule};
use crate::training_engine::TrainingEngine;
use crate::tune::{PrunerKind, SamplerKind};
use crate::url::file_extension;
use crate::workdir::Workdir;
use std::path::Path;

pub(super) fn fill(values: &mut ParsedValues, context: &CheckContext) {
    values.or("name", ParsedValue::Text(context.name.clone()));
    match values.kind {
        Some(Kind::Decoder) => decoder(values),
        Some(Kind::Mlp) => values.or("model.activation", ParsedValue::of(MlpActivation::Relu)),
        Some(Kind::Cnn) => values.or("model.blocks", ParsedValue::Whole(2)),
        Some(Kind::Command) => values.or("model.framework", ParsedValue::of(Framework::Pytorch)),
        Some(Kind::Custom) | None => {}
    }
    if values.kind != Some(Kind::Command) {
        data(values);
    }
    values.or("tune.sampler", ParsedValue::of(SamplerKind::Auto));
    values.or("tune.pruner", ParsedValue::of(PrunerKind::None));
    values.or("tune.trials", ParsedValue::Whole(12));
    values.or("tune.min_steps", ParsedValue::Whole(1));
    values.or("tune.eta", ParsedValue::Whole(3));
    values.or("tune.confirm", ParsedValue::Whole(0));
    values.or("cluster.slots", ParsedValue::Whole(1));
    values.or("objective.metric", ParsedValue::Text("valid.loss".into()));
    optimizer(values);
    train(values);
    for key in crate::keys::keys().iter().filter(|key| key.path.starts_with("layout.")) {
        values.or(key.path, ParsedValue::Auto);
    }
    if values.kind != Some(Kind::Command) {
        sync(values);
    }
    values.or("validation.every", ParsedValue::Auto);
    values.or("validation.samples", ParsedValue::Auto);
    values.or("checkpoint.every", ParsedValue::Auto);
    values.or("checkpoint.keep", ParsedValue::Whole(3));
    values.or("cluster.launcher", ParsedValue::of(LauncherKind::Local));
    values.or("cluster.ranks", ParsedValue::Auto);
    values.or("cluster.devices", ParsedValue::of(Devices::Auto));
    values.or("cluster.spares", ParsedValue::Whole(0));
    values.or("cluster.grow", ParsedValue::of(GrowthPolicy::Checkpoint));
    workdir(values);
    if ["command", "url"].iter().any(|key| values.said(&format!("cluster.notice.{key}")).is_some()) {
        values.or("cluster.notice.every", ParsedValue::Time(NoticePoll::DEFAULT_EVERY.0));
    }
    match values.one_of("cluster.launcher") {
        Some(LauncherKind::Ssh) => values.or("cluster.transport", ParsedValue::of(SshBackend::Ssh2)),
        Some(LauncherKind::Slurm) => values.or("cluster.slurm.nodes", ParsedValue::Whole(1)),
        Some(LauncherKind::Local) | None => {}
    }
}

fn workdir(values: &mut ParsedValues) {
    let others = ["cluster.workdir.exclude", "cluster.workdir.limit", "cluster.workdir.files"];
    let is_described = others.iter().any(|key| values.said(key).is_some());
    values.or("cluster.workdir.send", ParsedValue::Flag(is_described));
    if values.flag("cluster.workdir.send") == Some(true) {
        values.or("cluster.workdir.limit", ParsedValue::Size(Workdir::DEFAULT_LIMIT.0));
        values.or("cluster.workdir.files", ParsedValue::Whole(Workdir::DEFAULT_FILES));
    }
}

fn decoder(values: &mut ParsedValues) {
    values.or("engine", ParsedValue::of(TrainingEngine::Dtrain));
    values.or("model.family", ParsedValue::of(Family::Gpt2));
    if let Some(family) = values.one_of("model.family") {
        let (positions, norm, activation, is_tied, has_bias) = match family {
            Family::Gpt2 => (Positions::Learned, Norm::Layer, Activation::Gelu, true, true),
            Family::Llama => (Positions::Rotary, Norm::Rms, Activation::Swiglu, false, false),
        };
        values.or("model.positions", ParsedValue::of(positions));
        values.or("model.norm", ParsedValue::of(norm));
        values.or("model.activation", ParsedValue::of(activation));
        values.or("model.tied", ParsedValue::Flag(is_tied));
        values.or("model.bias", ParsedValue::Flag(has_bias));
    }
    if let Some(bias) = values.flag("model.bias") {
        values.or("model.qkv_bias", ParsedValue::Flag(bias));
    }
    for key in ["model.qk_norm", "model.post_norm", "model.scaled_embedding"] {
        values.or(key, ParsedValue::Flag(false));
    }
    values.or("model.norm_epsilon", ParsedValue::Real(NORM_EPSILON));
    if values.one_of("model.positions") == Some(Positions::Rotary) {
        values.or("model.rotary_base", ParsedValue::Whole(ROTARY_BASE));
        if values.get("model.rotary_scaling.factor").is_some() {
            values.or("model.rotary_scaling.kind", ParsedValue::of(RotaryScalingKind::Linear));
        }
        if values.one_of("model.rotary_scaling.kind") == Some(RotaryScalingKind::Llama3) {
            values.or("model.rotary_scaling.low", ParsedValue::Real(1.0));
            values.or("model.rotary_scaling.high", ParsedValue::Real(4.0));
            values.or("model.rotary_scaling.original_context", ParsedValue::Whole(8192));
        }
    }
    if let Some(heads) = values.whole("model.heads") {
        values.or("model.kv_heads", ParsedValue::Whole(heads));
        if let Some(hidden) = values.whole("model.hidden").filter(|hidden| hidden.is_multiple_of(heads)) {
            values.or("model.head_width", ParsedValue::Whole(hidden / heads));
        }
    }
    if let (Some(_), Some(width)) = (values.get("model.latent.key_value"), values.whole("model.head_width")) {
        values.or("model.latent.value", ParsedValue::Whole(width));
    }
    if let Some(hidden) = values.whole("model.hidden") {
        let ffn = match values.one_of("model.activation") {
            Some(Activation::Swiglu | Activation::Geglu) => (8 * hidden).div_ceil(3).next_multiple_of(64),
            Some(Activation::Gelu | Activation::GeluTanh) | None => 4 * hidden,
        };
        values.or("model.ffn", ParsedValue::Whole(ffn));
    }
    if values.get("model.experts").is_some() {
        values.or("model.experts_per_token", ParsedValue::Whole(2));
        values.or("model.capacity", ParsedValue::None);
        values.or("model.balance", ParsedValue::Real(0.01));
        values.or("model.raw_gates", ParsedValue::Flag(false));
        if values.get("model.shared_ffn").is_some() {
            values.or("model.shared_gate", ParsedValue::Flag(false));
        }
    }
    if let Some(rank) = values.count("model.lora.rank") {
        values.or("model.lora.alpha", ParsedValue::Real(2.0 * f64::from(rank)));
        let has_experts = values.get("model.experts").is_some();
        let layers = if has_experts { AdaptedLayers::Attention } else { AdaptedLayers::All };
        values.or("model.lora.layers", ParsedValue::of(layers));
    }
}

fn data(values: &mut ParsedValues) {
    let train = values.patterns("data.train");
    if let Some(first) = train.first() {
        values.or("data.format", ParsedValue::of(format(first)));
    }
    let format = values.one_of("data.format");
    if format == Some(DataKind::Images) {
        values.or("data.resize", ParsedValue::Flag(false));
    }
    if format == Some(DataKind::Chat) {
        values.or("data.loss_on", ParsedValue::of(LossOn::Answers));
        values.or("data.packing", ParsedValue::Flag(true));
    }
    values.or("data.valid", ParsedValue::Share(0.05));
    values.or("data.fraction", ParsedValue::Share(1.0));
    let Some(format) = format.filter(|format| format.is_text() && values.reads_tokens()) else { return };
    if format != DataKind::Text {
        values.or("data.field", ParsedValue::Text("text".to_owned()));
    }
    values.or("data.separator", ParsedValue::Auto);
    values.or("data.tokenizer", ParsedValue::Bytes);
    match values.get("data.tokenizer") {
        Some(ParsedValue::Bpe(vocab)) => values.or("model.vocab", ParsedValue::Whole(u64::from(*vocab))),
        Some(ParsedValue::Bytes) => values.or("model.vocab", ParsedValue::Whole(256)),
        // The vocabulary size of a tokenizer file is read later, with the file.
        _ => {}
    }
}

/// Returns the data format that the extension of a file name or pattern implies.
fn format(pattern: &str) -> DataKind {
    let pattern = file_extension(pattern);
    let name = Path::new(pattern).file_name().and_then(|name| name.to_str()).unwrap_or(pattern);
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_suffix(".gz").or_else(|| lower.strip_suffix(".zst")).unwrap_or(&lower);
    match lower.rsplit_once('.').map(|(_, extension)| extension) {
        Some("bin") => DataKind::Tokens,
        Some("csv" | "tsv") => DataKind::Csv,
        Some("png" | "jpg" | "jpeg") => DataKind::Images,
        Some("jsonl" | "ndjson" | "json") => DataKind::Jsonl,
        Some("parquet") => DataKind::Parquet,
        Some("idx") => DataKind::Idx,
        _ if lower.ends_with("-ubyte") => DataKind::Idx,
        // The documented fallback: a text file may have any name.
        _ => DataKind::Text,
    }
}

fn optimizer(values: &mut ParsedValues) {
    values.or("train.optimizer.kind", ParsedValue::of(OptimizerKind::Adamw));
    let is_language = values.reads_tokens();
    let decay = if is_language { 0.1 } else { 0.01 };
    values.or("train.optimizer.beta1", ParsedValue::Real(0.9));
    let Some(kind) = values.one_of("train.optimizer.kind") else { return };
    let (beta2, epsilon, decay) = match kind {
        OptimizerKind::Sgd => (None, None, 0.0),
        OptimizerKind::Lion => (Some(0.99), None, decay),
        OptimizerKind::Lamb => (Some(0.999), Some(1e-6), decay),
        OptimizerKind::Adamw => (Some(if is_language { 0.95 } else { 0.999 }), Some(1e-8), decay),
    };
    values.or("train.optimizer.beta2", beta2.map_or(ParsedValue::Unset, ParsedValue::Real));
    values.or("train.optimizer.epsilon", epsilon.map_or(ParsedValue::Unset, ParsedValue::Real));
    values.or("train.optimizer.weight_decay", ParsedValue::Real(decay));
}

fn sync(values: &mut ParsedValues) {
    values.or("sync.compress", ParsedValue::of(CompressionKind::None));
    match values.one_of("sync.compress") {
        Some(CompressionKind::PowerSgd) => values.or("sync.rank", ParsedValue::Whole(4)),
        Some(CompressionKind::TopK) => values.or("sync.keep", ParsedValue::Share(0.01)),
        Some(CompressionKind::None | CompressionKind::F16 | CompressionKind::Bf16) | None => {}
    }
    values.or("sync.every", ParsedValue::Whole(1));
    if values.whole("sync.every").is_some_and(|every| every > 1) {
        values.or("sync.outer_learning_rate", ParsedValue::Real(0.7));
        values.or("sync.outer_momentum", ParsedValue::Real(0.9));
    }
    values.or("sync.staleness", ParsedValue::Whole(0));
}

fn train(values: &mut ParsedValues) {
    values.or("train.batch", ParsedValue::Auto);
    values.or("train.learning_rate", ParsedValue::Auto);
    values.or("train.warmup", ParsedValue::Auto);
    values.or("train.schedule", ParsedValue::of(Schedule::Cosine));
    values.or("train.final_fraction", ParsedValue::Real(0.1));
    values.or("train.clip", ParsedValue::Real(1.0));
    if values.kind == Some(Kind::Decoder) {
        values.or("train.z_loss", ParsedValue::Real(0.0));
        values.or("train.state.weights", ParsedValue::of(StatePrecision::F32));
        values.or("train.state.moments", ParsedValue::of(MomentPrecision::F32));
        values.or("train.state.offload", ParsedValue::Auto);
        values.or("train.state.loss", ParsedValue::Auto);
    }
    values.or("train.precision", ParsedValue::Auto);
    if values.get("train.precision").is_some_and(|precision| precision.can_be(Precision::Fp8)) {
        values.or("train.fp8_recipe", ParsedValue::of(Fp8Recipe::default()));
    }
    values.or("train.seed", ParsedValue::Whole(1));
}

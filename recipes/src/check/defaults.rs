//! The values that hold where a recipe says nothing. `keys.rs` tells them in words.

use super::CheckContext;
use super::parsed::Parsed;
use super::values::Values;
use crate::cluster::{Devices, Launcher, Transport};
use crate::data::DataKind;
use crate::decoder::{AdaptedLayers, NORM_EPSILON, ROTARY_BASE};
use crate::keys::Kind;
use crate::model::{Activation, Family, Framework, MlpActivation, Norm, Positions};
use crate::sync::CompressionKind;
use crate::train::{Fp8Recipe, OptimizerKind, Precision, Schedule};
use crate::tune::{PrunerKind, SamplerKind};
use crate::url::ending;
use std::path::Path;

pub(super) fn fill(values: &mut Values, context: &CheckContext) {
    values.or("name", Parsed::Text(context.name.clone()));
    match values.kind {
        Some(Kind::Decoder) => decoder(values),
        Some(Kind::Mlp) => values.or("model.activation", Parsed::of(MlpActivation::Relu)),
        Some(Kind::Cnn) => values.or("model.blocks", Parsed::Whole(2)),
        Some(Kind::Command) => values.or("model.framework", Parsed::of(Framework::Pytorch)),
        Some(Kind::Own) | None => {}
    }
    if values.kind != Some(Kind::Command) {
        data(values);
    }
    values.or("tune.sampler", Parsed::of(SamplerKind::Auto));
    values.or("tune.pruner", Parsed::of(PrunerKind::None));
    values.or("tune.trials", Parsed::Whole(12));
    values.or("tune.least", Parsed::Whole(1));
    values.or("tune.eta", Parsed::Whole(3));
    values.or("tune.confirm", Parsed::Whole(0));
    values.or("cluster.slots", Parsed::Whole(1));
    values.or("objective.metric", Parsed::Text("valid.loss".into()));
    optimizer(values);
    train(values);
    for key in crate::keys::keys().iter().filter(|key| key.path.starts_with("layout.")) {
        values.or(key.path, Parsed::Auto);
    }
    if values.kind != Some(Kind::Command) {
        sync(values);
    }
    values.or("validation.every", Parsed::Auto);
    values.or("validation.samples", Parsed::Auto);
    values.or("checkpoint.every", Parsed::Auto);
    values.or("checkpoint.keep", Parsed::Whole(3));
    values.or("cluster.launcher", Parsed::of(Launcher::Local));
    values.or("cluster.ranks", Parsed::Auto);
    values.or("cluster.devices", Parsed::of(Devices::Auto));
    match values.one_of("cluster.launcher") {
        Some(Launcher::Ssh) => values.or("cluster.transport", Parsed::of(Transport::Ssh2)),
        Some(Launcher::Slurm) => values.or("cluster.slurm.nodes", Parsed::Whole(1)),
        Some(Launcher::Local) | None => {}
    }
}

fn decoder(values: &mut Values) {
    values.or("model.family", Parsed::of(Family::Gpt2));
    if let Some(family) = values.one_of("model.family") {
        let (positions, norm, activation, is_tied, has_bias) = match family {
            Family::Gpt2 => (Positions::Learned, Norm::Layer, Activation::Gelu, true, true),
            Family::Llama => (Positions::Rotary, Norm::Rms, Activation::Swiglu, false, false),
        };
        values.or("model.positions", Parsed::of(positions));
        values.or("model.norm", Parsed::of(norm));
        values.or("model.activation", Parsed::of(activation));
        values.or("model.tied", Parsed::Flag(is_tied));
        values.or("model.bias", Parsed::Flag(has_bias));
    }
    if let Some(bias) = values.flag("model.bias") {
        values.or("model.qkv_bias", Parsed::Flag(bias));
    }
    values.or("model.norm_epsilon", Parsed::Real(NORM_EPSILON));
    if values.one_of("model.positions") == Some(Positions::Rotary) {
        values.or("model.rotary_base", Parsed::Whole(ROTARY_BASE));
    }
    if let Some(heads) = values.whole("model.heads") {
        values.or("model.kv_heads", Parsed::Whole(heads));
        if let Some(hidden) = values.whole("model.hidden").filter(|hidden| hidden.is_multiple_of(heads)) {
            values.or("model.head_width", Parsed::Whole(hidden / heads));
        }
    }
    if let (Some(_), Some(width)) = (values.get("model.latent.key_value"), values.whole("model.head_width")) {
        values.or("model.latent.value", Parsed::Whole(width));
    }
    if let Some(hidden) = values.whole("model.hidden") {
        let ffn = match values.one_of("model.activation") {
            Some(Activation::Swiglu) => (8 * hidden).div_ceil(3).next_multiple_of(64),
            Some(Activation::Gelu | Activation::GeluTanh) | None => 4 * hidden,
        };
        values.or("model.ffn", Parsed::Whole(ffn));
    }
    if values.get("model.experts").is_some() {
        values.or("model.experts_per_token", Parsed::Whole(2));
        values.or("model.capacity", Parsed::None);
        values.or("model.balance", Parsed::Real(0.01));
    }
    if let Some(rank) = values.count("model.lora.rank") {
        values.or("model.lora.alpha", Parsed::Real(2.0 * f64::from(rank)));
        let has_experts = values.get("model.experts").is_some();
        let layers = if has_experts { AdaptedLayers::Attention } else { AdaptedLayers::All };
        values.or("model.lora.layers", Parsed::of(layers));
    }
}

fn data(values: &mut Values) {
    let train = values.patterns("data.train");
    if let Some(first) = train.first() {
        values.or("data.format", Parsed::of(format(first)));
    }
    let format = values.one_of("data.format");
    if format == Some(DataKind::Images) {
        values.or("data.resize", Parsed::Flag(false));
    }
    values.or("data.valid", Parsed::Share(0.05));
    values.or("data.fraction", Parsed::Share(1.0));
    let Some(format) = format.filter(|format| format.is_text() && values.reads_tokens()) else { return };
    if format != DataKind::Text {
        values.or("data.field", Parsed::Text("text".to_owned()));
    }
    values.or("data.separator", Parsed::Auto);
    values.or("data.tokenizer", Parsed::Bytes);
    match values.get("data.tokenizer") {
        Some(Parsed::Bpe(vocab)) => values.or("model.vocab", Parsed::Whole(u64::from(*vocab))),
        Some(Parsed::Bytes) => values.or("model.vocab", Parsed::Whole(256)),
        // The vocabulary of a file is known where it is read.
        _ => {}
    }
}

/// How a file of this name is read.
fn format(pattern: &str) -> DataKind {
    let pattern = ending(pattern);
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
        // As documented: text may have any name.
        _ => DataKind::Text,
    }
}

fn optimizer(values: &mut Values) {
    values.or("train.optimizer.kind", Parsed::of(OptimizerKind::Adamw));
    let is_language = values.reads_tokens();
    let decay = if is_language { 0.1 } else { 0.01 };
    values.or("train.optimizer.beta1", Parsed::Real(0.9));
    let Some(kind) = values.one_of("train.optimizer.kind") else { return };
    let (beta2, epsilon, decay) = match kind {
        OptimizerKind::Sgd => (None, None, 0.0),
        OptimizerKind::Lion => (Some(0.99), None, decay),
        OptimizerKind::Lamb => (Some(0.999), Some(1e-6), decay),
        OptimizerKind::Adamw => (Some(if is_language { 0.95 } else { 0.999 }), Some(1e-8), decay),
    };
    values.or("train.optimizer.beta2", beta2.map_or(Parsed::Unset, Parsed::Real));
    values.or("train.optimizer.epsilon", epsilon.map_or(Parsed::Unset, Parsed::Real));
    values.or("train.optimizer.weight_decay", Parsed::Real(decay));
}

fn sync(values: &mut Values) {
    values.or("sync.compress", Parsed::of(CompressionKind::None));
    match values.one_of("sync.compress") {
        Some(CompressionKind::PowerSgd) => values.or("sync.rank", Parsed::Whole(4)),
        Some(CompressionKind::TopK) => values.or("sync.keep", Parsed::Share(0.01)),
        Some(CompressionKind::None | CompressionKind::F16 | CompressionKind::Bf16) | None => {}
    }
    values.or("sync.every", Parsed::Whole(1));
    if values.whole("sync.every").is_some_and(|every| every > 1) {
        values.or("sync.outer_learning_rate", Parsed::Real(0.7));
        values.or("sync.outer_momentum", Parsed::Real(0.9));
    }
    values.or("sync.staleness", Parsed::Whole(0));
}

fn train(values: &mut Values) {
    values.or("train.batch", Parsed::Auto);
    values.or("train.learning_rate", Parsed::Auto);
    values.or("train.warmup", Parsed::Auto);
    values.or("train.schedule", Parsed::of(Schedule::Cosine));
    values.or("train.final_fraction", Parsed::Real(0.1));
    values.or("train.clip", Parsed::Real(1.0));
    values.or("train.precision", Parsed::Auto);
    if values.get("train.precision").is_some_and(|precision| precision.can_be(Precision::Fp8)) {
        values.or("train.fp8_recipe", Parsed::of(Fp8Recipe::default()));
    }
    values.or("train.seed", Parsed::Whole(1));
}

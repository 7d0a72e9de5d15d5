//! The values that hold where a recipe says nothing. `keys.rs` tells them in words.

use super::CheckContext;
use super::parsed::Parsed;
use super::values::Values;
use crate::decoder::{NORM_EPSILON, ROTARY_BASE};
use crate::keys::Kind;
use crate::url::ending;
use std::path::Path;

pub(super) fn fill(values: &mut Values, context: &CheckContext) {
    values.or("name", Parsed::Text(context.name.clone()));
    match values.kind {
        Some(Kind::Decoder) => decoder(values),
        Some(Kind::Mlp) => values.or("model.activation", Parsed::Word("relu")),
        Some(Kind::Cnn) => values.or("model.blocks", Parsed::Whole(2)),
        Some(Kind::Command) => values.or("model.framework", Parsed::Word("pytorch")),
        Some(Kind::Own) | None => {}
    }
    if values.kind != Some(Kind::Command) {
        data(values);
    }
    values.or("tune.sampler", Parsed::Word("auto"));
    values.or("tune.pruner", Parsed::Word("none"));
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
    values.or("checkpoint.every", Parsed::Auto);
    values.or("checkpoint.keep", Parsed::Whole(3));
    values.or("cluster.launcher", Parsed::Word("local"));
    values.or("cluster.ranks", Parsed::Auto);
    values.or("cluster.devices", Parsed::Word("auto"));
    if values.word("cluster.launcher") == Some("ssh") {
        values.or("cluster.transport", Parsed::Word("ssh2"));
    }
    if values.word("cluster.launcher") == Some("slurm") {
        values.or("cluster.slurm.nodes", Parsed::Whole(1));
    }
}

fn decoder(values: &mut Values) {
    values.or("model.family", Parsed::Word("gpt2"));
    let is_llama = values.word("model.family") == Some("llama");
    let word = |llama, gpt2| Parsed::Word(if is_llama { llama } else { gpt2 });
    values.or("model.positions", word("rotary", "learned"));
    values.or("model.norm", word("rms", "layer"));
    values.or("model.activation", word("swiglu", "gelu"));
    values.or("model.tied", Parsed::Flag(!is_llama));
    values.or("model.bias", Parsed::Flag(!is_llama));
    if let Some(bias) = values.flag("model.bias") {
        values.or("model.qkv_bias", Parsed::Flag(bias));
    }
    values.or("model.norm_epsilon", Parsed::Real(NORM_EPSILON));
    if values.word("model.positions") == Some("rotary") {
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
        let is_gated = values.word("model.activation") == Some("swiglu");
        let ffn = if is_gated { (8 * hidden).div_ceil(3).next_multiple_of(64) } else { 4 * hidden };
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
        values.or("model.lora.layers", Parsed::Word(if has_experts { "attention" } else { "all" }));
    }
}

fn data(values: &mut Values) {
    let train = values.patterns("data.train");
    if let Some(first) = train.first() {
        values.or("data.format", Parsed::Word(format(first)));
    }
    if values.word("data.format") == Some("images") {
        values.or("data.resize", Parsed::Flag(false));
    }
    values.or("data.valid", Parsed::Share(0.05));
    values.or("data.fraction", Parsed::Share(1.0));
    if matches!(values.word("data.format"), Some("text" | "jsonl" | "parquet")) && values.reads_tokens() {
        if values.word("data.format") != Some("text") {
            values.or("data.field", Parsed::Text("text".to_owned()));
        }
        values.or("data.separator", Parsed::Auto);
        values.or("data.tokenizer", Parsed::Word("bytes"));
        let vocab = match values.get("data.tokenizer") {
            Some(Parsed::Bpe(vocab)) => Some(u64::from(*vocab)),
            Some(Parsed::Word(_)) => Some(256),
            _ => None,
        };
        if let Some(vocab) = vocab {
            values.or("model.vocab", Parsed::Whole(vocab));
        }
    }
}

/// How a file of this name is read.
fn format(pattern: &str) -> &'static str {
    let pattern = ending(pattern);
    let name = Path::new(pattern).file_name().and_then(|name| name.to_str()).unwrap_or(pattern);
    let lower = name.to_ascii_lowercase();
    let lower = lower.strip_suffix(".gz").or_else(|| lower.strip_suffix(".zst")).unwrap_or(&lower);
    match lower.rsplit_once('.').map(|(_, extension)| extension) {
        Some("bin") => "tokens",
        Some("csv" | "tsv") => "csv",
        Some("png" | "jpg" | "jpeg") => "images",
        Some("jsonl" | "ndjson") => "jsonl",
        Some("parquet") => "parquet",
        Some("idx") => "idx",
        _ if lower.ends_with("-ubyte") => "idx",
        _ => "text",
    }
}

fn optimizer(values: &mut Values) {
    values.or("train.optimizer.kind", Parsed::Word("adamw"));
    let is_language = values.reads_tokens();
    let decay = if is_language { 0.1 } else { 0.01 };
    values.or("train.optimizer.beta1", Parsed::Real(0.9));
    let (beta2, epsilon, decay) = match values.word("train.optimizer.kind") {
        Some("sgd") => (None, None, 0.0),
        Some("lion") => (Some(0.99), None, decay),
        Some("lamb") => (Some(0.999), Some(1e-6), decay),
        _ => (Some(if is_language { 0.95 } else { 0.999 }), Some(1e-8), decay),
    };
    values.or("train.optimizer.beta2", beta2.map_or(Parsed::Unset, Parsed::Real));
    values.or("train.optimizer.epsilon", epsilon.map_or(Parsed::Unset, Parsed::Real));
    values.or("train.optimizer.weight_decay", Parsed::Real(decay));
}

fn sync(values: &mut Values) {
    values.or("sync.compress", Parsed::Word("none"));
    match values.word("sync.compress") {
        Some("powersgd") => values.or("sync.rank", Parsed::Whole(4)),
        Some("topk") => values.or("sync.keep", Parsed::Share(0.01)),
        _ => {}
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
    values.or("train.schedule", Parsed::Word("cosine"));
    values.or("train.final_fraction", Parsed::Real(0.1));
    values.or("train.clip", Parsed::Real(1.0));
    values.or("train.precision", Parsed::Auto);
    if values.get("train.precision").is_some_and(|precision| precision.can_be("fp8")) {
        values.or("train.fp8_recipe", Parsed::Word("tensorwise"));
    }
    values.or("train.seed", Parsed::Whole(1));
}

//! Emits the model as `config.json` of Hugging Face transformers, for DeepSpeed and accelerate.

use super::ConfigFile;
use super::adapters;
use super::source::DecoderPlan;
use crate::engine::rules;
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_recipes::{AttentionImplementation, Decoder, FrozenPrecision, Precision, StatePrecision};
use serde_json::{Map, Value, json};

/// Version of transformers against which the names were checked.
pub(super) const VERSION: &str = "5.23.0";

/// Emits the file `config.json`.
pub(super) fn config(source: &DecoderPlan, family: ModelFamily) -> ConfigFile {
    let mut config = newer_names(family.config(&source.model.base(), dtype(source)));
    // Where heads have the usual width, the configuration need not say it.
    if source.model.head_width.is_none() && !source.model.qk_norm {
        config.remove("head_dim");
    }
    if let Some(attention) = source.train().state.attention {
        config.insert("attn_implementation".into(), attention_word(attention).into());
    }
    ConfigFile { name: "config.json".into(), text: format!("{:#}\n", Value::Object(config)) }
}

/// Returns a configuration with the keys of transformers 5: precision and rotary positions have other names than in
/// version 4. Values that are null are left out, as they are the defaults.
fn newer_names(mut config: Map<String, Value>) -> Map<String, Value> {
    config.retain(|_, value| !value.is_null());
    config.remove("attention_dropout");
    if let Some(dtype) = config.remove("torch_dtype") {
        config.insert("dtype".into(), dtype);
    }
    let Some(base) = config.remove("rope_theta") else { return config };
    let mut rotary = match config.remove("rope_scaling") {
        Some(Value::Object(scaling)) => scaling,
        _ => Map::from_iter([("rope_type".to_owned(), "default".into())]),
    };
    rotary.insert("rope_theta".into(), base);
    let rotary = match config.remove("rope_local_base_freq") {
        None => rotary,
        Some(local) => Map::from_iter([
            ("full_attention".to_owned(), rotary.into()),
            ("sliding_attention".to_owned(), json!({ "rope_type": "default", "rope_theta": local })),
        ]),
    };
    config.insert("rope_parameters".into(), rotary.into());
    config
}

/// Returns the family of the plan's model; the engine's rules refuse all others.
pub(super) fn family(model: &Decoder) -> ModelFamily {
    rules::hugging_face_family(model).expect("the rules of the engine refuse other models")
}

/// Returns PyTorch's name of the precision in which the model is loaded: that of the weights that the optimizer
/// updates, or of frozen weights below adapters that are not quantized.
pub(super) fn dtype(source: &DecoderPlan) -> &'static str {
    let Some(lora) = source.model.lora else {
        return match source.arrangement.state.weights {
            StatePrecision::F32 => "float32",
            StatePrecision::Bf16 => "bfloat16",
        };
    };
    match lora.base {
        Some(FrozenPrecision::F32) => "float32",
        Some(FrozenPrecision::Bf16) => "bfloat16",
        Some(FrozenPrecision::Int8 | FrozenPrecision::Nf4) | None => product_dtype(source),
    }
}

/// Returns PyTorch's name of the precision of products.
pub(super) fn product_dtype(source: &DecoderPlan) -> &'static str {
    match source.arrangement.precision {
        Precision::F32 => "float32",
        Precision::Bf16 => "bfloat16",
        Precision::F16 => "float16",
        Precision::Fp8 => unreachable!("no family of models has fp8"),
    }
}

/// Returns the value of `attn_implementation` for an implementation of attention.
pub(super) fn attention_word(attention: AttentionImplementation) -> &'static str {
    match attention {
        AttentionImplementation::Eager => "eager",
        AttentionImplementation::Sdpa => "sdpa",
        AttentionImplementation::Flash => "flash_attention_2",
    }
}

/// Returns the notes about differences between the plan's model and the one in transformers.
pub(super) fn notes(source: &DecoderPlan) -> Vec<String> {
    let mut notes = adapters::notes(source);
    if source.model.lora.is_none() {
        notes.push("weights begin as transformers draw them, not as dtrain does".into());
    }
    if source.train().state.attention == Some(AttentionImplementation::Flash) {
        notes.push("attention is that of the package flash-attn, which must be installed".into());
    }
    let Some(experts) = source.model.experts else { return notes };
    if experts.per_token == 1 {
        notes.push("one expert a token: transformers weigh it with 1, so that the router learns from the balance loss only".into());
    }
    if experts.balance > 0.0 {
        notes.push(
            "balance of experts is counted over a micro-batch here, over each sequence in the plan".into(),
        );
    }
    if let Some(capacity) = experts.capacity {
        notes.push(format!("experts take all tokens sent to them, not up to {capacity} of an even share"));
    }
    notes
}

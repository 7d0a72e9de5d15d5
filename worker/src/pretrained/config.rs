//! Model configurations: reads and writes the `config.json` of models that dtrain supports.

use super::PretrainedError;
use dtrain_recipes::{Activation, Decoder, NORM_EPSILON, Norm, Positions, ROTARY_BASE};
use serde_json::{Map, Value, json};
use std::path::Path;

/// An architecture of Hugging Face transformers that dtrain supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFamily {
    /// GPT-2: learned positions, layer norms, GELU, biases.
    Gpt2,
    /// Llama: rotary positions, RMS norms, SwiGLU.
    Llama,
    /// Mistral: Llama's architecture under another name.
    Mistral,
    /// Qwen2: Llama's architecture with biases for queries, keys and values.
    Qwen2,
}

/// A model, as read from a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pretrained {
    /// Architecture of the model.
    pub family: ModelFamily,
    /// Sizes of the model, with the longest context that it supports.
    pub model: Decoder,
    /// Notes for the user: differences from the original training that do not change the computation of
    /// the weights.
    pub notes: Vec<String>,
}

impl ModelFamily {
    const ALL: [Self; 4] = [Self::Gpt2, Self::Llama, Self::Mistral, Self::Qwen2];

    /// Returns the value of `model_type` in a `config.json` of this family.
    pub fn model_type(self) -> &'static str {
        match self {
            Self::Gpt2 => "gpt2",
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2LMHeadModel",
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
        }
    }

    /// Returns the architecture of transformers that can represent a model.
    ///
    /// `Err` names the feature that no architecture has.
    pub fn of(model: &Decoder) -> Result<Self, PretrainedError> {
        let none = |what: &str| Err(PretrainedError::NoFamily(what.to_owned()));
        if model.experts.is_some() {
            return none("experts");
        }
        if model.latent.is_some() || model.window.is_some() || model.mtp_layers > 0 {
            return none("latent attention, a sliding window or multi-token prediction");
        }
        match (model.positions, model.norm, model.activation) {
            (Positions::Learned, Norm::Layer, Activation::Gelu | Activation::GeluTanh) => {
                if !model.bias || !model.qkv_bias() {
                    return none("GPT-2 without biases");
                }
                if model.kv_heads != model.heads || model.head_width.is_some() {
                    return none("GPT-2 with grouped heads, or heads of another width than hidden / heads");
                }
                Ok(Self::Gpt2)
            }
            (Positions::Rotary, Norm::Rms, Activation::Swiglu) => match (model.qkv_bias(), model.bias) {
                (false, false) | (true, true) => Ok(Self::Llama),
                (true, false) => Ok(Self::Qwen2),
                (false, true) => none("biases everywhere but at queries, keys and values"),
            },
            _ => none(
                "positions, norm and activation are neither those of GPT-2 (learned, layer, gelu) nor of Llama \
                 (rotary, rms, swiglu)",
            ),
        }
    }
}

/// Parses the text of the `config.json` at `path`.
///
/// `Err` lists the unsupported features.
pub(super) fn parse(path: &Path, text: &[u8]) -> Result<Pretrained, PretrainedError> {
    let content = |detail: String| PretrainedError::Content { path: path.to_owned(), detail };
    let map: Map<String, Value> =
        serde_json::from_slice(text).map_err(|error| content(format!("expected a JSON object: {error}")))?;
    let named = map.get("model_type").and_then(Value::as_str).unwrap_or("none");
    let family = ModelFamily::ALL.into_iter().find(|family| family.model_type() == named);
    let Some(family) = family else {
        let known = ModelFamily::ALL.map(ModelFamily::model_type).join(", ");
        return Err(content(format!("`model_type` is {named}; dtrain reads {known}")));
    };
    let mut config = ConfigReader { map, reasons: Vec::new(), notes: Vec::new() };
    let model = if family == ModelFamily::Gpt2 { config.gpt2() } else { config.llama(family) };
    let ConfigReader { reasons, notes, .. } = config;
    match model {
        Some(model) if reasons.is_empty() => Ok(Pretrained { family, model, notes }),
        _ => Err(PretrainedError::Untrained { path: path.to_owned(), reasons }),
    }
}

/// The values of a `config.json`, and the mistakes and notes found while reading them.
struct ConfigReader {
    map: Map<String, Value>,
    reasons: Vec<String>,
    notes: Vec<String>,
}

impl ConfigReader {
    /// Returns the value of `key` if it is present and not null.
    fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    /// Returns the count of at least one at `key`, or `default` if the key is absent; records a mistake
    /// if there is neither.
    fn count(&mut self, key: &str, default: Option<u32>) -> Option<u32> {
        let Some(value) = self.value(key) else {
            if default.is_none() {
                self.reasons.push(format!("`{key}` is missing"));
            }
            return default;
        };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        if count.is_none() {
            self.reasons.push(format!("`{key}` is {value}, expected a count of at least one"));
        }
        count
    }

    fn number(&mut self, key: &str, default: f64) -> f64 {
        let Some(value) = self.value(key) else { return default };
        if let Some(number) = value.as_f64() {
            return number;
        }
        self.reasons.push(format!("`{key}` is {value}, expected a number"));
        default
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Records a mistake if the flag at `key` is not `wanted`, which is also its default.
    fn refuse_unless(&mut self, key: &str, wanted: bool) {
        if self.flag(key, wanted) != wanted {
            self.reasons.push(format!("`{key}` is {}, and dtrain has only {wanted}", !wanted));
        }
    }

    fn activation(&mut self, key: &str, default: &str, known: &[(&str, Activation)]) -> Option<Activation> {
        let name = self
            .value(key)
            .map_or(default.to_owned(), |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned));
        let found = known.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation);
        if found.is_none() {
            let names: Vec<_> = known.iter().map(|(name, _)| *name).collect();
            self.reasons.push(format!("`{key}` is {name}, and dtrain has {}", names.join(", ")));
        }
        found
    }

    /// Notes the dropout at `keys`, which dtrain lacks: it changes training, not the computation of the
    /// weights.
    fn dropout(&mut self, keys: &[(&str, f64)]) {
        for (key, default) in keys {
            let rate = self.number(key, *default);
            if rate > 0.0 {
                self.notes.push(format!("{key} = {rate} is left out: dtrain has no dropout"));
            }
        }
    }

    fn gpt2(&mut self) -> Option<Decoder> {
        self.refuse_unless("scale_attn_weights", true);
        self.refuse_unless("scale_attn_by_inverse_layer_idx", false);
        self.refuse_unless("add_cross_attention", false);
        self.quantization();
        self.dropout(&[("resid_pdrop", 0.1), ("embd_pdrop", 0.1), ("attn_pdrop", 0.1)]);
        let known = [
            ("gelu_new", Activation::GeluTanh),
            ("gelu_pytorch_tanh", Activation::GeluTanh),
            ("gelu", Activation::Gelu),
        ];
        let activation = self.activation("activation_function", "gelu_new", &known);
        let epsilon = self.number("layer_norm_epsilon", 1e-5);
        let hidden = self.count("n_embd", Some(768));
        let heads = self.count("n_head", Some(12));
        Some(Decoder {
            layers: self.count("n_layer", Some(12))?,
            hidden: hidden?,
            heads: heads?,
            kv_heads: heads?,
            ffn: self.count("n_inner", hidden.map(|hidden| 4 * hidden))?,
            vocab: self.count("vocab_size", Some(50_257))?,
            context: self.count("n_positions", Some(1024))?,
            positions: Positions::Learned,
            norm: Norm::Layer,
            activation: activation?,
            tied: self.flag("tie_word_embeddings", true),
            bias: true,
            experts: None,
            head_width: None,
            rotary_base: None,
            norm_epsilon: Some(epsilon).filter(|epsilon| *epsilon != NORM_EPSILON),
            qkv_bias: None,
            latent: None,
            window: None,
            mtp_layers: 0,
            lora: None,
        })
    }

    fn llama(&mut self, family: ModelFamily) -> Option<Decoder> {
        self.window();
        self.quantization();
        self.dropout(&[("attention_dropout", 0.0)]);
        let (bias, qkv_bias) = self.biases(family);
        let base = self.rotary();
        let activation = self.activation(
            "hidden_act",
            "silu",
            &[("silu", Activation::Swiglu), ("swish", Activation::Swiglu)],
        );
        let epsilon = self.number("rms_norm_eps", 1e-6);
        let (hidden, heads) = (self.count("hidden_size", None), self.count("num_attention_heads", None));
        let (kv_heads, layers) =
            (self.count("num_key_value_heads", heads), self.count("num_hidden_layers", None));
        let (ffn, vocab) = (self.count("intermediate_size", None), self.count("vocab_size", None));
        let context = self.count("max_position_embeddings", None);
        let (hidden, heads) = (hidden?, heads?);
        let width = if self.value("head_dim").is_some() { Some(self.count("head_dim", None)?) } else { None };
        if width.is_none() && !hidden.is_multiple_of(heads) {
            self.reasons
                .push(format!("`num_attention_heads` = {heads} does not divide `hidden_size` = {hidden}"));
        }
        Some(Decoder {
            layers: layers?,
            hidden,
            heads,
            kv_heads: kv_heads?,
            ffn: ffn?,
            vocab: vocab?,
            context: context?,
            positions: Positions::Rotary,
            norm: Norm::Rms,
            activation: activation?,
            tied: self.flag("tie_word_embeddings", false),
            bias,
            experts: None,
            head_width: width.filter(|width| width.checked_mul(heads) != Some(hidden)),
            rotary_base: Some(base?).filter(|base| *base != ROTARY_BASE),
            norm_epsilon: Some(epsilon).filter(|epsilon| *epsilon != NORM_EPSILON),
            qkv_bias: Some(qkv_bias).filter(|qkv| *qkv != bias),
            latent: None,
            window: None,
            mtp_layers: 0,
            lora: None,
        })
    }

    /// Returns two flags: all linear layers have biases; queries, keys and values have biases.
    fn biases(&mut self, family: ModelFamily) -> (bool, bool) {
        if family != ModelFamily::Llama {
            return (false, family == ModelFamily::Qwen2);
        }
        let (attention, mlp) = (self.flag("attention_bias", false), self.flag("mlp_bias", false));
        if attention != mlp {
            self.reasons.push(format!(
                "`attention_bias` is {attention} and `mlp_bias` is {mlp}, and dtrain has both or none"
            ));
        }
        (mlp, attention)
    }

    /// Returns the base of the rotary angles (RoPE theta), which newer versions store in
    /// `rope_parameters`.
    fn rotary(&mut self) -> Option<u64> {
        let rope = self.value("rope_parameters").or_else(|| self.value("rope_scaling")).cloned();
        let kind = rope.as_ref().and_then(|rope| rope.get("rope_type").or_else(|| rope.get("type")));
        if let Some(kind) = kind.and_then(Value::as_str).filter(|kind| *kind != "default") {
            self.reasons.push(format!(
                "rotary positions are scaled (`rope_type` = {kind}), and dtrain does not scale them"
            ));
        }
        let inner = rope.as_ref().and_then(|rope| rope.get("rope_theta")).and_then(Value::as_f64);
        let base = inner.unwrap_or_else(|| self.number("rope_theta", 10_000.0));
        if base.fract() != 0.0 || !(2.0..=1e12).contains(&base) {
            self.reasons.push(format!("`rope_theta` is {base}, expected a whole number from 2 to 10^12"));
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Some(base as u64)
    }

    fn window(&mut self) {
        let is_used = self.flag("use_sliding_window", true);
        if let Some(window) = self.value("sliding_window").filter(|_| is_used).cloned() {
            self.reasons.push(format!(
                "`sliding_window` is {window}: dtrain does not train sliding-window attention"
            ));
        }
        let kinds = self.value("layer_types").and_then(Value::as_array);
        let other = kinds.and_then(|kinds| kinds.iter().find(|kind| kind.as_str() != Some("full_attention")));
        if let Some(kind) = other.cloned() {
            self.reasons.push(format!("`layer_types` has {kind}, and dtrain has only full_attention"));
        }
    }

    fn quantization(&mut self) {
        if self.value("quantization_config").is_some() {
            self.reasons.push(
                "its weights are quantized (`quantization_config`); take the ones in bf16, f16 or f32".into(),
            );
        }
    }
}

/// Returns the `config.json` of a model with weights in f32.
pub(super) fn to_config_json(family: ModelFamily, model: &Decoder) -> Value {
    let mut config = json!({
        "architectures": [family.architecture()],
        "model_type": family.model_type(),
        "torch_dtype": "float32",
        "tie_word_embeddings": model.tied,
        "vocab_size": model.vocab,
        "bos_token_id": null,
        "eos_token_id": null,
    });
    let more = match family {
        ModelFamily::Gpt2 => json!({
            "n_layer": model.layers,
            "n_embd": model.hidden,
            "n_head": model.heads,
            "n_inner": model.ffn,
            "n_positions": model.context,
            "activation_function": if model.activation == Activation::GeluTanh { "gelu_new" } else { "gelu" },
            "layer_norm_epsilon": model.norm_epsilon(),
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
        }),
        ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 => json!({
            "num_hidden_layers": model.layers,
            "hidden_size": model.hidden,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "head_dim": model.head_width(),
            "intermediate_size": model.ffn,
            "max_position_embeddings": model.context,
            "hidden_act": "silu",
            "rms_norm_eps": model.norm_epsilon(),
            "rope_theta": model.rotary_base() as f64,
            "attention_dropout": 0.0,
        }),
    };
    let map = config.as_object_mut().expect("an object");
    map.extend(more.as_object().expect("an object").clone());
    if family == ModelFamily::Llama {
        map.extend([
            ("attention_bias".to_owned(), model.bias.into()),
            ("mlp_bias".to_owned(), model.bias.into()),
        ]);
    }
    config
}

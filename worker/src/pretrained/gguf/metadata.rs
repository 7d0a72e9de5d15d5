//! Metadata of a GGUF file: what llama.cpp must know of a model beside its tensors, from the `config.json`
//! of transformers.

use super::GgufError;
use super::writer::MetadataValue;
use serde_json::{Map, Value};

/// An architecture of llama.cpp that a model is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Llama, Mistral and Mixtral.
    Llama,
    Qwen2,
    Qwen3,
    Qwen2Moe,
    Qwen3Moe,
    Gemma3,
    Gpt2,
}

/// A model as llama.cpp sees it.
#[derive(Debug)]
pub(super) struct ModelDescription {
    pub(super) architecture: Architecture,
    pub(super) layers: u32,
    pub(super) heads: u32,
    pub(super) kv_heads: u32,
    pub(super) vocab: u32,
    /// Count of experts in each layer, if the model has experts.
    pub(super) experts: Option<u32>,
    pub(super) is_tied: bool,
    /// Divisors of the rotary frequencies, which long contexts of Llama 3 have: one for two values of a
    /// head.
    pub(super) rotary_divisors: Option<Vec<f32>>,
    /// Keys of the model, without those of the tokenizer and of the file itself.
    pub(super) keys: Vec<(String, MetadataValue)>,
    /// Differences between llama.cpp's computation and that of transformers.
    pub(super) notes: Vec<String>,
}

impl Architecture {
    /// Returns the architecture for `model_type` of a `config.json`.
    fn of(model_type: &str) -> Result<Self, GgufError> {
        Ok(match model_type {
            "llama" | "mistral" | "mixtral" => Self::Llama,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "qwen2_moe" => Self::Qwen2Moe,
            "qwen3_moe" => Self::Qwen3Moe,
            "gemma3_text" => Self::Gemma3,
            "gpt2" => Self::Gpt2,
            other => {
                return Err(GgufError::Unsupported(format!(
                    "`model_type` is {other}; llama, mistral, mixtral, qwen2, qwen3, qwen2_moe, qwen3_moe, \
                     gemma3_text and gpt2 are written as GGUF"
                )));
            }
        })
    }

    /// Returns the name of the architecture in a file, which is also the prefix of its keys.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Qwen2Moe => "qwen2moe",
            Self::Qwen3Moe => "qwen3moe",
            Self::Gemma3 => "gemma3",
            Self::Gpt2 => "gpt2",
        }
    }
}

/// Describes the model of a `config.json`.
///
/// `Err` names what llama.cpp does not compute, or a value that is missing.
pub(super) fn describe(config: &Value) -> Result<ModelDescription, GgufError> {
    let Value::Object(map) = config else {
        return Err(GgufError::Config("config.json is not a JSON object".into()));
    };
    let config = Config { map };
    let architecture = Architecture::of(config.text("model_type").unwrap_or("none"))?;
    let hidden = config.count(&["hidden_size", "n_embd"])?;
    let heads = config.count(&["num_attention_heads", "n_head"])?;
    let head_width = config.optional_count(&["head_dim"])?.unwrap_or(hidden / heads);
    let mut model = ModelDescription {
        architecture,
        layers: config.count(&["num_hidden_layers", "n_layer"])?,
        heads,
        kv_heads: config.optional_count(&["num_key_value_heads"])?.unwrap_or(heads),
        vocab: config.count(&["vocab_size"])?,
        experts: None,
        is_tied: config
            .flag("tie_word_embeddings", matches!(architecture, Architecture::Gpt2 | Architecture::Gemma3)),
        rotary_divisors: None,
        keys: Vec::new(),
        notes: Vec::new(),
    };
    model.sizes(&config, hidden, head_width)?;
    match architecture {
        Architecture::Gpt2 => model.gpt2(&config)?,
        Architecture::Gemma3 => model.gemma3(&config, hidden, head_width)?,
        _ => model.llama(&config)?,
    }
    if architecture != Architecture::Gpt2 {
        model.put_f32("attention.layer_norm_rms_epsilon", config.number("rms_norm_eps").unwrap_or(1e-6));
        model.put_u32("attention.key_length", head_width);
        model.put_u32("attention.value_length", head_width);
        model.put_u32("rope.dimension_count", head_width);
        model.rotary(&config, head_width)?;
    }
    Ok(model)
}

impl ModelDescription {
    fn put(&mut self, key: &str, value: MetadataValue) {
        self.keys.push((format!("{}.{key}", self.architecture.name()), value));
    }

    fn put_u32(&mut self, key: &str, value: u32) {
        self.put(key, MetadataValue::U32(value));
    }

    #[expect(clippy::cast_possible_truncation, reason = "the file has it as f32")]
    fn put_f32(&mut self, key: &str, value: f64) {
        self.put(key, MetadataValue::F32(value as f32));
    }

    /// Adds the keys that every architecture has.
    fn sizes(&mut self, config: &Config<'_>, hidden: u32, head_width: u32) -> Result<(), GgufError> {
        let inner = config.optional_count(&["intermediate_size", "n_inner"])?;
        let inner = match (inner, self.architecture) {
            (None, Architecture::Gpt2) => 4 * hidden,
            _ => config.count(&["intermediate_size", "n_inner"])?,
        };
        self.put_u32("block_count", self.layers);
        self.put_u32("context_length", config.count(&["max_position_embeddings", "n_positions", "n_ctx"])?);
        self.put_u32("embedding_length", hidden);
        self.put_u32("feed_forward_length", inner);
        self.put_u32("attention.head_count", self.heads);
        self.put_u32("attention.head_count_kv", self.kv_heads);
        self.put_u32("vocab_size", self.vocab);
        // llama.cpp takes the width of these from the embedding.
        let is_square = matches!(self.architecture, Architecture::Qwen2 | Architecture::Qwen2Moe);
        if is_square && head_width.checked_mul(self.heads) != Some(hidden) {
            return Err(GgufError::Unsupported(format!(
                "llama.cpp has {} only with heads of hidden / heads = {}, and these have {head_width}",
                self.architecture.name(),
                hidden / self.heads
            )));
        }
        Ok(())
    }

    fn gpt2(&mut self, config: &Config<'_>) -> Result<(), GgufError> {
        self.put_f32("attention.layer_norm_epsilon", config.number("layer_norm_epsilon").unwrap_or(1e-5));
        config.refuse_unless("scale_attn_weights", true)?;
        config.refuse_unless("scale_attn_by_inverse_layer_idx", false)?;
        match config.text("activation_function").unwrap_or("gelu_new") {
            "gelu_new" | "gelu_pytorch_tanh" => {}
            "gelu" => self.notes.push(
                "llama.cpp computes GELU of GPT-2 by its tanh approximation; this model was trained with the \
                 exact one, and its logits differ a little"
                    .into(),
            ),
            other => return Err(GgufError::Unsupported(format!("llama.cpp's GPT-2 has GELU, not {other}"))),
        }
        Ok(())
    }

    /// Adds the keys of Llama, Qwen, and their mixtures of experts.
    fn llama(&mut self, config: &Config<'_>) -> Result<(), GgufError> {
        let activation = config.text("hidden_act").unwrap_or("silu");
        if !matches!(activation, "silu" | "swish") {
            return Err(GgufError::Unsupported(format!("llama.cpp has silu here, not {activation}")));
        }
        let has_window = config.flag("use_sliding_window", self.architecture == Architecture::Llama);
        // Zero is none, as null is.
        if let Some(window) = config.number("sliding_window").filter(|window| has_window && *window > 0.0) {
            self.notes.push(format!(
                "llama.cpp attends to all earlier tokens here, and the model to {window}: they agree for texts \
                 that are not longer"
            ));
        }
        let is_mixture = matches!(self.architecture, Architecture::Qwen2Moe | Architecture::Qwen3Moe);
        if !is_mixture && config.text("model_type") != Some("mixtral") {
            return Ok(());
        }
        let experts = config.count(&["num_local_experts", "num_experts"])?;
        self.experts = Some(experts);
        self.put_u32("expert_count", experts);
        self.put_u32("expert_used_count", config.count(&["num_experts_per_tok"])?);
        if !is_mixture {
            return Ok(());
        }
        self.put_u32("expert_feed_forward_length", config.count(&["moe_intermediate_size"])?);
        let is_qwen2 = self.architecture == Architecture::Qwen2Moe;
        if is_qwen2 {
            let shared = config.count(&["shared_expert_intermediate_size"])?;
            self.put_u32("expert_shared_feed_forward_length", shared);
        }
        // llama.cpp has the one for Qwen2, the other for Qwen3.
        if config.flag("norm_topk_prob", false) == is_qwen2 {
            return Err(GgufError::Unsupported(format!(
                "llama.cpp has {} only with `norm_topk_prob` = {}",
                self.architecture.name(),
                !is_qwen2
            )));
        }
        let has_dense =
            config.value("mlp_only_layers").and_then(Value::as_array).is_some_and(|all| !all.is_empty());
        if has_dense || config.optional_count(&["decoder_sparse_step"])?.unwrap_or(1) != 1 {
            return Err(GgufError::Unsupported("llama.cpp wants experts in every layer".into()));
        }
        Ok(())
    }

    fn gemma3(&mut self, config: &Config<'_>, hidden: u32, head_width: u32) -> Result<(), GgufError> {
        let activation = config.text("hidden_activation").unwrap_or("gelu_pytorch_tanh");
        if activation != "gelu_pytorch_tanh" {
            return Err(GgufError::Unsupported(format!("llama.cpp has tanh GELU here, not {activation}")));
        }
        if config.number("attn_logit_softcapping").is_some() {
            return Err(GgufError::Unsupported("llama.cpp has no soft cap of attention here".into()));
        }
        if let Some(cap) = config.number("final_logit_softcapping") {
            self.put_f32("final_logit_softcapping", cap);
        }
        // llama.cpp knows the largest model, which scales otherwise, by its layers.
        let scale = if self.layers == 62 { hidden / self.heads } else { head_width };
        let wanted = config.number("query_pre_attn_scalar").unwrap_or(256.0);
        if wanted != f64::from(scale) {
            return Err(GgufError::Unsupported(format!(
                "llama.cpp divides scores by the root of {scale}; `query_pre_attn_scalar` is {wanted}"
            )));
        }
        let local = self.local_layers(config)?;
        if local.contains(&true) {
            self.put_u32("attention.sliding_window", config.count(&["sliding_window"])?);
            // This is llama.cpp's default, which versions without the key have too.
            let is_sixth = local.iter().enumerate().all(|(layer, local)| *local == (layer % 6 < 5));
            if !is_sixth {
                self.put("attention.sliding_window_pattern", MetadataValue::Bools(local));
            }
        }
        Ok(())
    }

    /// Returns for each layer of Gemma 3 whether its attention has a window.
    fn local_layers(&self, config: &Config<'_>) -> Result<Vec<bool>, GgufError> {
        if let Some(kinds) = config.value("layer_types").and_then(Value::as_array) {
            return Ok(kinds.iter().map(|kind| kind.as_str() == Some("sliding_attention")).collect());
        }
        let keys = ["sliding_window_pattern", "_sliding_window_pattern"];
        let period = config.optional_count(&keys)?.unwrap_or(6);
        Ok((0..self.layers).map(|layer| (layer + 1) % period != 0).collect())
    }

    /// Adds base and scaling of the rotary angles.
    fn rotary(&mut self, config: &Config<'_>, head_width: u32) -> Result<(), GgufError> {
        let rotary = config.value("rope_parameters").or_else(|| config.value("rope_scaling"));
        let of = |kind: &str| rotary.and_then(|all| all.get(kind));
        let local = of("sliding_attention").and_then(|it| it.get("rope_theta")).and_then(Value::as_f64);
        let whole = of("full_attention").or(rotary).and_then(Value::as_object);
        let empty = Map::new();
        let whole = Config { map: whole.unwrap_or(&empty) };
        let base = whole.number("rope_theta").or_else(|| config.number("rope_theta"));
        let default = if self.architecture == Architecture::Gemma3 { 1e6 } else { 1e4 };
        let base = base.unwrap_or(default);
        self.put_f32("rope.freq_base", base);
        if let Some(local) = local.or_else(|| config.number("rope_local_base_freq")) {
            self.put_f32("rope.freq_base_swa", local);
        }
        match whole.text("rope_type").or_else(|| whole.text("type")).unwrap_or("default") {
            "default" => {}
            "linear" => {
                let factor = whole.number("factor").unwrap_or(1.0);
                self.put("rope.scaling.type", MetadataValue::Text("linear".into()));
                self.put_f32("rope.scaling.factor", factor);
            }
            "llama3" if self.architecture == Architecture::Llama => {
                let trained = whole.number("original_max_position_embeddings");
                let trained = trained.or_else(|| config.number("original_max_position_embeddings"));
                self.rotary_divisors =
                    Some(llama3_divisors(&whole, base, trained.unwrap_or(8192.0), head_width));
            }
            other => {
                return Err(GgufError::Unsupported(format!(
                    "rotary positions are scaled by `rope_type` = {other}; default, linear, and llama3 in Llama \
                     are written as GGUF"
                )));
            }
        }
        Ok(())
    }
}

/// Returns what Llama 3 divides each rotary frequency by: slow ones by the whole factor, fast ones by one.
fn llama3_divisors(rotary: &Config<'_>, base: f64, trained: f64, head_width: u32) -> Vec<f32> {
    let number = |key: &str, default: f64| rotary.number(key).unwrap_or(default);
    let factor = number("factor", 8.0);
    let [low, high] = [number("low_freq_factor", 1.0), number("high_freq_factor", 4.0)];
    let divisor = |pair: u32| {
        let frequency = base.powf(-2.0 * f64::from(pair) / f64::from(head_width));
        let turns = trained * frequency / std::f64::consts::TAU;
        let smooth = (turns - low) / (high - low);
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    #[expect(clippy::cast_possible_truncation, reason = "the file has it as f32")]
    (0..head_width / 2).map(|pair| divisor(pair) as f32).collect()
}

/// The values of a `config.json`, or of an object in it; null counts as absent.
struct Config<'a> {
    map: &'a Map<String, Value>,
}

impl Config<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn text(&self, key: &str) -> Option<&str> {
        self.value(key).and_then(Value::as_str)
    }

    fn number(&self, key: &str) -> Option<f64> {
        self.value(key).and_then(Value::as_f64)
    }

    fn flag(&self, key: &str, default: bool) -> bool {
        self.value(key).and_then(Value::as_bool).unwrap_or(default)
    }

    /// Returns the count of at least one that is called by one of `keys`.
    fn count(&self, keys: &[&str]) -> Result<u32, GgufError> {
        let missing = || GgufError::Config(format!("`{}` is missing", keys[0]));
        self.optional_count(keys)?.ok_or_else(missing)
    }

    fn optional_count(&self, keys: &[&str]) -> Result<Option<u32>, GgufError> {
        let found = keys.iter().find_map(|key| self.value(key).map(|value| (key, value)));
        let Some((key, value)) = found else { return Ok(None) };
        let count = value.as_u64().and_then(|count| u32::try_from(count).ok()).filter(|count| *count > 0);
        let wrong = || GgufError::Config(format!("`{key}` is {value}, expected a count of at least one"));
        count.map(Some).ok_or_else(wrong)
    }

    fn refuse_unless(&self, key: &str, wanted: bool) -> Result<(), GgufError> {
        if self.flag(key, wanted) == wanted {
            return Ok(());
        }
        Err(GgufError::Unsupported(format!("llama.cpp has only `{key}` = {wanted}")))
    }
}

//! Reads a `config.json`: those of the Hub, and those that newer versions of transformers write.

use super::reader::ConfigReader;
use super::{Biases, ExpertParts, FAMILIES, Family, ModelFamily, Windows};
use dtrain_recipes::{
    Activation, Decoder, Experts, NORM_EPSILON, Norm, Positions, ROTARY_BASE, RotaryScaling, SlidingWindow,
};
use serde_json::{Map, Value};

/// A model, as read from a `config.json`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pretrained {
    /// Family of the model.
    pub family: ModelFamily,
    /// Sizes of the model, with the longest context that it supports.
    pub model: Decoder,
    /// Notes for the user: differences from the original training that do not change the computation of
    /// the weights.
    pub notes: Vec<String>,
}

impl Pretrained {
    /// Returns the model with the context `context`, if its positions allow that, and otherwise with its
    /// own.
    pub fn with_context(&self, context: u32) -> Decoder {
        if self.family.has_free_context() {
            Decoder { context, ..self.model.clone() }
        } else {
            self.model.clone()
        }
    }
}

/// The reason why a `config.json` cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// The text is not a configuration of a known family.
    #[error("{0}")]
    Content(String),
    /// The model has features that dtrain does not support, listed here.
    #[error("dtrain does not train this model: {}", .0.join("; "))]
    Unsupported(Vec<String>),
}

/// Parses the text of a `config.json`.
pub fn parse(text: &[u8]) -> Result<Pretrained, ConfigError> {
    let map: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|error| ConfigError::Content(format!("expected a JSON object: {error}")))?;
    let named = map.get("model_type").and_then(Value::as_str).unwrap_or("none");
    let Some(parts) = FAMILIES.iter().find(|family| family.model_type == named) else {
        let known = FAMILIES.each_ref().map(|family| family.model_type).join(", ");
        return Err(ConfigError::Content(format!("`model_type` is {named}; dtrain reads {known}")));
    };
    let mut config = ConfigReader { map, reasons: Vec::new(), notes: Vec::new() };
    let model = if parts.family == ModelFamily::Gpt2 { config.gpt2() } else { config.llama(parts) };
    let ConfigReader { reasons, notes, .. } = config;
    match model {
        Some(model) if reasons.is_empty() => Ok(Pretrained { family: parts.family, model, notes }),
        _ => Err(ConfigError::Unsupported(reasons)),
    }
}

impl ConfigReader {
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
            activation: activation?,
            tied: self.flag("tie_word_embeddings", true),
            norm_epsilon: Some(epsilon).filter(|epsilon| *epsilon != NORM_EPSILON),
            ..Decoder::small_gpt2()
        })
    }

    fn llama(&mut self, parts: &Family) -> Option<Decoder> {
        let is_gemma = parts.family == ModelFamily::Gemma3;
        self.quantization();
        self.dropout(&[("attention_dropout", 0.0)]);
        let (bias, qkv_bias) = self.biases(parts);
        let activation = if is_gemma {
            self.refuse_value("final_logit_softcapping", "cap of logits");
            self.refuse_unless("use_bidirectional_attention", false);
            self.activation(
                "hidden_activation",
                "gelu_pytorch_tanh",
                &[("gelu_pytorch_tanh", Activation::Geglu)],
            )
        } else {
            let known = [("silu", Activation::Swiglu), ("swish", Activation::Swiglu)];
            self.activation("hidden_act", "silu", &known)
        };
        let epsilon =
            self.number("rms_norm_eps", if parts.family == ModelFamily::Mixtral { 1e-5 } else { 1e-6 });
        let (hidden, heads) = (self.count("hidden_size", None), self.count("num_attention_heads", None));
        let kv_heads = match parts.family {
            ModelFamily::Llama => self.count("num_key_value_heads", heads),
            ModelFamily::Mistral | ModelFamily::Mixtral => self.count("num_key_value_heads", Some(8)),
            _ => self.count("num_key_value_heads", None),
        };
        let layers = self.count("num_hidden_layers", None);
        let experts = self.experts(parts);
        let width_key = match parts.experts {
            ExpertParts::Shared | ExpertParts::Plain => "moe_intermediate_size",
            ExpertParts::None | ExpertParts::Normalized => "intermediate_size",
        };
        let (ffn, vocab) = (self.count(width_key, None), self.count("vocab_size", None));
        let context = self.count("max_position_embeddings", None);
        let (hidden, heads, layers) = (hidden?, heads?, layers?);
        let width = match (parts.family, self.value("head_dim").is_some()) {
            (ModelFamily::Qwen3, _) => Some(self.count("head_dim", Some(128))?),
            (ModelFamily::Gemma3, _) => Some(self.count("head_dim", Some(256))?),
            (_, true) => Some(self.count("head_dim", None)?),
            (_, false) => None,
        };
        if width.is_none() && !hidden.is_multiple_of(heads) {
            self.reasons
                .push(format!("`num_attention_heads` = {heads} does not divide `hidden_size` = {hidden}"));
        }
        let window = self.window(parts, layers);
        let (base, scaling, local) = self.rotary(parts)?;
        let has_same_angles = local == base && scaling.is_none();
        let window = window.map(|window| SlidingWindow {
            rotary_base: Some(local).filter(|_| is_gemma && !has_same_angles),
            ..window
        });
        let head = f64::from(width.unwrap_or(hidden / heads));
        let scalar = if is_gemma { self.number("query_pre_attn_scalar", 256.0) } else { head };
        Some(Decoder {
            layers,
            hidden,
            heads,
            kv_heads: kv_heads?,
            ffn: ffn?,
            vocab: vocab?,
            context: context?,
            positions: Positions::Rotary,
            norm: Norm::Rms,
            activation: activation?,
            tied: self.flag("tie_word_embeddings", is_gemma),
            bias,
            experts: experts?,
            head_width: width.filter(|width| width.checked_mul(heads) != Some(hidden)),
            rotary_base: Some(base).filter(|base| *base != ROTARY_BASE),
            rotary_scaling: scaling,
            norm_epsilon: Some(epsilon).filter(|epsilon| *epsilon != NORM_EPSILON),
            qkv_bias: Some(qkv_bias).filter(|qkv| *qkv != bias),
            qk_norm: parts.has_qk_norm,
            attention_scale: Some(scalar.powf(-0.5)).filter(|_| scalar != head),
            post_norm: is_gemma,
            scaled_embedding: is_gemma,
            latent: None,
            window,
            mtp_layers: 0,
            lora: None,
        })
    }

    /// Returns two flags: all linear layers have biases; queries, keys and values have biases.
    fn biases(&mut self, parts: &Family) -> (bool, bool) {
        match parts.biases {
            Biases::Said => {
                let (attention, mlp) = (self.flag("attention_bias", false), self.flag("mlp_bias", false));
                if attention != mlp {
                    self.reasons.push(format!(
                        "`attention_bias` is {attention} and `mlp_bias` is {mlp}, and dtrain has both or none"
                    ));
                }
                (mlp, attention)
            }
            Biases::Qkv => {
                self.refuse_unless("qkv_bias", true);
                (false, true)
            }
            Biases::None | Biases::All => {
                self.refuse_unless("attention_bias", false);
                (false, false)
            }
        }
    }

    /// Returns the mixture of experts, `Some(None)` in a family without one.
    #[expect(clippy::option_option, reason = "the outer is a mistake, as everywhere here")]
    fn experts(&mut self, parts: &Family) -> Option<Option<Experts>> {
        let (count, per_token, is_normalized) = match parts.experts {
            ExpertParts::None => return Some(None),
            ExpertParts::Normalized => {
                (self.count("num_local_experts", Some(8)), self.count("num_experts_per_tok", Some(2)), true)
            }
            ExpertParts::Shared | ExpertParts::Plain => {
                let is_normalized = self.flag("norm_topk_prob", false);
                // Transformers 5 writes Mixtral's name for Qwen3-MoE too.
                let is_renamed = self.value("num_local_experts").is_some();
                let key = if is_renamed { "num_local_experts" } else { "num_experts" };
                (self.count(key, None), self.count("num_experts_per_tok", None), is_normalized)
            }
        };
        if self.value("decoder_sparse_step").is_some_and(|step| step.as_u64() != Some(1)) {
            self.reasons.push("`decoder_sparse_step` is not 1, and dtrain has experts in every layer".into());
        }
        if self.value("mlp_only_layers").and_then(Value::as_array).is_some_and(|layers| !layers.is_empty()) {
            self.reasons.push("`mlp_only_layers` has layers, and dtrain has experts in every layer".into());
        }
        let shared_ffn = match parts.experts {
            ExpertParts::Shared => Some(self.count("shared_expert_intermediate_size", None)?),
            _ => None,
        };
        let (count, per_token) = (count?, per_token?);
        if per_token == 1 && is_normalized {
            self.reasons.push(
                "each token has one expert whose weight is scaled to 1, from which no router learns; dtrain \
                 scales the weights of several experts only"
                    .into(),
            );
        }
        // As in transformers, the load-balancing loss counts only if the configuration asks for it.
        let balance = self.number("router_aux_loss_coef", 0.001);
        let balance = if self.flag("output_router_logits", false) { balance } else { 0.0 };
        Some(Some(Experts {
            balance,
            shared_ffn,
            shared_gate: shared_ffn.is_some(),
            raw_gates: !is_normalized && per_token > 1,
            ..Experts::new(count, per_token)
        }))
    }

    /// Returns the base and the scaling of the rotary angles, and the base in layers with a window. Newer
    /// versions store them in `rope_parameters`, for each kind of layer if these differ.
    fn rotary(&mut self, parts: &Family) -> Option<(u64, Option<RotaryScaling>, u64)> {
        let theta = match parts.family {
            ModelFamily::Gemma3 | ModelFamily::Mixtral => 1e6,
            _ => 10_000.0,
        };
        let all = self.value("rope_scaling").or_else(|| self.value("rope_parameters")).cloned();
        let of_kind = |kind: &str| all.as_ref().and_then(|rope| rope.get(kind)).cloned();
        let rope = of_kind("full_attention").or_else(|| all.clone());
        let local = of_kind("sliding_attention");
        if self.number("partial_rotary_factor", 1.0) != 1.0 {
            self.reasons.push("`partial_rotary_factor` is not 1, and dtrain turns whole heads".into());
        }
        let theta_in =
            |rope: Option<&Value>| rope.and_then(|rope| rope.get("rope_theta")).and_then(Value::as_f64);
        let base = theta_in(rope.as_ref()).unwrap_or_else(|| self.number("rope_theta", theta));
        let scaling = match rope {
            Some(rope) => self.scaling(&rope),
            None => None,
        };
        let local = match parts.windows {
            Windows::Local => {
                theta_in(local.as_ref()).unwrap_or_else(|| self.number("rope_local_base_freq", 10_000.0))
            }
            _ => base,
        };
        Some((self.base("rope_theta", base)?, scaling, self.base("rope_local_base_freq", local)?))
    }

    /// Returns a base of rotary angles as a whole number.
    fn base(&mut self, key: &str, base: f64) -> Option<u64> {
        if base.fract() != 0.0 || !(2.0..=1e12).contains(&base) {
            self.reasons.push(format!("`{key}` is {base}, expected a whole number from 2 to 10^12"));
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
        Some(base as u64)
    }

    fn scaling(&mut self, rope: &Value) -> Option<RotaryScaling> {
        let kind =
            rope.get("rope_type").or_else(|| rope.get("type")).and_then(Value::as_str).unwrap_or("default");
        let mut number = |key: &str| {
            let found = rope.get(key).and_then(Value::as_f64).filter(|number| *number > 0.0);
            if found.is_none() {
                self.reasons.push(format!("`rope_scaling` of type {kind} has no number above 0 at `{key}`"));
            }
            found
        };
        match kind {
            "default" => None,
            "linear" => Some(RotaryScaling::Linear { factor: number("factor")? }),
            "llama3" => {
                let (factor, low) = (number("factor"), number("low_freq_factor"));
                let (high, original) =
                    (number("high_freq_factor"), number("original_max_position_embeddings"));
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a context in tokens"
                )]
                let original_context = original? as u32;
                Some(RotaryScaling::Llama3 { factor: factor?, low: low?, high: high?, original_context })
            }
            // Other types are named as they are.
            other => {
                self.reasons.push(format!(
                    "rotary positions are scaled by `rope_type` = {other}, and dtrain has linear and llama3"
                ));
                None
            }
        }
    }
}

//! Writes the `config.json` of a model.

use super::{Biases, ExpertParts, ModelFamily, Windows};
use dtrain_recipes::{Activation, Decoder, Experts, ROTARY_BASE, RotaryScaling, SlidingWindow};
use serde_json::{Map, Value, json};

impl ModelFamily {
    /// Returns the `config.json` of `model`, a model of this family with weights in the precision `dtype`, such as
    /// `float32`.
    pub fn config(self, model: &Decoder, dtype: &str) -> Map<String, Value> {
        let parts = self.parts();
        let mut config = object(json!({
            "architectures": [parts.architecture],
            "model_type": parts.model_type,
            "torch_dtype": dtype,
            "tie_word_embeddings": model.tied,
            "vocab_size": model.vocab,
            "bos_token_id": null,
            "eos_token_id": null,
        }));
        if self == Self::Gpt2 {
            config.extend(gpt2(model));
            return config;
        }
        config.extend(llama(model));
        if parts.biases == Biases::Said {
            config.extend(object(json!({ "attention_bias": model.bias, "mlp_bias": model.bias })));
        }
        if self == Self::Gemma3 {
            config.extend(gemma3(model));
        }
        if let Some(window) = &model.window {
            config.extend(window_keys(parts.windows, window, model.layers));
        } else if parts.windows != Windows::None && self != Self::Gemma3 {
            config.insert("sliding_window".into(), Value::Null);
        }
        if let Some(experts) = &model.experts {
            config.extend(mixture(parts.experts, model, experts));
        }
        config
    }
}

/// Returns the entries of an object that was written as JSON.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => unreachable!("it is written as an object"),
    }
}

fn gpt2(model: &Decoder) -> Map<String, Value> {
    object(json!({
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
    }))
}

#[expect(clippy::cast_precision_loss, reason = "a base has few digits")]
fn llama(model: &Decoder) -> Map<String, Value> {
    let mut config = object(json!({
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
    }));
    if let Some(scaling) = model.rotary_scaling {
        let scaling = match scaling {
            RotaryScaling::Linear { factor } => json!({ "rope_type": "linear", "factor": factor }),
            RotaryScaling::Llama3 { factor, low, high, original_context } => json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original_context,
            }),
        };
        config.insert("rope_scaling".into(), scaling);
    }
    config
}

#[expect(clippy::cast_precision_loss, reason = "a base has few digits")]
fn gemma3(model: &Decoder) -> Map<String, Value> {
    let width = f64::from(model.head_width());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a width, near that of a head"
    )]
    let scalar = model.attention_scale.map_or(width, |scale| (1.0 / (scale * scale)).round()) as u32;
    let local = model.window.and_then(|window| window.rotary_base);
    // Without a base of its own, a window has the positions of all layers.
    let local = local.unwrap_or_else(|| model.window.map_or(ROTARY_BASE, |_| model.rotary_base()));
    object(json!({
        "hidden_act": null,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": false,
        "query_pre_attn_scalar": scalar,
        "rope_local_base_freq": local as f64,
        "layer_types": layer_types(model.window.as_ref(), model.layers),
        "attn_logit_softcapping": null,
        "final_logit_softcapping": null,
    }))
}

fn window_keys(windows: Windows, window: &SlidingWindow, layers: u32) -> Map<String, Value> {
    let tokens = window.tokens;
    match windows {
        Windows::None => Map::new(),
        Windows::All => object(json!({ "sliding_window": tokens })),
        Windows::Switch => object(json!({ "sliding_window": tokens, "use_sliding_window": true })),
        Windows::Local => {
            object(json!({ "sliding_window": tokens, "layer_types": layer_types(Some(window), layers) }))
        }
        Windows::Upper => object(json!({
            "sliding_window": tokens,
            "use_sliding_window": true,
            "max_window_layers": 0,
            "layer_types": layer_types(Some(window), layers),
        })),
    }
}

/// Returns the kind of attention of each layer.
fn layer_types(window: Option<&SlidingWindow>, layers: u32) -> Vec<&'static str> {
    let is_local = |layer| window.is_some_and(|window| window.is_in(layer));
    (0..layers).map(|layer| if is_local(layer) { "sliding_attention" } else { "full_attention" }).collect()
}

fn mixture(parts: ExpertParts, model: &Decoder, experts: &Experts) -> Map<String, Value> {
    let mut config = object(json!({
        "num_experts_per_tok": experts.per_token,
        "output_router_logits": experts.balance > 0.0,
        "router_aux_loss_coef": experts.balance,
    }));
    let is_normalized = !experts.raw_gates && experts.per_token > 1;
    config.extend(match parts {
        ExpertParts::None => Map::new(),
        ExpertParts::Normalized => object(json!({ "num_local_experts": experts.count })),
        ExpertParts::Shared | ExpertParts::Plain => object(json!({
            "num_experts": experts.count,
            "moe_intermediate_size": model.ffn,
            "norm_topk_prob": is_normalized,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        })),
    });
    if let Some(width) = experts.shared_ffn {
        config.insert("shared_expert_intermediate_size".into(), width.into());
    }
    config
}

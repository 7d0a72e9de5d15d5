use super::*;
use dtrain_recipes::{Experts, RotaryScaling, SlidingWindow};
use serde_json::{Value, json};

fn gpt2() -> Decoder {
    Decoder {
        layers: 2,
        hidden: 8,
        heads: 2,
        kv_heads: 2,
        ffn: 12,
        vocab: 11,
        context: 5,
        activation: Activation::GeluTanh,
        ..Decoder::small_gpt2()
    }
}

fn llama() -> Decoder {
    Decoder {
        kv_heads: 1,
        positions: Positions::Rotary,
        norm: Norm::Rms,
        activation: Activation::Swiglu,
        tied: false,
        bias: false,
        rotary_base: Some(500_000),
        ..gpt2()
    }
}

fn qwen2() -> Decoder {
    Decoder { qkv_bias: Some(true), norm_epsilon: Some(1e-6), tied: true, ..llama() }
}

fn refused(family: ModelFamily, model: &Decoder, change: &[(&str, Value)]) -> Vec<String> {
    let mut config = Value::Object(family.config(model, "float32"));
    for (key, value) in change {
        config[*key] = value.clone();
    }
    match parse(config.to_string().as_bytes()) {
        Ok(found) => panic!("{found:?} was taken"),
        Err(ConfigError::Content(said)) => vec![said],
        Err(ConfigError::Unsupported(reasons)) => reasons,
    }
}

#[test]
fn what_dtrain_does_not_train_is_listed() {
    let scaled = json!({ "rope_type": "yarn", "factor": 8.0 });
    let all = refused(
        ModelFamily::Llama,
        &llama(),
        &[
            ("rope_scaling", scaled),
            ("sliding_window", json!(4096)),
            ("hidden_act", json!("gelu")),
            ("attention_bias", json!(true)),
            ("quantization_config", json!({})),
        ],
    );
    assert_eq!(all.len(), 5, "{all:?}");
    let all = refused(
        ModelFamily::Gpt2,
        &gpt2(),
        &[("activation_function", json!("relu")), ("scale_attn_by_inverse_layer_idx", json!(true))],
    );
    assert_eq!(all.len(), 2, "{all:?}");
}

#[test]
fn configurations_of_published_models_are_read() {
    let text = json!({
        "model_type": "qwen2", "hidden_act": "silu", "hidden_size": 896, "intermediate_size": 4864,
        "max_position_embeddings": 32768, "max_window_layers": 21, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": 32768, "use_sliding_window": false, "tie_word_embeddings": true,
        "torch_dtype": "bfloat16", "vocab_size": 151_936, "attention_dropout": 0.0,
    });
    let found = parse(text.to_string().as_bytes()).expect("Qwen2.5-0.5B");
    assert_eq!((found.family, found.model.parameters()), (ModelFamily::Qwen2, 494_032_768));
    let text = json!({ "model_type": "gpt2", "attn_pdrop": 0.1, "n_ctx": 1024, "vocab_size": 50_257 });
    let found = parse(text.to_string().as_bytes()).expect("GPT-2");
    assert_eq!((found.family, found.model.parameters()), (ModelFamily::Gpt2, 124_439_808));
    assert_eq!(found.notes.len(), 3, "{:?}", found.notes);
}

/// A model of each family, with every part that the family may have.
fn of_every_family() -> Vec<(ModelFamily, Decoder)> {
    let plain = Decoder { qkv_bias: None, norm_epsilon: None, ..llama() };
    let window = |every, rotary_base| Some(SlidingWindow { tokens: 3, every, rotary_base });
    let scaling = RotaryScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192 };
    let experts = Experts { balance: 0.0, ..Experts::new(4, 2) };
    let gemma = Decoder {
        activation: Activation::Geglu,
        qk_norm: true,
        post_norm: true,
        scaled_embedding: true,
        ..plain.clone()
    };
    let qwen3 = Decoder { qk_norm: true, head_width: Some(6), ..plain.clone() };
    let shared = Experts { shared_ffn: Some(20), shared_gate: true, raw_gates: true, ..experts };
    vec![
        (ModelFamily::Gpt2, gpt2()),
        (ModelFamily::Llama, Decoder { rotary_scaling: Some(scaling), ..plain.clone() }),
        (ModelFamily::Llama, Decoder { bias: true, ..plain.clone() }),
        (ModelFamily::Qwen2, qwen2()),
        (ModelFamily::Qwen2, Decoder { window: window(Some(2), None), ..qwen2() }),
        (ModelFamily::Mistral, Decoder { window: window(None, None), ..plain.clone() }),
        (ModelFamily::Qwen3, qwen3.clone()),
        (ModelFamily::Qwen3, Decoder { window: window(None, None), ..qwen3.clone() }),
        (ModelFamily::Gemma3, gemma.clone()),
        (
            ModelFamily::Gemma3,
            Decoder {
                layers: 7,
                attention_scale: Some(0.25),
                window: window(Some(6), Some(10_000)),
                rotary_scaling: Some(RotaryScaling::Linear { factor: 8.0 }),
                ..gemma.clone()
            },
        ),
        (ModelFamily::Gemma3, Decoder { window: window(Some(2), None), ..gemma }),
        (ModelFamily::Mixtral, Decoder { experts: Some(experts), ..plain.clone() }),
        (ModelFamily::Mixtral, Decoder { experts: Some(experts), window: window(None, None), ..plain }),
        (ModelFamily::Qwen2Moe, Decoder { experts: Some(shared), ..qwen2() }),
        (ModelFamily::Qwen3Moe, Decoder { experts: Some(experts), ..qwen3.clone() }),
        (ModelFamily::Qwen3Moe, Decoder { experts: Some(Experts::new(4, 1)), ..qwen3 }),
    ]
}

#[test]
fn a_configuration_that_is_written_is_read_as_the_same_model() {
    for (family, model) in of_every_family() {
        assert_eq!(ModelFamily::of(&model), Ok(family), "{model:?}");
        let text = Value::Object(family.config(&model, "float32")).to_string();
        let found = parse(text.as_bytes()).unwrap_or_else(|error| panic!("{family:?}: {error}"));
        assert_eq!((found.family, found.model), (family, model), "{text}");
    }
}

#[test]
fn a_model_of_no_family_names_the_part() {
    let with = |change: &dyn Fn(&mut Decoder)| {
        let mut model = llama();
        change(&mut model);
        ModelFamily::of(&model).expect_err("it is of no family")
    };
    let capacity = Experts { capacity: Some(1.25), ..Experts::new(4, 2) };
    assert!(with(&|model| model.experts = Some(capacity)).contains("capacity"));
    assert!(with(&|model| model.mtp_layers = 1).contains("multi-token"));
    assert!(with(&|model| model.post_norm = true).contains("docs/new-family.md"));
    assert!(with(&|model| (model.bias, model.qkv_bias) = (true, Some(false))).contains("biases"));
}

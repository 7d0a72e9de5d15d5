//! Emits the model as `config.json` of Hugging Face transformers, for DeepSpeed and accelerate.

use super::ConfigFile;
use super::adapters;
use super::json::OrderedObject;
use super::source::DecoderPlan;
use crate::engine::rules;
use dtrain_recipes::{
    Activation, AttentionImplementation, Decoder, Experts, FrozenPrecision, Positions, Precision,
    StatePrecision,
};

/// Version of transformers against which the names were checked.
pub(super) const VERSION: &str = "5.23.0";

/// Architectures in transformers that a recipe's decoder can have.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum DecoderArchitecture {
    /// GPT-2: learned positions, layer norms, GELU, biases, as many key heads as query heads.
    Gpt2,
    /// Llama: rotary positions, RMS norms, SwiGLU.
    Llama,
    /// Llama with biases of queries, keys and values.
    Qwen2,
    /// Llama with a mixture of experts.
    Mixtral,
}

impl DecoderArchitecture {
    /// Returns the architecture of the decoder `model`.
    pub(super) fn of(model: &Decoder) -> Self {
        match (&model.experts, model.positions) {
            (Some(_), _) => Self::Mixtral,
            (None, Positions::Rotary) if rules::has_qkv_biases_alone(model) => Self::Qwen2,
            (None, Positions::Rotary) => Self::Llama,
            (None, Positions::Learned) => Self::Gpt2,
        }
    }

    /// Returns the class name of a block in transformers.
    pub(super) fn block(self) -> &'static str {
        match self {
            Self::Gpt2 => "GPT2Block",
            Self::Llama => "LlamaDecoderLayer",
            Self::Qwen2 => "Qwen2DecoderLayer",
            Self::Mixtral => "MixtralDecoderLayer",
        }
    }
}

/// Emits the file `config.json`.
pub(super) fn config(source: &DecoderPlan, family: DecoderArchitecture) -> ConfigFile {
    let model = source.model;
    let object = match family {
        DecoderArchitecture::Gpt2 => gpt2(model),
        DecoderArchitecture::Llama => llama(named("LlamaForCausalLM", "llama"), model)
            .with("attention_bias", model.bias)
            .with("mlp_bias", model.bias),
        DecoderArchitecture::Qwen2 => llama(named("Qwen2ForCausalLM", "qwen2"), model),
        DecoderArchitecture::Mixtral => {
            let experts = model.experts.as_ref().expect("a mixture has experts");
            let object = mixture(llama(named("MixtralForCausalLM", "mixtral"), model), experts);
            match model.window {
                Some(window) => object.with("sliding_window", window.tokens),
                None => object,
            }
        }
    };
    let object = object.with("tie_word_embeddings", model.tied).with("dtype", dtype(source));
    let object = match source.train().state.attention {
        Some(attention) => object.with("attn_implementation", attention_word(attention)),
        None => object,
    };
    ConfigFile { name: "config.json".into(), text: object.text() }
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

fn named(class: &'static str, kind: &'static str) -> OrderedObject {
    OrderedObject::default().with("architectures", vec![class]).with("model_type", kind)
}

fn gpt2(model: &Decoder) -> OrderedObject {
    named("GPT2LMHeadModel", "gpt2")
        .with("n_layer", model.layers)
        .with("n_embd", model.hidden)
        .with("n_head", model.heads)
        .with("n_inner", model.ffn)
        .with("n_positions", model.context)
        .with("vocab_size", model.vocab)
        .with(
            "activation_function",
            if model.activation == Activation::GeluTanh { "gelu_new" } else { "gelu" },
        )
        .with("layer_norm_epsilon", model.norm_epsilon())
        .with("resid_pdrop", 0.0)
        .with("embd_pdrop", 0.0)
        .with("attn_pdrop", 0.0)
}

fn llama(named: OrderedObject, model: &Decoder) -> OrderedObject {
    let base = model.rotary_base();
    #[expect(clippy::cast_precision_loss, reason = "a base has few digits")]
    let rope = OrderedObject::default().with("rope_type", "default").with("rope_theta", base as f64);
    let named = match model.head_width {
        Some(width) => named.with("head_dim", width),
        None => named,
    };
    named
        .with("num_hidden_layers", model.layers)
        .with("hidden_size", model.hidden)
        .with("num_attention_heads", model.heads)
        .with("num_key_value_heads", model.kv_heads)
        .with("intermediate_size", model.ffn)
        .with("max_position_embeddings", model.context)
        .with("vocab_size", model.vocab)
        .with("hidden_act", "silu")
        .with("rms_norm_eps", model.norm_epsilon())
        .object("rope_parameters", rope)
}

fn mixture(object: OrderedObject, experts: &Experts) -> OrderedObject {
    object
        .with("num_local_experts", experts.count)
        .with("num_experts_per_tok", experts.per_token)
        .with("output_router_logits", experts.balance > 0.0)
        .with("router_aux_loss_coef", experts.balance)
}

//! Emits low-rank adapters for peft, and the quantization of the weights below them for transformers.

use super::ConfigFile;
use super::hugging_face;
use super::json::OrderedObject;
use super::source::DecoderPlan;
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_recipes::{FrozenPrecision, Lora, StatePrecision};

/// Version of peft against which the names were checked.
pub(super) const VERSION: &str = "0.21.2";

/// Name of the file with the adapters, which peft looks for.
const ADAPTERS: &str = "adapter_config.json";

/// Name of the file with the quantization. `config.json` may not have it: transformers take its weights for
/// quantized ones then.
const QUANTIZATION: &str = "quantization_config.json";

/// Emits `adapter_config.json` if the model has adapters, and `quantization_config.json` if the weights below
/// them are quantized. `is_sharded`: frozen weights are sharded, in tensors of the precision of products.
pub(super) fn files(
    source: &DecoderPlan,
    family: ModelFamily,
    is_sharded: bool,
) -> impl Iterator<Item = ConfigFile> {
    let lora = source.model.lora;
    let quantized = lora.and_then(|lora| quantization(source, lora, is_sharded));
    let file = |name: &str, object: OrderedObject| ConfigFile { name: name.into(), text: object.text() };
    let adapters = lora.map(|lora| file(ADAPTERS, adapter(lora, family)));
    adapters.into_iter().chain(quantized.map(|object| file(QUANTIZATION, object)))
}

fn adapter(lora: Lora, family: ModelFamily) -> OrderedObject {
    let (attention, ffn): (&[&str], &[&str]) = match family {
        // Other modules of GPT-2 are `c_proj` too.
        ModelFamily::Gpt2 => (&["attn.c_attn", "attn.c_proj"], &["mlp.c_fc", "mlp.c_proj"]),
        ModelFamily::Llama
        | ModelFamily::Qwen2
        | ModelFamily::Mistral
        | ModelFamily::Qwen3
        | ModelFamily::Gemma3
        | ModelFamily::Mixtral
        | ModelFamily::Qwen2Moe
        | ModelFamily::Qwen3Moe => {
            (&["q_proj", "k_proj", "v_proj", "o_proj"], &["gate_proj", "up_proj", "down_proj"])
        }
    };
    let mut layers: Vec<&str> = Vec::new();
    if lora.adapts_attention() {
        layers.extend(attention);
    }
    if lora.adapts_ffn() {
        layers.extend(ffn);
    }
    OrderedObject::default()
        .with("peft_type", "LORA")
        .with("task_type", "CAUSAL_LM")
        .with("r", lora.rank)
        .with("lora_alpha", lora.alpha)
        .with("lora_dropout", 0.0)
        .with("target_modules", layers)
        // The weights of GPT-2 are `[in, out]`.
        .with("fan_in_fan_out", family == ModelFamily::Gpt2)
        .with("bias", "none")
}

/// Returns the settings of `BitsAndBytesConfig`; `None` if the weights are not quantized.
fn quantization(source: &DecoderPlan, lora: Lora, is_sharded: bool) -> Option<OrderedObject> {
    let object = OrderedObject::default().with("quant_method", "bitsandbytes");
    match lora.base? {
        FrozenPrecision::F32 | FrozenPrecision::Bf16 => None,
        FrozenPrecision::Int8 => Some(object.with("load_in_8bit", true)),
        FrozenPrecision::Nf4 => {
            let products = hugging_face::product_dtype(source);
            let object = object
                .with("load_in_4bit", true)
                .with("bnb_4bit_quant_type", "nf4")
                .with("bnb_4bit_use_double_quant", true)
                .with("bnb_4bit_compute_dtype", products);
            Some(if is_sharded { object.with("bnb_4bit_quant_storage", products) } else { object })
        }
    }
}

/// Returns notes that tell a program how to train the adapters.
pub(super) fn notes(source: &DecoderPlan) -> Vec<String> {
    let Some(lora) = source.model.lora else { return Vec::new() };
    let (dtype, is_quantized) = (
        hugging_face::dtype(source),
        matches!(lora.base, Some(FrozenPrecision::Int8 | FrozenPrecision::Nf4)),
    );
    let attention = source.train().state.attention.map_or(String::new(), |attention| {
        format!(", attn_implementation=\"{}\"", hugging_face::attention_word(attention))
    });
    let quantized = if is_quantized { ", quantization_config=quantization" } else { "" };
    let mut notes = Vec::new();
    if is_quantized {
        notes.push(format!(
            "quantized weights: quantization = BitsAndBytesConfig.from_dict(json.load(open(\"{QUANTIZATION}\"))), with bitsandbytes installed"
        ));
    }
    notes.push(format!(
        "frozen weights: model = AutoModelForCausalLM.from_pretrained(YOUR_MODEL, dtype=\"{dtype}\"{attention}{quantized})"
    ));
    let cast = match source.arrangement.state.weights {
        StatePrecision::F32 => "",
        StatePrecision::Bf16 => ", autocast_adapter_dtype=False",
    };
    notes.push(format!(
        "adapters: model = get_peft_model(model, LoraConfig.from_pretrained(\".\"){cast}), with peft {VERSION}"
    ));
    if hugging_face::family(source.model) == ModelFamily::Gpt2 && lora.adapts_attention() {
        notes.push("queries, keys and values of GPT-2 are one layer here, and share one adapter".into());
    }
    notes
}

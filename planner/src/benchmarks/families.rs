//! Properties of a model that follow from its name: vocabulary, gated feed-forward, unusual attention.

use super::table::has_any;
use crate::hardware::normalized_gpu_name;

/// Unusual properties of a family of models; `None` and 0 stand for the usual.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FamilyTraits {
    /// Number of channels of a query or key head; `None` if it is the hidden size over the number of heads.
    pub head: Option<f64>,
    /// Number of channels of a value head; `None` if it is that of a key head.
    pub head_value: Option<f64>,
    /// Query rank, key-value rank and rotary channels of multi-head latent attention.
    pub latent: Option<(f64, f64, f64)>,
    /// Attention window of every second layer, in tokens.
    pub window: Option<f64>,
    /// Number of dense layers before the first layer with experts.
    pub dense_layers: f64,
    /// Number of hidden channels of the shared experts together.
    pub shared: f64,
}

const PLAIN: FamilyTraits =
    FamilyTraits { head: None, head_value: None, latent: None, window: None, dense_layers: 0.0, shared: 0.0 };

/// Latent attention of DeepSeek-V2 and V3.
const LATENT: FamilyTraits =
    FamilyTraits { head: Some(192.0), head_value: Some(128.0), latent: Some((1536.0, 512.0, 64.0)), ..PLAIN };

/// Families of models by a part of the model's name; the first match wins. From the published model
/// configurations.
const FAMILIES: &[(&[&str], FamilyTraits)] = &[
    (&["qwen3"], FamilyTraits { head: Some(128.0), ..PLAIN }),
    (&["gptoss"], FamilyTraits { head: Some(64.0), window: Some(128.0), ..PLAIN }),
    (&["deepseekv3", "deepseekr1"], FamilyTraits { dense_layers: 3.0, shared: 2048.0, ..LATENT }),
    (&["kimik2"], FamilyTraits { dense_layers: 1.0, shared: 2048.0, ..LATENT }),
    (&["deepseekv2"], FamilyTraits { dense_layers: 1.0, shared: 3072.0, ..LATENT }),
    (&["gemma"], FamilyTraits { head: Some(256.0), ..PLAIN }),
];

/// Vocabulary sizes by a part of the model's name; the first match wins.
const VOCABULARIES: &[(&[&str], f64)] = &[
    (&["llama30b", "llama33b"], 32_000.0),
    (&["llama3", "llama4"], 128_256.0),
    (&["llama"], 32_000.0),
    (&["mixtral", "mistral"], 32_000.0),
    (&["nemotron"], 256_000.0),
    (&["gpt", "megatron", "opt", "turing"], 51_200.0),
    (&["qwen"], 151_936.0),
    (&["deepseek"], 129_280.0),
    (&["kimi"], 163_840.0),
    (&["gemma"], 256_000.0),
    (&["mpt", "pythia", "neox"], 50_432.0),
    (&["falcon"], 65_024.0),
    (&["bloom"], 250_880.0),
];

/// Parts of the names of models whose feed-forward block is gated.
const GATED: &[&str] = &[
    "llama", "qwen", "mistral", "mixtral", "gemma", "deepseek", "oss", "kimi", "glm", "olmo", "internlm",
    "baichuan", "grok", "dbrx",
];

/// Returns the unusual properties of the family that `model` names; most families have none.
pub fn family(model: &str) -> FamilyTraits {
    let name = normalized_gpu_name(model);
    FAMILIES.iter().find(|(words, _)| has_any(&name, words)).map_or(PLAIN, |(_, family)| *family)
}

/// Returns the vocabulary size of `model`; that of GPT-2, padded, if the model is unknown.
pub fn vocabulary(model: &str) -> f64 {
    let name = normalized_gpu_name(model);
    VOCABULARIES.iter().find(|(words, _)| has_any(&name, words)).map_or(50_304.0, |(_, size)| *size)
}

/// Returns `true` if the feed-forward block of `model` is gated.
pub fn is_gated(model: &str) -> bool {
    has_any(&normalized_gpu_name(model), GATED)
}

//! What the name of a model says that the columns do not: vocabularies, gates, and unusual attention.

use super::table::has_any;
use crate::analytic::hardware::normalized_gpu_name;

/// Facts of a family of models.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FamilyTraits {
    /// Channels of a head of queries and keys, where that is not hidden size over heads.
    pub head: Option<f64>,
    /// Channels of a head of values, where it differs.
    pub head_value: Option<f64>,
    /// Latent attention: channels that queries pass through, that keys and values pass through, and of rotary positions.
    pub latent: Option<(f64, f64, f64)>,
    /// Tokens that every second layer attends to.
    pub window: Option<f64>,
    /// Layers before the first with experts.
    pub dense_layers: f64,
    /// Hidden channels of experts that every token goes to.
    pub shared: f64,
}

const PLAIN: FamilyTraits =
    FamilyTraits { head: None, head_value: None, latent: None, window: None, dense_layers: 0.0, shared: 0.0 };

/// Latent attention as DeepSeek's second and third versions have it.
const LATENT: FamilyTraits =
    FamilyTraits { head: Some(192.0), head_value: Some(128.0), latent: Some((1536.0, 512.0, 64.0)), ..PLAIN };

/// By a part of the name; the first that occurs. From the models' published configurations.
const FAMILIES: &[(&[&str], FamilyTraits)] = &[
    (&["qwen3"], FamilyTraits { head: Some(128.0), ..PLAIN }),
    (&["gptoss"], FamilyTraits { head: Some(64.0), window: Some(128.0), ..PLAIN }),
    (&["deepseekv3", "deepseekr1"], FamilyTraits { dense_layers: 3.0, shared: 2048.0, ..LATENT }),
    (&["kimik2"], FamilyTraits { dense_layers: 1.0, shared: 2048.0, ..LATENT }),
    (&["deepseekv2"], FamilyTraits { dense_layers: 1.0, shared: 3072.0, ..LATENT }),
    (&["gemma"], FamilyTraits { head: Some(256.0), ..PLAIN }),
];

/// Tokens of the vocabulary, by a part of the name; the first that occurs.
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

/// Parts of names of models whose feed-forward has a gate.
const GATED: &[&str] = &[
    "llama", "qwen", "mistral", "mixtral", "gemma", "deepseek", "oss", "kimi", "glm", "olmo", "internlm",
    "baichuan", "grok", "dbrx",
];

/// The facts of the family of `model`; of most there are none.
pub fn family(model: &str) -> FamilyTraits {
    let name = normalized_gpu_name(model);
    FAMILIES.iter().find(|(words, _)| has_any(&name, words)).map_or(PLAIN, |(_, family)| *family)
}

/// Tokens of the vocabulary of `model`; that of GPT-2, rounded up, of one that is not known.
pub fn vocabulary(model: &str) -> f64 {
    let name = normalized_gpu_name(model);
    VOCABULARIES.iter().find(|(words, _)| has_any(&name, words)).map_or(50_304.0, |(_, size)| *size)
}

/// Whether the feed-forward of `model` has a gate.
pub fn is_gated(model: &str) -> bool {
    has_any(&normalized_gpu_name(model), GATED)
}

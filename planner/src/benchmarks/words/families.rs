//! Properties of a model that follow from its name: vocabulary, gated feed-forward, unusual attention.

use super::words;
use crate::analytic::{LatentDims, WindowDims};
use crate::benchmarks::table::has_any;
use crate::hardware::normalized_gpu_name;

/// Properties of a model that its name tells.
#[derive(Clone, Copy, Debug)]
pub(in crate::benchmarks) struct ModelFamily {
    /// Unusual properties.
    pub(in crate::benchmarks) traits: FamilyTraits,
    /// Number of entries in the vocabulary; `None` if the family is unknown.
    pub(in crate::benchmarks) vocabulary: Option<f64>,
    /// True if the feed-forward block has a gate; `None` if the family is unknown.
    pub(in crate::benchmarks) is_gated: Option<bool>,
    /// Number of multi-token prediction layers.
    pub(in crate::benchmarks) mtp_layers: f64,
    /// True if experts drop tokens beyond their capacity.
    pub(in crate::benchmarks) drops_tokens: bool,
}

/// Unusual properties of a family of models; `None` and 0 stand for the usual.
#[derive(Clone, Copy, Debug)]
pub(in crate::benchmarks) struct FamilyTraits {
    /// Number of channels of a query or key head; `None` if it is the hidden size over the number of heads.
    pub(in crate::benchmarks) head: Option<f64>,
    /// Number of channels of a value head; `None` if it is that of a key head.
    pub(in crate::benchmarks) head_value: Option<f64>,
    /// Dimensions of multi-head latent attention.
    pub(in crate::benchmarks) latent: Option<LatentDims>,
    /// Attention window, and the share of the layers that have it.
    pub(in crate::benchmarks) window: Option<WindowDims>,
    /// Number of dense layers before the first layer with experts.
    pub(in crate::benchmarks) dense_layers: f64,
    /// Number of hidden channels of the shared experts together.
    pub(in crate::benchmarks) shared: f64,
}

const PLAIN: FamilyTraits =
    FamilyTraits { head: None, head_value: None, latent: None, window: None, dense_layers: 0.0, shared: 0.0 };

/// Latent attention of DeepSeek-V2 and V3.
const LATENT: FamilyTraits = FamilyTraits {
    head: Some(192.0),
    head_value: Some(128.0),
    latent: Some(LatentDims { query: 1536.0, key_value: 512.0, rotary: 64.0 }),
    ..PLAIN
};

/// Windows of gpt-oss: every second layer has one.
const EVERY_SECOND: WindowDims = WindowDims { tokens: 128.0, share: 0.5 };

/// Families of models by a part of the model's name; the first match wins. From the published model
/// configurations.
const FAMILIES: &[(&[&str], FamilyTraits)] = &[
    (&["qwen3"], FamilyTraits { head: Some(128.0), ..PLAIN }),
    (&["gptoss"], FamilyTraits { head: Some(64.0), window: Some(EVERY_SECOND), ..PLAIN }),
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

/// Returns the properties that the name `model` tells; most families have no unusual ones.
pub(in crate::benchmarks) fn family(model: &str) -> ModelFamily {
    let name = normalized_gpu_name(model);
    let traits =
        FAMILIES.iter().find(|(words, _)| has_any(&name, words)).map_or(PLAIN, |(_, family)| *family);
    let vocabulary = VOCABULARIES.iter().find(|(words, _)| has_any(&name, words)).map(|(_, size)| *size);
    let is_gated = has_any(&name, GATED);
    ModelFamily {
        traits,
        vocabulary,
        is_gated: (is_gated || vocabulary.is_some()).then_some(is_gated),
        mtp_layers: if has_mtp(model) { 1.0 } else { 0.0 },
        drops_tokens: name.contains("tokendrop"),
    }
}

/// Returns `true` if the name of a model says that it has multi-token prediction, as `(w/ MTP)`.
fn has_mtp(model: &str) -> bool {
    let words = words(model);
    let is_denied = |at: usize| {
        let before = |distance: usize| at.checked_sub(distance).map_or("", |at| words[at].as_str());
        matches!(before(1), "no" | "without") || (before(1) == "o" && before(2) == "w")
    };
    words.iter().position(|word| word.contains("mtp")).is_some_and(|at| !is_denied(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multi_token_prediction_is_read_from_the_name_unless_it_is_denied() {
        for (name, layers) in [
            ("DeepSeekV3 (w/ MTP)", 1.0),
            ("DeepSeekV3-MTP", 1.0),
            ("DeepSeekV3 (w/o MTP)", 0.0),
            ("x, no MTP", 0.0),
        ] {
            assert!((family(name).mtp_layers - layers).abs() < f64::EPSILON, "{name}");
        }
    }

    #[test]
    fn a_family_that_is_not_known_tells_nothing() {
        let tells = |name| (family(name).vocabulary, family(name).is_gated);
        assert_eq!(tells("llama-3-8b"), (Some(128_256.0), Some(true)));
        assert_eq!(tells("GPT-1.7B"), (Some(51_200.0), Some(false)));
        assert_eq!(tells("OLMo-7B"), (None, Some(true)));
        assert_eq!(tells("frobnicate-7b"), (None, None));
    }
}

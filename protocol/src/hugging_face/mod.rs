//! Model families of Hugging Face transformers: the parts of each, and its `config.json`.
//!
//! `FAMILIES` is the table of parts, one row for each family. A new family is a row here, and a mapping of tensor
//! names in `worker/src/pretrained/tensor_names.rs`; `docs/new-family.md` says how.

mod read;
mod reader;
mod windows;
mod write;

#[cfg(test)]
mod tests;

pub use read::{ConfigError, Pretrained, parse};

use dtrain_recipes::{Activation, Decoder, Norm, Positions};

/// An architecture of Hugging Face transformers that dtrain supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelFamily {
    /// GPT-2: learned positions, layer norms, GELU, biases.
    Gpt2,
    /// Llama 1 to 3.3: rotary positions, RMS norms, SwiGLU.
    Llama,
    /// Qwen2: Llama with biases of queries, keys and values.
    Qwen2,
    /// Mistral: Llama with a sliding window.
    Mistral,
    /// Qwen3: Llama with norms of queries and keys.
    Qwen3,
    /// Gemma 3, text only: GeGLU, norms before and after each sub-layer, local and global attention, scaled
    /// embeddings.
    Gemma3,
    /// Mixtral: Mistral with a mixture of experts.
    Mixtral,
    /// Qwen2-MoE: Qwen2 with a mixture of experts, of which some are shared.
    Qwen2Moe,
    /// Qwen3-MoE: Qwen3 with a mixture of experts.
    Qwen3Moe,
}

/// The linear layers of a family that have biases.
#[derive(Clone, Copy, PartialEq)]
enum Biases {
    /// No layer.
    None,
    /// The projections of queries, keys and values.
    Qkv,
    /// All layers.
    All,
    /// All layers or none, as `attention_bias` and `mlp_bias` say.
    Said,
}

/// The layers of a family that may have a sliding window.
#[derive(Clone, Copy, PartialEq)]
enum Windows {
    /// None.
    None,
    /// All, if `sliding_window` has a value.
    All,
    /// Those that `layer_types` names; without it those above `max_window_layers`, if `use_sliding_window` is set.
    Upper,
    /// All, if `use_sliding_window` is set.
    Switch,
    /// Those that `layer_types` names; without it all but every `sliding_window_pattern`-th. Their rotary
    /// positions have a base of their own.
    Local,
}

/// The mixture of experts of a family.
#[derive(Clone, Copy, PartialEq)]
enum ExpertParts {
    /// No experts.
    None,
    /// Experts whose weights sum to one (`num_local_experts`).
    Normalized,
    /// Experts, and shared experts with a gate.
    Shared,
    /// Experts whose weights sum to one if `norm_topk_prob` is set.
    Plain,
}

/// The parts of a family's models.
struct Family {
    family: ModelFamily,
    /// `model_type` in `config.json`.
    model_type: &'static str,
    /// Class of the language model in transformers.
    architecture: &'static str,
    /// Class of a block in transformers.
    block: &'static str,
    biases: Biases,
    has_qk_norm: bool,
    windows: Windows,
    experts: ExpertParts,
}

/// The table of parts. Of families that differ in no part of a model, the first is taken.
const FAMILIES: [Family; 9] = [
    Family {
        family: ModelFamily::Gpt2,
        model_type: "gpt2",
        architecture: "GPT2LMHeadModel",
        block: "GPT2Block",
        biases: Biases::All,
        has_qk_norm: false,
        windows: Windows::None,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Llama,
        model_type: "llama",
        architecture: "LlamaForCausalLM",
        block: "LlamaDecoderLayer",
        biases: Biases::Said,
        has_qk_norm: false,
        windows: Windows::None,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Qwen2,
        model_type: "qwen2",
        architecture: "Qwen2ForCausalLM",
        block: "Qwen2DecoderLayer",
        biases: Biases::Qkv,
        has_qk_norm: false,
        windows: Windows::Upper,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Mistral,
        model_type: "mistral",
        architecture: "MistralForCausalLM",
        block: "MistralDecoderLayer",
        biases: Biases::None,
        has_qk_norm: false,
        windows: Windows::All,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Qwen3,
        model_type: "qwen3",
        architecture: "Qwen3ForCausalLM",
        block: "Qwen3DecoderLayer",
        biases: Biases::None,
        has_qk_norm: true,
        windows: Windows::Upper,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Gemma3,
        model_type: "gemma3_text",
        architecture: "Gemma3ForCausalLM",
        block: "Gemma3DecoderLayer",
        biases: Biases::None,
        has_qk_norm: true,
        windows: Windows::Local,
        experts: ExpertParts::None,
    },
    Family {
        family: ModelFamily::Mixtral,
        model_type: "mixtral",
        architecture: "MixtralForCausalLM",
        block: "MixtralDecoderLayer",
        biases: Biases::None,
        has_qk_norm: false,
        windows: Windows::All,
        experts: ExpertParts::Normalized,
    },
    Family {
        family: ModelFamily::Qwen2Moe,
        model_type: "qwen2_moe",
        architecture: "Qwen2MoeForCausalLM",
        block: "Qwen2MoeDecoderLayer",
        biases: Biases::Qkv,
        has_qk_norm: false,
        windows: Windows::Upper,
        experts: ExpertParts::Shared,
    },
    Family {
        family: ModelFamily::Qwen3Moe,
        model_type: "qwen3_moe",
        architecture: "Qwen3MoeForCausalLM",
        block: "Qwen3MoeDecoderLayer",
        biases: Biases::None,
        has_qk_norm: true,
        windows: Windows::Switch,
        experts: ExpertParts::Plain,
    },
];

impl ModelFamily {
    /// Returns the family that has all parts of `model`, adapters aside.
    ///
    /// `Err` names what no family has.
    pub fn of(model: &Decoder) -> Result<Self, String> {
        match FAMILIES.iter().find(|family| family.has(model)) {
            Some(family) => Ok(family.family),
            None => Err(missing(model)),
        }
    }

    fn parts(self) -> &'static Family {
        FAMILIES.iter().find(|family| family.family == self).expect("the table has every family")
    }

    /// Returns the value of `model_type` in a `config.json` of this family.
    pub fn model_type(self) -> &'static str {
        self.parts().model_type
    }

    /// Returns the class of a language model of this family.
    pub fn architecture(self) -> &'static str {
        self.parts().architecture
    }

    /// Returns the class of a block in transformers.
    pub fn block(self) -> &'static str {
        self.parts().block
    }

    /// Returns `true` if `config.json` says the longest context only: any shorter one can be trained too.
    pub fn has_free_context(self) -> bool {
        self != Self::Gpt2
    }
}

impl Family {
    /// Returns `true` if models of the family can have all parts of `model`.
    fn has(&self, model: &Decoder) -> bool {
        if model.latent.is_some() || model.mtp_layers > 0 {
            return false;
        }
        if self.family == ModelFamily::Gpt2 {
            return model.positions == Positions::Learned
                && model.norm == Norm::Layer
                && matches!(model.activation, Activation::Gelu | Activation::GeluTanh)
                && model.bias
                && model.qkv_bias()
                && model.kv_heads == model.heads
                && model.head_width.is_none()
                && !(model.qk_norm || model.post_norm || model.scaled_embedding)
                && model.window.is_none()
                && model.experts.is_none();
        }
        let is_gemma = self.family == ModelFamily::Gemma3;
        model.positions == Positions::Rotary
            && model.norm == Norm::Rms
            && model.activation == if is_gemma { Activation::Geglu } else { Activation::Swiglu }
            && model.post_norm == is_gemma
            && model.scaled_embedding == is_gemma
            && (is_gemma || model.attention_scale.is_none())
            && model.qk_norm == self.has_qk_norm
            && self.has_biases(model)
            && self.has_window(model)
            && self.has_experts(model)
    }

    fn has_biases(&self, model: &Decoder) -> bool {
        let biases = (model.qkv_bias(), model.bias);
        match self.biases {
            Biases::None => biases == (false, false),
            Biases::Qkv => biases == (true, false),
            Biases::All => biases == (true, true),
            Biases::Said => model.qkv_bias() == model.bias,
        }
    }

    fn has_window(&self, model: &Decoder) -> bool {
        let Some(window) = model.window else { return true };
        match self.windows {
            Windows::None => false,
            Windows::All | Windows::Switch => window.every.is_none() && window.rotary_base.is_none(),
            Windows::Upper => window.rotary_base.is_none(),
            Windows::Local => true,
        }
    }

    fn has_experts(&self, model: &Decoder) -> bool {
        let Some(experts) = &model.experts else { return self.experts == ExpertParts::None };
        if experts.capacity.is_some() || experts.dense.is_some() {
            return false;
        }
        // With one expert per token, dtrain never scales its weight.
        let is_raw = experts.raw_gates || experts.per_token == 1;
        match self.experts {
            ExpertParts::None => false,
            ExpertParts::Normalized => !is_raw && experts.shared_ffn.is_none(),
            ExpertParts::Shared => experts.shared_ffn.is_some() && experts.shared_gate,
            ExpertParts::Plain => experts.shared_ffn.is_none(),
        }
    }
}

/// Returns the part of `model` that no family has, in words.
fn missing(model: &Decoder) -> String {
    let with_experts = model.experts.as_ref();
    let parts = [
        (model.latent.is_some(), "latent attention"),
        (model.mtp_layers > 0, "multi-token prediction"),
        (with_experts.is_some_and(|all| all.capacity.is_some()), "experts with a capacity"),
        (with_experts.is_some_and(|all| all.dense.is_some()), "dense layers among layers with experts"),
        (
            with_experts.is_some_and(|all| all.shared_ffn.is_some() && !all.shared_gate),
            "shared experts without a gate",
        ),
        (model.bias && !model.qkv_bias(), "biases everywhere but at queries, keys and values"),
    ];
    if let Some((_, what)) = parts.into_iter().find(|(is_part, _)| *is_part) {
        return what.to_owned();
    }
    if (model.positions, model.norm) == (Positions::Learned, Norm::Layer) && !model.activation.is_gated() {
        return if model.kv_heads != model.heads || model.head_width.is_some() {
            "GPT-2 with grouped heads, or heads of another width than hidden / heads".to_owned()
        } else if !model.bias || !model.qkv_bias() {
            "GPT-2 without biases".to_owned()
        } else {
            "GPT-2 with experts, a window, or norms of queries and keys".to_owned()
        };
    }
    let known = FAMILIES.map(|family| family.model_type).join(", ");
    format!("its parts together are those of no family ({known}); docs/new-family.md has the table")
}

//! Tensor names: maps dtrain's parameters to the tensors of Hugging Face transformers.

use dtrain_protocol::hugging_face::ModelFamily;

/// A tensor of transformers that has values of one of dtrain's parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HuggingFaceTensor {
    /// Name of the tensor, without the family's prefix, which all names but that of the head have.
    pub(super) name: String,
    /// Order of the parameter's values in the tensor.
    pub(super) form: ValueOrder,
}

/// The order of a parameter's values in the transformers tensor that has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueOrder {
    /// The values have the same order in both.
    Same,
    /// The tensor is transposed: `[out, in]` instead of `[in, out]`.
    Transposed,
    /// The tensor has the values of three parameters, side by side in the last dimension; the parameter
    /// is the one with this index.
    Third(usize),
    /// The parameter `[experts, in, out]` has the matrices of all experts; the tensor is that of this expert,
    /// transposed.
    Expert(usize),
    /// The tensor has the values less one, as norms of Gemma do.
    LessOne,
}

/// Returns the prefix of all tensor names in a family, except that of the head. Folders of a model
/// without its head omit the prefix.
pub(super) fn prefix(family: ModelFamily) -> &'static str {
    if family == ModelFamily::Gpt2 { "transformer." } else { "model." }
}

/// Name of the head's tensor, which a model with a tied embedding lacks.
pub(super) const HEAD: &str = "lm_head.weight";

/// Returns the tensors that have the values of the parameter `ours`, such as `blocks.3.ffn.up.weight`, of
/// `shape`: one, or one for each expert. `None` if the family has no such parameter.
pub(super) fn theirs(family: ModelFamily, ours: &str, shape: &[usize]) -> Option<Vec<HuggingFaceTensor>> {
    let in_block = ours.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
    let (layer, name) = in_block.map_or((None, ours), |(layer, name)| (Some(layer), name));
    let (stem, end) = name.rsplit_once('.')?;
    let layers = if family == ModelFamily::Gpt2 { "h" } else { "layers" };
    let full = |found: &str| match layer {
        Some(layer) => format!("{layers}.{layer}.{found}.{end}"),
        None => format!("{found}.{end}"),
    };
    if let Some(matrix) = stem.strip_prefix("experts.") {
        let [folder, matrices] = experts(family)?;
        let (_, theirs) =
            ["gate", "up", "down"].into_iter().zip(matrices.split(' ')).find(|(o, _)| *o == matrix)?;
        let one = |expert| HuggingFaceTensor {
            name: full(&format!("{folder}.experts.{expert}.{theirs}")),
            form: ValueOrder::Expert(expert),
        };
        return Some((0..shape[0]).map(one).collect());
    }
    let (found, form) = match family {
        ModelFamily::Gpt2 => gpt2(stem)?,
        ModelFamily::Gemma3 => gemma3(stem).or_else(|| llama(stem))?,
        ModelFamily::Llama | ModelFamily::Qwen2 | ModelFamily::Mistral | ModelFamily::Qwen3 => llama(stem)?,
        ModelFamily::Mixtral | ModelFamily::Qwen2Moe | ModelFamily::Qwen3Moe => {
            mixture(family, stem).or_else(|| llama(stem))?
        }
    };
    // A bias has one dimension, which cannot be transposed.
    let form = if end == "bias" && form == ValueOrder::Transposed { ValueOrder::Same } else { form };
    Some(vec![HuggingFaceTensor { name: full(found), form }])
}

/// Returns where a family has its experts in a block, and the names of their matrices: gate, up and down.
fn experts(family: ModelFamily) -> Option<[&'static str; 2]> {
    match family {
        ModelFamily::Mixtral => Some(["block_sparse_moe", "w1 w3 w2"]),
        ModelFamily::Qwen2Moe | ModelFamily::Qwen3Moe => Some(["mlp", "gate_proj up_proj down_proj"]),
        _ => None,
    }
}

/// Returns the layers beside the experts that only mixtures have.
fn mixture(family: ModelFamily, stem: &str) -> Option<(&'static str, ValueOrder)> {
    Some(match stem {
        "router" if family == ModelFamily::Mixtral => ("block_sparse_moe.gate", ValueOrder::Transposed),
        "router" => ("mlp.gate", ValueOrder::Transposed),
        "shared_gate" => ("mlp.shared_expert_gate", ValueOrder::Transposed),
        "shared.gate" => ("mlp.shared_expert.gate_proj", ValueOrder::Transposed),
        "shared.up" => ("mlp.shared_expert.up_proj", ValueOrder::Transposed),
        "shared.down" => ("mlp.shared_expert.down_proj", ValueOrder::Transposed),
        // Everything else is as in Llama.
        _ => return None,
    })
}

/// Returns the norms of Gemma, whose weights are stored without the one that is added to them.
fn gemma3(stem: &str) -> Option<(&'static str, ValueOrder)> {
    let name = match stem {
        "attention_norm" => "input_layernorm",
        "attention_post_norm" => "post_attention_layernorm",
        "ffn_norm" => "pre_feedforward_layernorm",
        "ffn_post_norm" => "post_feedforward_layernorm",
        "attention.q_norm" => "self_attn.q_norm",
        "attention.k_norm" => "self_attn.k_norm",
        "norm" => "norm",
        // Everything else is as in Llama.
        _ => return None,
    };
    Some((name, ValueOrder::LessOne))
}

fn gpt2(stem: &str) -> Option<(&'static str, ValueOrder)> {
    Some(match stem {
        "embedding" => ("wte", ValueOrder::Same),
        "positions" => ("wpe", ValueOrder::Same),
        "attention_norm" => ("ln_1", ValueOrder::Same),
        "attention.q" => ("attn.c_attn", ValueOrder::Third(0)),
        "attention.k" => ("attn.c_attn", ValueOrder::Third(1)),
        "attention.v" => ("attn.c_attn", ValueOrder::Third(2)),
        "attention.out" => ("attn.c_proj", ValueOrder::Same),
        "ffn_norm" => ("ln_2", ValueOrder::Same),
        "ffn.up" => ("mlp.c_fc", ValueOrder::Same),
        "ffn.down" => ("mlp.c_proj", ValueOrder::Same),
        "norm" => ("ln_f", ValueOrder::Same),
        "head" => ("lm_head", ValueOrder::Transposed),
        _ => return None,
    })
}

fn llama(stem: &str) -> Option<(&'static str, ValueOrder)> {
    Some(match stem {
        "embedding" => ("embed_tokens", ValueOrder::Same),
        "attention_norm" => ("input_layernorm", ValueOrder::Same),
        "attention.q" => ("self_attn.q_proj", ValueOrder::Transposed),
        "attention.k" => ("self_attn.k_proj", ValueOrder::Transposed),
        "attention.v" => ("self_attn.v_proj", ValueOrder::Transposed),
        "attention.out" => ("self_attn.o_proj", ValueOrder::Transposed),
        "attention.q_norm" => ("self_attn.q_norm", ValueOrder::Same),
        "attention.k_norm" => ("self_attn.k_norm", ValueOrder::Same),
        "ffn_norm" => ("post_attention_layernorm", ValueOrder::Same),
        "ffn.gate" => ("mlp.gate_proj", ValueOrder::Transposed),
        "ffn.up" => ("mlp.up_proj", ValueOrder::Transposed),
        "ffn.down" => ("mlp.down_proj", ValueOrder::Transposed),
        "norm" => ("norm", ValueOrder::Same),
        "head" => ("lm_head", ValueOrder::Transposed),
        _ => return None,
    })
}

impl ValueOrder {
    /// Returns the shape of the tensor that has a parameter of `shape`.
    pub(super) fn shape(self, shape: &[usize]) -> Vec<usize> {
        match self {
            Self::Same | Self::LessOne => shape.to_vec(),
            Self::Transposed => shape.iter().rev().copied().collect(),
            Self::Third(_) => {
                let mut shape = shape.to_vec();
                *shape.last_mut().expect("a parameter has a dimension") *= 3;
                shape
            }
            Self::Expert(_) => vec![shape[2], shape[1]],
        }
    }

    /// Copies the values of `theirs`, a tensor, into those of the parameter of `shape` that it has.
    pub(super) fn take(self, shape: &[usize], theirs: &[f32], ours: &mut [f32]) {
        match self {
            Self::Same => ours.copy_from_slice(theirs),
            Self::LessOne => ours.iter_mut().zip(theirs).for_each(|(own, value)| *own = value + 1.0),
            Self::Transposed => ours.copy_from_slice(&transposed(theirs, [shape[1], shape[0]])),
            Self::Third(which) => {
                let width = *shape.last().expect("a parameter has a dimension");
                for (row, own) in theirs.chunks_exact(3 * width).zip(ours.chunks_exact_mut(width)) {
                    own.copy_from_slice(&row[which * width..][..width]);
                }
            }
            Self::Expert(which) => {
                let size = shape[1] * shape[2];
                ours[which * size..][..size].copy_from_slice(&transposed(theirs, [shape[2], shape[1]]));
            }
        }
    }

    /// Copies the values of a parameter of `shape` into `theirs`, the values of a tensor.
    pub(super) fn put(self, shape: &[usize], ours: &[f32], theirs: &mut [f32]) {
        match self {
            Self::Same => theirs.copy_from_slice(ours),
            Self::LessOne => theirs.iter_mut().zip(ours).for_each(|(value, own)| *value = own - 1.0),
            Self::Transposed => theirs.copy_from_slice(&transposed(ours, [shape[0], shape[1]])),
            Self::Third(which) => {
                let width = *shape.last().expect("a parameter has a dimension");
                for (row, own) in theirs.chunks_exact_mut(3 * width).zip(ours.chunks_exact(width)) {
                    row[which * width..][..width].copy_from_slice(own);
                }
            }
            Self::Expert(which) => {
                let size = shape[1] * shape[2];
                theirs.copy_from_slice(&transposed(&ours[which * size..][..size], [shape[1], shape[2]]));
            }
        }
    }
}

/// Transposes a matrix of shape `[rows, columns]`.
fn transposed(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (row, values) in values.chunks_exact(columns).enumerate() {
        for (column, value) in values.iter().enumerate() {
            out[column * rows + row] = *value;
        }
    }
    out
}

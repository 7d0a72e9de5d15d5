//! Tensor names: maps dtrain's parameters to the tensors of Hugging Face transformers.

use super::ModelFamily;

/// The tensor of transformers that has the values of one of dtrain's parameters.
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
}

/// Returns the prefix of all tensor names in a family, except that of the head. Folders of a model
/// without its head omit the prefix.
pub(super) fn prefix(family: ModelFamily) -> &'static str {
    match family {
        ModelFamily::Gpt2 => "transformer.",
        ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 => "model.",
    }
}

/// Name of the head's tensor, which a model with a tied embedding lacks.
pub(super) const HEAD: &str = "lm_head.weight";

/// Returns the tensor that has the parameter `ours`, such as `blocks.3.ffn.up.weight`; `None` if the
/// family has no such parameter.
pub(super) fn theirs(family: ModelFamily, ours: &str) -> Option<HuggingFaceTensor> {
    let in_block = ours.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
    let (layer, name) = in_block.map_or((None, ours), |(layer, name)| (Some(layer), name));
    let (stem, end) = name.rsplit_once('.')?;
    let (found, form) = match family {
        ModelFamily::Gpt2 => gpt2(stem)?,
        ModelFamily::Llama | ModelFamily::Mistral | ModelFamily::Qwen2 => llama(stem)?,
    };
    // A bias has one dimension, which cannot be transposed.
    let form = if end == "bias" && form == ValueOrder::Transposed { ValueOrder::Same } else { form };
    let layers = if family == ModelFamily::Gpt2 { "h" } else { "layers" };
    let name = match layer {
        Some(layer) => format!("{layers}.{layer}.{found}.{end}"),
        None => format!("{found}.{end}"),
    };
    Some(HuggingFaceTensor { name, form })
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
            Self::Same => shape.to_vec(),
            Self::Transposed => shape.iter().rev().copied().collect(),
            Self::Third(_) => {
                let mut shape = shape.to_vec();
                *shape.last_mut().expect("a parameter has a dimension") *= 3;
                shape
            }
        }
    }

    /// Extracts the values of a parameter of `shape` from `theirs`, the values of its tensor.
    pub(super) fn take(self, shape: &[usize], theirs: Vec<f32>) -> Vec<f32> {
        match self {
            Self::Same => theirs,
            Self::Transposed => transposed(&theirs, [shape[1], shape[0]]),
            Self::Third(which) => {
                let width = *shape.last().expect("a parameter has a dimension");
                theirs
                    .chunks_exact(3 * width)
                    .flat_map(|row| &row[which * width..][..width])
                    .copied()
                    .collect()
            }
        }
    }

    /// Inserts the values of a parameter of `shape` into `theirs`, the values of its tensor.
    pub(super) fn put(self, shape: &[usize], ours: &[f32], theirs: &mut [f32]) {
        match self {
            Self::Same => theirs.copy_from_slice(ours),
            Self::Transposed => theirs.copy_from_slice(&transposed(ours, [shape[0], shape[1]])),
            Self::Third(which) => {
                let width = *shape.last().expect("a parameter has a dimension");
                for (row, own) in theirs.chunks_exact_mut(3 * width).zip(ours.chunks_exact(width)) {
                    row[which * width..][..width].copy_from_slice(own);
                }
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

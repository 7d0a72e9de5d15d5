//! Tensors of a GGUF file, made from those of transformers: names, order of rows, and encoding.

use super::metadata::{Architecture, ModelDescription};
use super::writer::{BLOCK, Encoding, OutTensor, Part};
use super::{GgufError, GgufType, TensorSource};
use std::collections::BTreeMap;

/// What happens to the values of a tensor on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Same,
    /// The rows of each of this many heads are reordered: transformers rotate the first half of a head
    /// with the second, llama.cpp's Llama adjacent rows.
    Interleaved(u32),
    /// `[in, out]` becomes `[out, in]`.
    Transposed,
    /// One is added, which transformers add when they compute.
    PlusOne,
}

/// Where a tensor of transformers goes.
#[derive(Debug)]
struct Place {
    /// Name in the file, such as `blk.3.attn_q.weight`.
    name: String,
    /// Number of the expert, if the tensor in the file has those of all.
    expert: Option<u32>,
    change: Change,
}

/// Parts of the names of tensors in a layer, those of transformers beside those of llama.cpp.
type Names = &'static [(&'static str, &'static str)];

const ATTENTION: Names = &[
    ("input_layernorm", "attn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
];

const HEAD_NORMS: Names = &[("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")];

const FFN: Names = &[
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// With `experts` in place of `experts.N`.
const MIXTRAL: Names = &[
    ("block_sparse_moe.gate", "ffn_gate_inp"),
    ("block_sparse_moe.experts.w1", "ffn_gate_exps"),
    ("block_sparse_moe.experts.w2", "ffn_down_exps"),
    ("block_sparse_moe.experts.w3", "ffn_up_exps"),
];

const EXPERTS: Names = &[
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate", "ffn_gate_inp"),
    ("mlp.experts.gate_proj", "ffn_gate_exps"),
    ("mlp.experts.up_proj", "ffn_up_exps"),
    ("mlp.experts.down_proj", "ffn_down_exps"),
];

const SHARED_EXPERT: Names = &[
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
];

const GEMMA3: Names = &[
    ("post_attention_layernorm", "post_attention_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

const GPT2: Names = &[
    ("ln_1", "attn_norm"),
    ("attn.c_attn", "attn_qkv"),
    ("attn.c_proj", "attn_output"),
    ("ln_2", "ffn_norm"),
    ("mlp.c_fc", "ffn_up"),
    ("mlp.c_proj", "ffn_down"),
];

const OUTSIDE: Names =
    &[("model.embed_tokens", "token_embd"), ("model.norm", "output_norm"), ("lm_head", "output")];

const OUTSIDE_GPT2: Names = &[
    ("transformer.wte", "token_embd"),
    ("transformer.wpe", "position_embd"),
    ("transformer.ln_f", "output_norm"),
    ("lm_head", "output"),
];

/// Endings of tensors of older folders that are computed and not trained.
const COMPUTED: [&str; 3] = ["rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"];

/// Returns the tensors of the file for `model`, which read theirs from `source`, and notes about their
/// encoding.
///
/// `Err` names a tensor that `model` has no place for, or one that is missing.
pub(super) fn tensors<'a>(
    model: &ModelDescription,
    source: &'a dyn TensorSource,
    wanted: GgufType,
) -> Result<(Vec<OutTensor<'a>>, Vec<String>), GgufError> {
    let mut experts: BTreeMap<String, BTreeMap<u32, String>> = BTreeMap::new();
    let mut out = Vec::new();
    if let Some(divisors) = model.rotary_divisors.clone() {
        let shape = vec![divisors.len()];
        let parts: Vec<Part<'a>> = vec![Box::new(move || Ok(divisors.clone()))];
        out.push(OutTensor { name: "rope_freqs.weight".into(), shape, encoding: Encoding::F32, parts });
    }
    for name in source.names() {
        let is_spare_head = model.is_tied && name == "lm_head.weight";
        if is_spare_head || COMPUTED.iter().any(|end| name.ends_with(end)) {
            continue;
        }
        let place = place(model, &name).ok_or_else(|| GgufError::Tensor {
            name: name.clone(),
            detail: format!("llama.cpp's {} has no such tensor", model.architecture.name()),
        })?;
        if let Some(expert) = place.expert {
            experts.entry(place.name).or_default().insert(expert, name);
        } else {
            out.push(plain(source, &name, place.name, place.change)?);
        }
    }
    for (name, from) in experts {
        out.push(merged(model, source, name, from)?);
    }
    // llama.cpp has no tied head here.
    if model.is_tied && model.architecture == Architecture::Qwen2Moe {
        out.push(plain(source, "model.embed_tokens.weight", "output.weight".into(), Change::Same)?);
    }
    refuse_gaps(model, &out)?;
    let mut uneven = Vec::new();
    for tensor in &mut out {
        tensor.encoding = encoding(tensor, wanted);
        if wanted == GgufType::Q8 && tensor.encoding == Encoding::F16 {
            uneven.push(tensor.name.as_str());
        }
    }
    let mut notes = Vec::new();
    if let Some(first) = uneven.first() {
        notes.push(format!(
            "{} tensors, such as {first}, are stored as f16: their rows are no multiple of {BLOCK}, which q8_0 wants",
            uneven.len()
        ));
    }
    Ok((out, notes))
}

/// Returns the place of the tensor that transformers call `name`.
fn place(model: &ModelDescription, name: &str) -> Option<Place> {
    let (stem, end) = name.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))?;
    let is_gpt2 = model.architecture == Architecture::Gpt2;
    let layers = if is_gpt2 { "transformer.h." } else { "model.layers." };
    let Some((layer, stem)) = stem.strip_prefix(layers).and_then(|rest| rest.split_once('.')) else {
        let found = find(if is_gpt2 { &[OUTSIDE_GPT2] } else { &[OUTSIDE] }, stem)?;
        let change = change(model, found, end);
        return Some(Place { name: format!("{found}.{end}"), expert: None, change });
    };
    let layer: u32 = layer.parse().ok().filter(|layer| *layer < model.layers)?;
    let (expert, stem) = without_expert(stem);
    let found = find(names(model), &stem)?;
    if expert.is_some() && expert >= model.experts {
        return None;
    }
    Some(Place { name: format!("blk.{layer}.{found}.{end}"), expert, change: change(model, found, end) })
}

/// Takes the number out of `mlp.experts.N.up_proj`.
fn without_expert(stem: &str) -> (Option<u32>, String) {
    const MARK: &str = ".experts.";
    let found = stem.split_once(MARK).and_then(|(before, rest)| {
        let (expert, after) = rest.split_once('.')?;
        Some((expert.parse().ok()?, format!("{before}{MARK}{after}")))
    });
    found.map_or((None, stem.to_owned()), |(expert, stem)| (Some(expert), stem))
}

fn find(names: &[Names], stem: &str) -> Option<&'static str> {
    names.iter().copied().flatten().find(|(theirs, _)| *theirs == stem).map(|(_, found)| *found)
}

/// Returns the names in a layer of `model`.
fn names(model: &ModelDescription) -> &'static [Names] {
    match model.architecture {
        Architecture::Llama if model.experts.is_some() => &[ATTENTION, &FFN_NORM, MIXTRAL],
        Architecture::Llama | Architecture::Qwen2 => &[ATTENTION, FFN],
        Architecture::Qwen3 => &[ATTENTION, HEAD_NORMS, FFN],
        Architecture::Qwen2Moe => &[ATTENTION, EXPERTS, SHARED_EXPERT],
        Architecture::Qwen3Moe => &[ATTENTION, HEAD_NORMS, EXPERTS],
        Architecture::Gemma3 => &[ATTENTION, HEAD_NORMS, GEMMA3],
        Architecture::Gpt2 => &[GPT2],
    }
}

const FFN_NORM: [(&str, &str); 1] = [FFN[0]];

fn change(model: &ModelDescription, found: &str, end: &str) -> Change {
    match (model.architecture, found) {
        (Architecture::Llama, "attn_q") => Change::Interleaved(model.heads),
        (Architecture::Llama, "attn_k") => Change::Interleaved(model.kv_heads),
        (Architecture::Gemma3, found) if found.ends_with("norm") => Change::PlusOne,
        (Architecture::Gpt2, "attn_qkv" | "attn_output" | "ffn_up" | "ffn_down") if end == "weight" => {
            Change::Transposed
        }
        _ => Change::Same,
    }
}

/// Returns the shape of the tensor that transformers call `name`.
fn shape(source: &dyn TensorSource, name: &str) -> Result<Vec<usize>, GgufError> {
    let missing = || GgufError::Tensor { name: name.to_owned(), detail: "it is missing".into() };
    source.shape(name).filter(|shape| !shape.is_empty()).ok_or_else(missing)
}

/// Returns a tensor with the changed values of one of transformers; its encoding is not yet decided.
fn plain<'a>(
    source: &'a dyn TensorSource,
    theirs: &str,
    name: String,
    change: Change,
) -> Result<OutTensor<'a>, GgufError> {
    let shape = shape(source, theirs)?;
    let (from, sides) = (theirs.to_owned(), shape.clone());
    let divides = match change {
        Change::Interleaved(heads) => shape[0].is_multiple_of(2 * heads as usize),
        Change::Transposed => shape.len() == 2,
        Change::Same | Change::PlusOne => true,
    };
    if !divides {
        return Err(GgufError::Tensor {
            name: from,
            detail: format!("its shape {shape:?} is not that of the model"),
        });
    }
    let part: Part<'a> = Box::new(move || Ok(change.of(source.values(&from)?, &sides)));
    let shape = if change == Change::Transposed { shape.into_iter().rev().collect() } else { shape };
    Ok(OutTensor { name, shape, encoding: Encoding::F32, parts: vec![part] })
}

/// Returns the tensor of all experts of a layer.
fn merged<'a>(
    model: &ModelDescription,
    source: &'a dyn TensorSource,
    name: String,
    from: BTreeMap<u32, String>,
) -> Result<OutTensor<'a>, GgufError> {
    // Numbers beyond the count had no place.
    let experts = model.experts.unwrap_or(0) as usize;
    if from.len() != experts {
        let detail = format!("{} experts have it, and the model has {experts}", from.len());
        return Err(GgufError::Tensor { name, detail });
    }
    let mut shapes = from.values().map(|theirs| shape(source, theirs));
    let first = shapes.next().unwrap_or(Ok(Vec::new()))?;
    for other in shapes {
        if other? != first {
            return Err(GgufError::Tensor { name, detail: "experts have it in different shapes".into() });
        }
    }
    let shape = std::iter::once(experts).chain(first).collect();
    let part = |theirs: String| -> Part<'a> { Box::new(move || source.values(&theirs)) };
    Ok(OutTensor { name, shape, encoding: Encoding::F32, parts: from.into_values().map(part).collect() })
}

/// Refuses a model whose layers have different tensors, or that lacks one of those around them.
fn refuse_gaps(model: &ModelDescription, tensors: &[OutTensor<'_>]) -> Result<(), GgufError> {
    let has = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
    let missing = |name: &str| GgufError::Tensor { name: name.to_owned(), detail: "it is missing".into() };
    let mut wanted = vec!["token_embd.weight".to_owned(), "output_norm.weight".into()];
    if !model.is_tied {
        wanted.push("output.weight".into());
    }
    let mut in_layers: Vec<Vec<&str>> = vec![Vec::new(); model.layers as usize];
    for tensor in tensors {
        let place = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
        if let Some((layer, name)) =
            place.and_then(|(layer, name)| Some((layer.parse::<usize>().ok()?, name)))
        {
            in_layers[layer].push(name);
        }
    }
    let mut all: Vec<&str> = in_layers.concat();
    for names in names(model).iter().copied().flatten() {
        let needed = format!("blk.0.{}.weight", names.1);
        if !has(&needed) {
            return Err(missing(&needed));
        }
    }
    all.sort_unstable();
    all.dedup();
    wanted.extend(
        (0..model.layers).flat_map(|layer| all.iter().map(move |name| format!("blk.{layer}.{name}"))),
    );
    wanted.iter().find(|name| !has(name)).map_or(Ok(()), |name| Err(missing(name)))
}

/// Returns the encoding of a tensor in a file of the type `wanted`; it is that of llama.cpp's converter.
fn encoding(tensor: &OutTensor<'_>, wanted: GgufType) -> Encoding {
    const PRECISE: [&str; 4] =
        ["ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight", "_norm.weight"];
    let is_precise = tensor.shape.len() < 2 || PRECISE.iter().any(|end| tensor.name.ends_with(end));
    let has_blocks = tensor.shape.last().is_some_and(|row| row.is_multiple_of(BLOCK));
    match wanted {
        _ if is_precise => Encoding::F32,
        GgufType::F32 => Encoding::F32,
        GgufType::Q8 if has_blocks => Encoding::Q8,
        GgufType::F16 | GgufType::Q8 => Encoding::F16,
    }
}

impl Change {
    /// Returns the changed values of a tensor of `shape`.
    fn of(self, mut values: Vec<f32>, shape: &[usize]) -> Vec<f32> {
        match self {
            Self::Same => values,
            Self::PlusOne => {
                values.iter_mut().for_each(|value| *value += 1.0);
                values
            }
            Self::Interleaved(heads) => {
                let row = shape[1..].iter().product::<usize>();
                let half = shape[0] / heads as usize / 2;
                let mut out = Vec::with_capacity(values.len());
                for head in values.chunks_exact(2 * half * row) {
                    let (first, second) = head.split_at(half * row);
                    for (a, b) in first.chunks_exact(row).zip(second.chunks_exact(row)) {
                        out.extend_from_slice(a);
                        out.extend_from_slice(b);
                    }
                }
                out
            }
            Self::Transposed => {
                let [rows, columns] = [shape[0], shape[1]];
                let mut out = vec![0.0; values.len()];
                for (row, values) in values.chunks_exact(columns).enumerate() {
                    for (column, value) in values.iter().enumerate() {
                        out[column * rows + row] = *value;
                    }
                }
                out
            }
        }
    }
}

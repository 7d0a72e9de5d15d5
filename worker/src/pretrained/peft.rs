//! LoRA adapters in the layout of Hugging Face peft: exports those of a checkpoint.

use super::hugging_face_folder::parameters;
use super::safetensors_file::{ExportedTensor, read_whole, write};
use super::tensor_names::{ValueOrder, prefix, theirs};
use super::{PretrainedError, family_of, io_error};
use crate::checkpoint::TensorReader;
use crate::network::ParameterSpec;
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_recipes::Decoder;
use serde_json::json;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Prefix of every tensor name in an adapter file of peft.
const PREFIX: &str = "base_model.model.";

/// Writes the LoRA adapters of a checkpoint of `decoder` into the folder `out`, which is created; returns
/// the names of the files.
///
/// `Err` if the model has no adapters or peft cannot have them, the checkpoint is damaged, or a file cannot
/// be written.
pub(super) fn write_adapters(
    reader: &TensorReader,
    decoder: &Decoder,
    out: &Path,
) -> Result<Vec<PathBuf>, PretrainedError> {
    let lora = decoder.lora.ok_or(PretrainedError::NoAdapters)?;
    let family = family_of(decoder)?;
    if family == ModelFamily::Gpt2 {
        // In GPT-2 queries, keys and values are one layer, which has one adapter.
        return Err(PretrainedError::PackedAdapters);
    }
    let (mut tensors, mut modules) = (Vec::new(), BTreeSet::new());
    for spec in parameters(decoder).into_iter().flatten().filter(|spec| !spec.is_frozen) {
        let (layer, end) = spec.name.rsplit_once('.').expect("the name of an adapter has a layer");
        let places = theirs(family, &format!("{layer}.weight"), &spec.shape);
        let place = places.and_then(|places| places.into_iter().next());
        let place = place.expect("a family has every layer of its models");
        let layer = place.name.trim_end_matches(".weight");
        modules.insert(layer.rsplit('.').next().unwrap_or(layer).to_owned());
        let end = if end == "lora_a" { "lora_A" } else { "lora_B" };
        let name = format!("{PREFIX}{}{layer}.{end}.weight", prefix(family));
        tensors.push(ExportedTensor {
            name,
            shape: ValueOrder::Transposed.shape(&spec.shape),
            from: vec![(spec, ValueOrder::Transposed)],
        });
    }
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": null,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "target_modules": modules,
    });
    fs::create_dir_all(out).map_err(io_error("making", out))?;
    let files = ["adapter_model.safetensors", "adapter_config.json"].map(PathBuf::from);
    write(&tensors, &out.join(&files[0]), |spec: &ParameterSpec| {
        read_whole(reader, &spec.name, &spec.shape)
    })?;
    let path = out.join(&files[1]);
    fs::write(&path, format!("{config:#}\n")).map_err(io_error("writing", &path))?;
    Ok(files.to_vec())
}

//! Weight export: writes the weights of a checkpoint for other programs.

use super::folder::parameters;
use super::tensor_names::{HEAD, ValueOrder, prefix, theirs};
use super::{ModelFamily, PretrainedError, config, io_error, onnx, peft};
use crate::checkpoint::TensorReader;
use crate::network::ParameterSpec;
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_protocol::sharding::Region;
use dtrain_protocol::{Slice, TensorKind};
use dtrain_recipes::{Lora, Model};
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// The file format of exported weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// A folder of Hugging Face transformers; for decoders.
    HuggingFace,
    /// One ONNX file; for mlp and cnn.
    Onnx,
    /// A folder of adapters of Hugging Face peft; for decoders with adapters.
    Peft,
    /// Safetensors with dtrain's parameter names; for every model.
    Safetensors,
}

/// A tensor of a file, made from one or more parameters.
pub(super) struct ExportedTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Parameters, each with the order of its values in the tensor.
    pub(super) from: Vec<(ParameterSpec, ValueOrder)>,
}

/// Writes the weights of a checkpoint of `model` into the folder `out`, which is created; returns the names
/// of the files.
///
/// `Err` if transformers, or ONNX, have no such model, the checkpoint is damaged, or a file cannot be
/// written.
pub fn export(
    reader: &TensorReader,
    model: &Model,
    format: WeightFormat,
    out: &Path,
) -> Result<Vec<PathBuf>, PretrainedError> {
    let (tensors, config) = match (format, model) {
        (WeightFormat::HuggingFace, Model::Decoder(decoder)) => {
            let (family, base) = (ModelFamily::of(decoder)?, decoder.base());
            let specs = parameters(&base).into_iter().flatten();
            (family_tensors(family, specs), Some(config::to_config_json(family, &base)))
        }
        (WeightFormat::Peft, Model::Decoder(decoder)) => return peft::write_adapters(reader, decoder, out),
        (WeightFormat::Peft, _) => return Err(PretrainedError::NoAdapters),
        (WeightFormat::HuggingFace, _) => return Err(PretrainedError::NoFamily("it is no decoder".into())),
        (WeightFormat::Onnx, _) => {
            let file = onnx::file(reader, model)?;
            fs::create_dir_all(out).map_err(io_error("making", out))?;
            let path = out.join("model.onnx");
            fs::write(&path, file).map_err(io_error("writing", &path))?;
            return Ok(vec!["model.onnx".into()]);
        }
        (WeightFormat::Safetensors, _) => (all_tensors(reader), None),
    };
    fs::create_dir_all(out).map_err(io_error("making", out))?;
    let mut files = vec![PathBuf::from("model.safetensors")];
    let lora = match model {
        Model::Decoder(decoder) if format == WeightFormat::HuggingFace => decoder.lora,
        _ => None,
    };
    let values = |spec: &ParameterSpec| merge_lora(reader, spec, lora);
    write(&tensors, &out.join(&files[0]), values)?;
    let mut keep = |name: &str, content: &[u8]| {
        let path = out.join(name);
        fs::write(&path, content).map_err(io_error("writing", &path))?;
        files.push(name.into());
        Ok::<_, PretrainedError>(())
    };
    if let Some(config) = config {
        keep("config.json", format!("{config:#}\n").as_bytes())?;
    }
    if let Some(tokenizer) = reader.file(TOKENIZER)? {
        keep(TOKENIZER, &tokenizer)?;
    }
    Ok(files)
}

/// Returns the tensors of transformers; neighbouring parameters that are one tensor there are joined.
fn family_tensors(family: ModelFamily, specs: impl Iterator<Item = ParameterSpec>) -> Vec<ExportedTensor> {
    let mut all: Vec<ExportedTensor> = Vec::new();
    for spec in specs {
        let place = theirs(family, &spec.name).expect("a family has every parameter of its models");
        let is_head = place.name == HEAD;
        let name = if is_head { place.name } else { format!("{}{}", prefix(family), place.name) };
        match all.iter_mut().find(|out| out.name == name) {
            Some(out) => out.from.push((spec, place.form)),
            None => {
                let shape = place.form.shape(&spec.shape);
                all.push(ExportedTensor { name, shape, from: vec![(spec, place.form)] });
            }
        }
    }
    all
}

/// Returns every weight of the checkpoint under its own name.
fn all_tensors(reader: &TensorReader) -> Vec<ExportedTensor> {
    use crate::network::Initializer;
    let weights = reader.manifest().tensors.iter().filter(|tensor| tensor.kind == TensorKind::Parameter);
    let out = |tensor: &dtrain_protocol::Tensor| {
        let side = |side: &u64| usize::try_from(*side).expect("addresses have 64 bits");
        let shape: Vec<usize> = tensor.shape.iter().map(side).collect();
        let spec = ParameterSpec::new("", &tensor.name, &shape, Initializer::Zeros);
        ExportedTensor { name: tensor.name.clone(), shape, from: vec![(spec, ValueOrder::Same)] }
    };
    weights.map(out).collect()
}

/// Returns the values of a parameter, merged with its LoRA adapter if it has one: `W + alpha / rank · A·B`.
fn merge_lora(
    reader: &TensorReader,
    spec: &ParameterSpec,
    lora: Option<Lora>,
) -> Result<Vec<f32>, PretrainedError> {
    let mut values = read_whole(reader, &spec.name, &spec.shape)?;
    let Some((lora, layer)) = lora.zip(spec.name.strip_suffix(".weight")) else { return Ok(values) };
    let [a, b] = ["lora_a", "lora_b"].map(|end| format!("{layer}.{end}"));
    if reader.tensor(&a, TensorKind::Parameter).is_none() {
        return Ok(values);
    }
    let ([input, output], rank) = ([spec.shape[0], spec.shape[1]], lora.rank as usize);
    let (a, b) = (read_whole(reader, &a, &[input, rank])?, read_whole(reader, &b, &[rank, output])?);
    #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
    for (row, a) in values.chunks_exact_mut(output).zip(a.chunks_exact(rank)) {
        for (a, b) in a.iter().zip(b.chunks_exact(output)) {
            let factor = (lora.scale() * f64::from(*a)) as f32;
            row.iter_mut().zip(b).for_each(|(value, b)| *value += factor * b);
        }
    }
    Ok(values)
}

/// Reads all values of a parameter.
pub(super) fn read_whole(
    reader: &TensorReader,
    name: &str,
    shape: &[usize],
) -> Result<Vec<f32>, PretrainedError> {
    let sides: Vec<u64> = shape.iter().map(|side| *side as u64).collect();
    let region = Region::whole(&sides);
    let wanted = Slice::of(region.clone(), 0..region.elements());
    let mut values = vec![0.0; shape.iter().product()];
    reader.read(name, TensorKind::Parameter, &wanted, &mut values)?;
    Ok(values)
}

/// Writes a file of tensors, whose parameters have these `values`.
pub(super) fn write(
    tensors: &[ExportedTensor],
    path: &Path,
    values_of: impl Fn(&ParameterSpec) -> Result<Vec<f32>, PretrainedError>,
) -> Result<(), PretrainedError> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({ "format": "pt" }));
    let mut offset = 0;
    for tensor in tensors {
        let end = offset + 4 * tensor.shape.iter().product::<usize>();
        header.insert(
            tensor.name.clone(),
            json!({ "dtype": "F32", "shape": tensor.shape, "data_offsets": [offset, end] }),
        );
        offset = end;
    }
    let mut json = Value::Object(header).to_string().into_bytes();
    json.resize(json.len().next_multiple_of(8), b' ');
    let io = io_error("writing", path);
    let mut file = BufWriter::new(File::create(path).map_err(&io)?);
    file.write_all(&(json.len() as u64).to_le_bytes()).and_then(|()| file.write_all(&json)).map_err(&io)?;
    for tensor in tensors {
        let mut values = vec![0.0; tensor.shape.iter().product()];
        for (spec, form) in &tensor.from {
            let ours = values_of(spec)?;
            form.put(&spec.shape, &ours, &mut values);
        }
        file.write_all(bytemuck::cast_slice(&values)).map_err(&io)?;
    }
    file.into_inner().map_err(|error| io(error.into_error()))?.sync_all().map_err(&io)
}

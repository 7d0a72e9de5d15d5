//! Weight export: writes the weights of a checkpoint in formats of other programs, such as Hugging Face,
//! ONNX and peft.

use super::gguf::{self, GgufError, GgufType, TensorSource, Vocabulary};
use super::hugging_face_folder::parameters;
use super::safetensors_file::{ExportedTensor, read_whole, write};
use super::tensor_names::{HEAD, ValueOrder, prefix, theirs};
use super::{PretrainedError, family_of, io_error, onnx, peft};
use crate::checkpoint::TensorReader;
use crate::network::{ParameterSpec, initializer};
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_protocol::{Region, TensorKind};
use dtrain_recipes::{Decoder, Lora, Model};
use serde_json::Value;
use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

/// The file format of an export of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// A folder for Hugging Face transformers; for decoders only.
    HuggingFace,
    /// One ONNX file; for mlp and cnn only.
    Onnx,
    /// One GGUF file for llama.cpp, with weights of this type; for decoders only.
    Gguf(GgufType),
    /// A folder of adapters for Hugging Face peft; for decoders with LoRA adapters only.
    Peft,
    /// A safetensors file with dtrain's parameter names; for every model.
    Safetensors,
}

/// The files of an exported model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExportedModel {
    /// Names of the files in the folder.
    pub files: Vec<PathBuf>,
    /// Notes for the user: what another program computes otherwise, or what had to be stored otherwise.
    pub notes: Vec<String>,
}

impl From<Vec<PathBuf>> for ExportedModel {
    fn from(files: Vec<PathBuf>) -> Self {
        Self { files, notes: Vec::new() }
    }
}

/// Writes the weights of a checkpoint of `model` in `format` into the folder `out`, which is created.
///
/// `Err` if transformers, ONNX or llama.cpp have no such model, the checkpoint is damaged, or a file cannot be
/// written.
pub fn export(
    reader: &TensorReader,
    model: &Model,
    format: WeightFormat,
    out: &Path,
) -> Result<ExportedModel, PretrainedError> {
    let (tensors, config) = match (format, model) {
        (WeightFormat::HuggingFace, Model::Decoder(decoder)) => {
            let (family, base) = (family_of(decoder)?, decoder.base());
            let specs = parameters(&base).into_iter().flatten();
            (family_tensors(family, specs), Some(family.config(&base, "float32")))
        }
        (WeightFormat::Peft, Model::Decoder(decoder)) => {
            return peft::write_adapters(reader, decoder, out).map(Into::into);
        }
        (WeightFormat::Gguf(weights), Model::Decoder(decoder)) => {
            return write_gguf(reader, decoder, weights, out);
        }
        (WeightFormat::Gguf(_), _) => return Err(PretrainedError::NoFamily("it is no decoder".into())),
        (WeightFormat::Peft, _) => return Err(PretrainedError::NoAdapters),
        (WeightFormat::HuggingFace, _) => return Err(PretrainedError::NoFamily("it is no decoder".into())),
        (WeightFormat::Onnx, _) => {
            let file = onnx::file(reader, model)?;
            fs::create_dir_all(out).map_err(io_error("making", out))?;
            let path = out.join("model.onnx");
            fs::write(&path, file).map_err(io_error("writing", &path))?;
            return Ok(vec![PathBuf::from("model.onnx")].into());
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
        keep("config.json", format!("{:#}\n", Value::Object(config)).as_bytes())?;
    }
    if let Some(tokenizer) = reader.file(TOKENIZER)? {
        keep(TOKENIZER, &tokenizer)?;
    }
    Ok(files.into())
}

/// Writes a checkpoint of `decoder` as the file `model.gguf` in the folder `out`, adapters merged.
fn write_gguf(
    reader: &TensorReader,
    decoder: &Decoder,
    weights: GgufType,
    out: &Path,
) -> Result<ExportedModel, PretrainedError> {
    let (family, base) = (family_of(decoder)?, decoder.base());
    let tensors = family_tensors(family, parameters(&base).into_iter().flatten());
    let vocabulary = match reader.file(TOKENIZER)? {
        Some(json) => Vocabulary::Files {
            tokenizer: serde_json::from_slice(&json)
                .map_err(|error| GgufError::Tokenizer(error.to_string()))?,
            config: Value::Null,
            chat_template: None,
        },
        // Models of bytes have this vocabulary, and no tokenizer.
        None if base.vocab == 256 => Vocabulary::Bytes,
        None => Vocabulary::Numbers,
    };
    let source = CheckpointTensors { reader, tensors, lora: decoder.lora, read: RefCell::default() };
    fs::create_dir_all(out).map_err(io_error("making", out))?;
    let config = Value::Object(family.config(&base, "float32"));
    let name = family.model_type();
    let notes = gguf::write_model(&out.join("model.gguf"), name, &config, &source, &vocabulary, weights)?;
    Ok(ExportedModel { files: vec!["model.gguf".into()], notes })
}

/// The tensors that transformers have for the parameters of a checkpoint.
struct CheckpointTensors<'a> {
    reader: &'a TensorReader,
    tensors: Vec<ExportedTensor>,
    lora: Option<Lora>,
    /// Name and values of the parameter that was read last: the experts of a block are tensors of one.
    read: RefCell<Option<(String, Vec<f32>)>>,
}

impl CheckpointTensors<'_> {
    fn find(&self, name: &str) -> Option<&ExportedTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

impl TensorSource for CheckpointTensors<'_> {
    fn names(&self) -> Vec<String> {
        self.tensors.iter().map(|tensor| tensor.name.clone()).collect()
    }

    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.find(name).map(|tensor| tensor.shape.clone())
    }

    fn values(&self, name: &str) -> Result<Vec<f32>, GgufError> {
        let missing = || GgufError::Tensor { name: name.to_owned(), detail: "is not of the model".into() };
        let tensor = self.find(name).ok_or_else(missing)?;
        let mut values = vec![0.0; tensor.shape.iter().product()];
        let mut read = self.read.borrow_mut();
        for (spec, form) in &tensor.from {
            if read.as_ref().is_none_or(|(name, _)| *name != spec.name) {
                let ours = merge_lora(self.reader, spec, self.lora);
                *read = Some((spec.name.clone(), ours.map_err(|error| GgufError::Source(Box::new(error)))?));
            }
            if let Some((_, ours)) = &*read {
                form.put(&spec.shape, ours, &mut values);
            }
        }
        Ok(values)
    }
}

/// Writes the initial weights of `model` for `seed`, those that a fresh training starts from, as a folder for
/// Hugging Face transformers.
///
/// `Err` if transformers have no such model, or a file cannot be written.
pub fn export_initial(model: &Decoder, seed: u64, out: &Path) -> Result<(), PretrainedError> {
    let family = family_of(model)?;
    let specs = parameters(model).into_iter().flatten();
    let values = |spec: &ParameterSpec| {
        let sides: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
        Ok(initializer::values(&spec.initial, seed, &spec.name, &Region::whole(&sides)))
    };
    fs::create_dir_all(out).map_err(io_error("making", out))?;
    write(&family_tensors(family, specs), &out.join("model.safetensors"), values)?;
    let config = out.join("config.json");
    let text = format!("{:#}\n", Value::Object(family.config(model, "float32")));
    fs::write(&config, text).map_err(io_error("writing", &config))
}

/// Returns the tensors that transformers have for the parameters `specs`; adjacent parameters that are
/// one tensor there are joined.
fn family_tensors(family: ModelFamily, specs: impl Iterator<Item = ParameterSpec>) -> Vec<ExportedTensor> {
    let mut all: Vec<ExportedTensor> = Vec::new();
    for spec in specs {
        let places = theirs(family, &spec.name, &spec.shape);
        for place in places.expect("a family has every parameter of its models") {
            let is_head = place.name == HEAD;
            let name = if is_head { place.name } else { format!("{}{}", prefix(family), place.name) };
            // Parameters that share a tensor are near each other: queries, keys and values with their biases.
            match all.iter_mut().rev().take(6).find(|out| out.name == name) {
                Some(out) => out.from.push((spec.clone(), place.form)),
                None => {
                    let shape = place.form.shape(&spec.shape);
                    all.push(ExportedTensor { name, shape, from: vec![(spec.clone(), place.form)] });
                }
            }
        }
    }
    all
}

/// Returns every weight of a checkpoint as a tensor under its own name.
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

/// Returns the values of a parameter, merged with its LoRA adapter if it has one: `W + alpha / rank ·
/// A·B`.
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

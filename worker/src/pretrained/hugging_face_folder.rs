//! Hugging Face model folders: `config.json`, and tensors in one safetensors file, or in several with an
//! index.

use super::tensor_names::{HEAD, HuggingFaceTensor, prefix, theirs};
use super::{PretrainedError, io_error};
use crate::checkpoint::{NamedPiece, save, save_file};
use crate::network::{ModelPart, NeuralNetwork, ParameterSpec};
use dtrain_protocol::checkpoint::header;
use dtrain_protocol::hugging_face::{self, ConfigError, Pretrained};
use dtrain_protocol::input_manifest::TOKENIZER;
use dtrain_protocol::sharding::Region;
use dtrain_protocol::{Rank, SavedFile, Slice, TensorKind};
use dtrain_recipes::Decoder;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const CONFIG: &str = "config.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A pretrained model in a folder of Hugging Face transformers.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    pretrained: Pretrained,
    /// Path of each tensor file, and the open file, in the order of their names.
    files: Vec<(PathBuf, File)>,
    tensors: BTreeMap<String, TensorLocation>,
}

/// The position of a tensor in the files of a model folder, with its type and shape.
#[derive(Debug)]
struct TensorLocation {
    file: usize,
    dtype: String,
    shape: Vec<usize>,
    /// Offset of the tensor's first byte in the file.
    begin: u64,
}

/// A tensor's entry in the header of a safetensors file.
#[derive(Deserialize)]
struct TensorHeader {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct WeightIndex {
    weight_map: BTreeMap<String, String>,
}

impl ModelFolder {
    /// Returns `true` if `path` is a folder with a `config.json`.
    pub fn exists_at(path: &Path) -> bool {
        path.join(CONFIG).is_file()
    }

    /// Checks that dtrain supports the configuration in the folder `path`, which may have no weights.
    ///
    /// `Err` with the reasons if it does not.
    pub fn check_configuration(path: &Path) -> Result<(), PretrainedError> {
        let config = path.join(CONFIG);
        let text = fs::read(&config).map_err(io_error("reading", &config))?;
        parse(&config, &text).map(|_| ())
    }

    /// Opens the model folder at `path` and reads its configuration and headers, but no values.
    ///
    /// `Err` if a file is missing or invalid, and for a model that dtrain does not support.
    pub fn open(path: &Path) -> Result<Self, PretrainedError> {
        let config = path.join(CONFIG);
        let text = fs::read(&config).map_err(io_error("reading", &config))?;
        let pretrained = parse(&config, &text)?;
        let (mut files, mut tensors) = (Vec::new(), BTreeMap::new());
        for name in weight_files(path)? {
            let file = path.join(name);
            let opened = File::open(&file).map_err(io_error("opening", &file))?;
            read_header(&file, &opened, files.len(), &mut tensors)?;
            files.push((file, opened));
        }
        Ok(Self { path: path.to_owned(), pretrained, files, tensors })
    }

    /// Returns the path of the model folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the configuration of the model in the folder.
    pub fn pretrained(&self) -> &Pretrained {
        &self.pretrained
    }

    /// Returns the model's tokenizer, as JSON; `None` if the folder has none.
    ///
    /// `Err` if it cannot be read.
    pub fn tokenizer(&self) -> Result<Option<Vec<u8>>, PretrainedError> {
        let path = self.path.join(TOKENIZER);
        match fs::read(&path) {
            Ok(json) => Ok(Some(json)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(io_error("reading", &path)(error)),
        }
    }

    /// Returns the blake3 hash of the configuration and all tensor files, in hex.
    ///
    /// `Err` if a file cannot be read.
    pub fn digest(&self) -> Result<String, PretrainedError> {
        let mut hasher = blake3::Hasher::new();
        let files =
            std::iter::once(self.path.join(CONFIG)).chain(self.files.iter().map(|(path, _)| path.clone()));
        for path in files {
            let opened = File::open(&path).map_err(io_error("opening", &path))?;
            hasher.update_reader(opened).map_err(io_error("reading", &path))?;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Fails unless every parameter of `model` has a tensor of its shape, and every tensor belongs to a
    /// parameter.
    pub fn check(&self, model: &Decoder) -> Result<(), PretrainedError> {
        let (mut reasons, mut used) = (Vec::new(), BTreeSet::new());
        for spec in parameters(model).into_iter().flatten() {
            for theirs in self.places(&spec) {
                let wanted = theirs.form.shape(&spec.shape);
                match self.find(&theirs.name) {
                    None => {
                        reasons.push(format!("{} is missing, which {} is read from", theirs.name, spec.name));
                    }
                    Some((name, stored)) => {
                        if stored.shape != wanted {
                            reasons.push(format!("{name} has shape {:?}, expected {wanted:?}", stored.shape));
                        } else if width(&stored.dtype).is_none() {
                            reasons.push(format!("{name} is {}, expected F32, BF16 or F16", stored.dtype));
                        }
                        used.insert(name.to_owned());
                    }
                }
            }
        }
        let ignored = |name: &str| {
            // Masks and angles that older versions saved, and a tied head.
            [".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
                || (model.tied && name == HEAD)
        };
        let others = self.tensors.keys().filter(|name| !used.contains(*name) && !ignored(name));
        reasons.extend(others.map(|name| format!("{name} is not of this model")));
        if reasons.is_empty() {
            return Ok(());
        }
        Err(PretrainedError::Tensors { folder: self.path.clone(), reasons })
    }

    /// Writes the parameters of `model` into the folder `partial` as the files of a checkpoint, one for
    /// each part of the model; also writes the tokenizer if there is one.
    ///
    /// `Err` as in [`ModelFolder::check`], and if a file cannot be read or written.
    pub fn write(&self, model: &Decoder, partial: &Path) -> Result<Vec<SavedFile>, PretrainedError> {
        self.check(model)?;
        let mut saved = Vec::new();
        if let Some(json) = self.tokenizer()? {
            saved.push(save_file(partial, TOKENIZER, &json)?);
        }
        for (index, specs) in (0..).zip(parameters(model)) {
            let read = |spec: &ParameterSpec| {
                let shape: Vec<u64> = spec.shape.iter().map(|side| *side as u64).collect();
                let region = Region::whole(&shape);
                let all = 0..region.elements();
                Ok::<_, PretrainedError>((Slice::of(region, all), self.values(spec)?))
            };
            let values = specs.iter().map(read).collect::<Result<Vec<_>, _>>()?;
            let pieces: Vec<_> = specs
                .iter()
                .zip(&values)
                .map(|(spec, (slice, values))| NamedPiece {
                    name: &spec.name,
                    kind: TensorKind::Parameter,
                    slice,
                    values,
                })
                .collect();
            saved.push(save(partial, Rank(index), &pieces)?);
        }
        Ok(saved)
    }

    /// Returns the names of all tensors in the folder.
    #[cfg(test)]
    pub(super) fn names(&self) -> Vec<&str> {
        self.tensors.keys().map(String::as_str).collect()
    }

    /// Returns the values of a parameter that [`ModelFolder::check`] found.
    ///
    /// `Err` if the file cannot be read, and for a value that is not finite: every loss would be
    /// not-a-number.
    pub(super) fn values(&self, spec: &ParameterSpec) -> Result<Vec<f32>, PretrainedError> {
        let mut ours = vec![0.0; spec.shape.iter().product()];
        for theirs in self.places(spec) {
            theirs.form.take(&spec.shape, &self.tensor(&theirs.name)?, &mut ours);
        }
        Ok(ours)
    }

    /// Returns the values of the tensor called `wanted`.
    fn tensor(&self, wanted: &str) -> Result<Vec<f32>, PretrainedError> {
        let (name, stored) = self.find(wanted).expect("it was checked");
        let (path, file) = &self.files[stored.file];
        let elements: usize = stored.shape.iter().product();
        let mut bytes = vec![0; elements * width(&stored.dtype).expect("it was checked")];
        file.read_exact_at(&mut bytes, stored.begin).map_err(io_error("reading", path))?;
        let values = floats(&stored.dtype, &bytes);
        if let Some(place) = values.iter().position(|value| !value.is_finite()) {
            let detail = format!(
                "{name} has a weight that is not finite: {} is number {} of {elements}; the file is damaged, or the model diverged \
                 before it was saved",
                values[place],
                place + 1
            );
            return Err(PretrainedError::Content { path: path.clone(), detail });
        }
        Ok(values)
    }

    /// Returns the tensors that have the values of a parameter.
    fn places(&self, spec: &ParameterSpec) -> Vec<HuggingFaceTensor> {
        let found = theirs(self.pretrained.family, &spec.name, &spec.shape);
        found.expect("a family has every parameter of its models")
    }

    /// Returns the location of the tensor called `name`, and its name in the file, with or without the
    /// prefix of the family.
    fn find(&self, name: &str) -> Option<(&str, &TensorLocation)> {
        let long = format!("{}{name}", prefix(self.pretrained.family));
        self.tensors
            .get_key_value(&long)
            .or_else(|| self.tensors.get_key_value(name))
            .map(|(k, v)| (k.as_str(), v))
    }
}

/// Parses the text of the `config.json` at `path`.
fn parse(path: &Path, text: &[u8]) -> Result<Pretrained, PretrainedError> {
    hugging_face::parse(text).map_err(|error| match error {
        ConfigError::Content(detail) => PretrainedError::Content { path: path.to_owned(), detail },
        ConfigError::Unsupported(reasons) => PretrainedError::Untrained { path: path.to_owned(), reasons },
    })
}

/// Returns the parameters of each part of a model; a shared parameter appears only once.
pub(super) fn parameters(model: &impl NeuralNetwork) -> Vec<Vec<ParameterSpec>> {
    let mut seen = BTreeSet::new();
    let parts = std::iter::once(ModelPart::First)
        .chain((0..model.blocks()).map(ModelPart::Block))
        .chain([ModelPart::Head]);
    parts
        .map(|part| {
            let mut specs = model.parameters(part);
            specs.retain(|spec| seen.insert(spec.name.clone()));
            specs
        })
        .collect()
}

/// Returns the names of the tensor files in a model folder.
fn weight_files(folder: &Path) -> Result<Vec<String>, PretrainedError> {
    let path = folder.join(INDEX);
    if !path.is_file() {
        if folder.join(WEIGHTS).is_file() {
            return Ok(vec![WEIGHTS.to_owned()]);
        }
        let detail = format!(
            "expected {WEIGHTS} or {INDEX} beside {CONFIG}; transformers write them with save_pretrained"
        );
        return Err(PretrainedError::Content { path: folder.to_owned(), detail });
    }
    let content = |detail| PretrainedError::Content { path: path.clone(), detail };
    let text = fs::read(&path).map_err(io_error("reading", &path))?;
    let index: WeightIndex = serde_json::from_slice(&text).map_err(|error| content(error.to_string()))?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    match names.iter().find(|name| name.contains('/') || name.starts_with('.')) {
        Some(name) => Err(content(format!("{name:?} is not the name of a file in this folder"))),
        None => Ok(names.into_iter().collect()),
    }
}

/// Reads the header of the tensor file number `index`, and adds its tensors to `tensors`.
fn read_header(
    path: &Path,
    mut file: &File,
    index: usize,
    tensors: &mut BTreeMap<String, TensorLocation>,
) -> Result<(), PretrainedError> {
    let content = |detail: String| PretrainedError::Content { path: path.to_owned(), detail };
    let io = io_error("reading", path);
    let bytes = file.metadata().map_err(&io)?.len();
    let mut first = [0; 8];
    file.read_exact(&mut first).map_err(&io)?;
    let length = header::length(&first, bytes).map_err(content)?;
    let mut json = vec![0; usize::try_from(length).expect("addresses have 64 bits")];
    file.read_exact(&mut json).map_err(&io)?;
    let entries: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(&json).map_err(|error| content(format!("the header is not JSON: {error}")))?;
    for (name, entry) in entries.into_iter().filter(|(name, _)| name != "__metadata__") {
        let entry: TensorHeader =
            serde_json::from_value(entry).map_err(|error| content(format!("{name}: {error}")))?;
        let (begin, end) = (entry.data_offsets.0, entry.data_offsets.1);
        let elements = entry.shape.iter().try_fold(1usize, |all, side| all.checked_mul(*side));
        let wanted = elements.and_then(|all| all.checked_mul(width(&entry.dtype).unwrap_or(1)));
        let fits = end.checked_sub(begin).zip(end.checked_add(8 + length)).is_some_and(|(long, last)| {
            last <= bytes && (width(&entry.dtype).is_none() || wanted == usize::try_from(long).ok())
        });
        if !fits {
            return Err(content(format!(
                "{name} has bytes {begin}..{end}, which do not fit its shape or the file"
            )));
        }
        let stored =
            TensorLocation { file: index, dtype: entry.dtype, shape: entry.shape, begin: 8 + length + begin };
        tensors.insert(name, stored);
    }
    Ok(())
}

/// Returns the bytes of one value of type `dtype`; `None` if the type is not supported.
fn width(dtype: &str) -> Option<usize> {
    match dtype {
        "F32" => Some(4),
        "BF16" | "F16" => Some(2),
        _ => None,
    }
}

fn floats(dtype: &str, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.as_chunks().0.iter().copied();
    match dtype {
        "F32" => bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes).collect(),
        "BF16" => halves().map(|pair| half::bf16::from_le_bytes(pair).to_f32()).collect(),
        "F16" => halves().map(|pair| half::f16::from_le_bytes(pair).to_f32()).collect(),
        _ => unreachable!("it was checked"),
    }
}

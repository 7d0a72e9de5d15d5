//! GGUF files, which llama.cpp reads: a model in the layout of Hugging Face transformers, with its
//! tokenizer, in one file.
//!
//! `metadata.rs` reads the `config.json`, `tensors.rs` has the names of tensors, `tokenizer.rs` the
//! vocabulary, `writer.rs` the format. One tensor, or one expert of a tensor, at a time is in memory.

mod metadata;
mod pre_tokenizer;
mod tensors;
mod tokenizer;
mod writer;

#[cfg(test)]
mod tests;

pub(super) use tokenizer::Vocabulary;

use serde_json::Value;
use std::path::{Path, PathBuf};
use writer::MetadataValue;

/// The type of the weights in a file. Norms, biases, routers and learned positions are f32 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GgufType {
    /// Four bytes a weight.
    F32,
    /// Two bytes a weight.
    F16,
    /// `q8_0`: 8.5 bits a weight, in blocks of 32 with a common scale.
    Q8,
}

/// The tensors of a model in the layout of transformers.
pub(super) trait TensorSource {
    /// Returns the names of all tensors, such as `model.layers.0.mlp.up_proj.weight`.
    fn names(&self) -> Vec<String>;
    /// Returns the shape of a tensor, outermost dimension first; `None` if there is no such tensor.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;
    /// Returns the values of a tensor.
    fn values(&self, name: &str) -> Result<Vec<f32>, GgufError>;
}

/// The reason why a model cannot be written as GGUF.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file cannot be written.
    #[error("writing {}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A value of the model's configuration is missing or wrong.
    #[error("the model's configuration: {0}")]
    Config(String),
    /// A tensor is missing, is too much, has another shape or a value that cannot be written.
    #[error("tensor {name}: {detail}")]
    Tensor {
        /// Name of the tensor.
        name: String,
        /// What is wrong with it.
        detail: String,
    },
    /// The tokenizer is damaged, or of a kind that llama.cpp does not have.
    #[error("the tokenizer: {0}")]
    Tokenizer(String),
    /// llama.cpp does not compute the model.
    #[error("llama.cpp does not have this model: {0}")]
    Unsupported(String),
    /// The values of a tensor cannot be read.
    #[error(transparent)]
    Source(Box<dyn std::error::Error + Send + Sync>),
}

impl GgufType {
    /// Returns the number of the type in a file.
    fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8 => 7,
        }
    }
}

/// Writes the model of `config`, the content of a `config.json`, with the weights of `source` to the file
/// `path`, under the name `name`. The file is incomplete until the function returns. Returns notes for the
/// user: what llama.cpp computes otherwise, and what had to be stored otherwise.
///
/// `Err` if llama.cpp has no such model, tensors do not fit it, a value is beyond the range of `wanted`, or
/// the file cannot be written.
pub(super) fn write_model(
    path: &Path,
    name: &str,
    config: &Value,
    source: &dyn TensorSource,
    vocabulary: &Vocabulary,
    wanted: GgufType,
) -> Result<Vec<String>, GgufError> {
    let model = metadata::describe(config)?;
    let (tensors, notes) = tensors::tensors(&model, source, wanted)?;
    let rows = tensors.iter().find(|tensor| tensor.name == "token_embd.weight").map(|found| found.shape[0]);
    if rows != Some(model.vocab as usize) {
        return Err(GgufError::Config(format!(
            "`vocab_size` is {}, and the embedding has {} rows",
            model.vocab,
            rows.unwrap_or(0)
        )));
    }
    let text = |text: &str| MetadataValue::Text(text.to_owned());
    let mut all = vec![
        ("general.architecture".to_owned(), text(model.architecture.name())),
        ("general.type".into(), text("model")),
        ("general.name".into(), text(name)),
        ("general.file_type".into(), MetadataValue::U32(wanted.file_type())),
        ("general.quantization_version".into(), MetadataValue::U32(2)),
    ];
    let mut notes = [model.notes, notes].concat();
    all.extend(model.keys);
    all.extend(tokenizer::keys(vocabulary, config, model.vocab, &mut notes)?);
    writer::write(path, &all, &tensors)?;
    Ok(notes)
}

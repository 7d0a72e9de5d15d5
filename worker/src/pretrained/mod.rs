//! Pretrained models in the layout of Hugging Face transformers: imports them as initial weights, and
//! exports trained ones. Classifiers are exported as ONNX.
//!
//! `dtrain_protocol::hugging_face` has the supported families, `tensor_names.rs` the names of their tensors. In both directions
//! one parameter is in memory at a time, except that imported ones are written a part of the model at a
//! time.

mod export;
mod gguf;
mod hugging_face_folder;
mod onnx;
mod peft;
mod safetensors_file;
mod tensor_names;

#[cfg(test)]
mod tests;

pub use export::{ExportedModel, WeightFormat, export, export_initial};
pub use gguf::GgufType;
pub use hugging_face_folder::ModelFolder;

use crate::checkpoint::CheckpointError;
use dtrain_protocol::hugging_face::ModelFamily;
use dtrain_recipes::Decoder;
use std::path::{Path, PathBuf};

/// The reason why a model cannot be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// An operation on a file failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `reading`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The content of a file is invalid.
    #[error("{}: {detail}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The expected content and the content found.
        detail: String,
    },
    /// The model has features that dtrain does not support.
    #[error("dtrain does not train the model of {}", path.display())]
    Untrained {
        /// Path of the model's configuration.
        path: PathBuf,
        /// The features that dtrain does not support.
        reasons: Vec<String>,
    },
    /// Tensors are missing, have other shapes, or do not belong to the model.
    #[error("the tensors in {} are not those of the model", folder.display())]
    Tensors {
        /// Path of the folder that holds the tensors.
        folder: PathBuf,
        /// The mistakes, one for each tensor.
        reasons: Vec<String>,
    },
    /// No architecture of transformers has the feature of the model that the text names.
    #[error("transformers have no architecture for this model: {0}")]
    NoFamily(String),
    /// The adapters of a model without adapters cannot be exported.
    #[error("the model has no adapters; `model.lora` of a recipe makes some")]
    NoAdapters,
    /// A layer of transformers corresponds to several of the model's layers, each with an adapter of its
    /// own.
    #[error("peft has one adapter for queries, keys and values of GPT-2, and this model has three")]
    PackedAdapters,
    /// The model is of a kind that cannot be written as ONNX.
    #[error("only an mlp or a cnn can be written as ONNX; this model is of another kind")]
    NoOnnx,
    /// The model is too large for one ONNX file; has the size that the file would have, in bytes.
    #[error("an ONNX file has less than 2 GiB, and that of this model would have {0} bytes")]
    LongOnnx(usize),
    /// llama.cpp lacks the model, or its file cannot be written.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl PretrainedError {
    /// Returns the reasons that the error lists; empty if it has only one.
    pub fn reasons(&self) -> &[String] {
        match self {
            Self::Untrained { reasons, .. } | Self::Tensors { reasons, .. } => reasons,
            _ => &[],
        }
    }
}

/// Returns the family of transformers that has all parts of `model`.
fn family_of(model: &Decoder) -> Result<ModelFamily, PretrainedError> {
    ModelFamily::of(model).map_err(PretrainedError::NoFamily)
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> PretrainedError + use<> {
    let path = path.to_owned();
    move |source| PretrainedError::Io { action, path: path.clone(), source }
}

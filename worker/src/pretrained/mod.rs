//! Pretrained models in the layout of Hugging Face transformers: imports them as initial weights, and
//! exports trained ones. Classifiers are exported as ONNX.
//!
//! `config.rs` has the supported models, `tensor_names.rs` the names of their tensors. In both directions
//! one parameter is in memory at a time, except that imported ones are written a part of the model at a
//! time.

mod config;
mod export;
mod hugging_face_folder;
mod onnx;
mod peft;
mod safetensors_file;
mod tensor_names;

#[cfg(test)]
mod tests;

pub use config::{ModelFamily, Pretrained};
pub use export::{WeightFormat, export};
pub use hugging_face_folder::ModelFolder;

use crate::checkpoint::CheckpointError;
use std::path::{Path, PathBuf};

/// The reason why a model cannot be imported or exported.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// The operation that failed, such as `reading`.
        action: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file is invalid.
    #[error("{}: {detail}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// The expected and the found content.
        detail: String,
    },
    /// The model has features that dtrain does not support.
    #[error("dtrain does not train the model of {}", path.display())]
    Untrained {
        /// Path of the configuration.
        path: PathBuf,
        /// Unsupported features.
        reasons: Vec<String>,
    },
    /// Tensors are missing, have other shapes, or do not belong to the model.
    #[error("the tensors in {} are not those of the model", folder.display())]
    Tensors {
        /// Path of the folder.
        folder: PathBuf,
        /// The mistake in each of them.
        reasons: Vec<String>,
    },
    /// No architecture of transformers has this feature of the model.
    #[error("transformers have no architecture for this model: {0}")]
    NoFamily(String),
    /// The model has no adapters.
    #[error("the model has no adapters; `model.lora` of a recipe makes some")]
    NoAdapters,
    /// A layer of transformers is several layers here, each with an adapter of its own.
    #[error("peft has one adapter for queries, keys and values of GPT-2, and this model has three")]
    PackedAdapters,
    /// The model cannot be written as ONNX.
    #[error("only an mlp or a cnn can be written as ONNX; this model is of another kind")]
    NoOnnx,
    /// The model is too large for one ONNX file; its size in bytes.
    #[error("an ONNX file has less than 2 GiB, and that of this model would have {0} bytes")]
    LongOnnx(usize),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl PretrainedError {
    /// Returns the reasons, if the error has several.
    pub fn reasons(&self) -> &[String] {
        match self {
            Self::Untrained { reasons, .. } | Self::Tensors { reasons, .. } => reasons,
            _ => &[],
        }
    }
}

fn io_error(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> PretrainedError + use<> {
    let path = path.to_owned();
    move |source| PretrainedError::Io { action, path: path.clone(), source }
}

//! Language models in the layout of Hugging Face transformers: in, as the weights that a training begins with, and out.
//! Classifiers go out as ONNX.
//!
//! `config.rs` says which models are dtrain's, `mapping.rs` which of their tensors is which parameter. Both ways one
//! parameter is in memory at a time, except that what is read is written a part of the model at a time.

mod config;
mod export;
mod folder;
mod onnx;
mod peft;
mod tensor_names;

#[cfg(test)]
mod tests;

pub use config::{ModelFamily, Pretrained};
pub use export::{WeightFormat, export};
pub use folder::ModelFolder;

use crate::checkpoint::CheckpointError;
use std::path::{Path, PathBuf};

/// Why a model cannot be taken in or given out.
#[derive(Debug, thiserror::Error)]
pub enum PretrainedError {
    /// The file system said no.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `reading`.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {detail}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was expected and what was found.
        detail: String,
    },
    /// The model has what dtrain does not train.
    #[error("dtrain does not train the model of {}", path.display())]
    Untrained {
        /// Its configuration.
        path: PathBuf,
        /// Each thing that dtrain does not have.
        reasons: Vec<String>,
    },
    /// Tensors are missing, have other shapes, or have no place in the model.
    #[error("the tensors in {} are not those of the model", folder.display())]
    Tensors {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with each of them.
        reasons: Vec<String>,
    },
    /// No architecture of transformers is this model.
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
    /// The model is too large for one ONNX file.
    #[error("an ONNX file has less than 2 GiB, and that of this model would have {0} bytes")]
    LongOnnx(usize),
    /// A checkpoint cannot be written or read.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

impl PretrainedError {
    /// What is wrong, one thing each, where there may be several.
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

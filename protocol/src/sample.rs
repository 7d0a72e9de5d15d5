//! Messages of `dtrain worker sample`.

use dtrain_recipes::{Data, Model};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A request to continue a prompt with a trained decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// Sizes of the decoder.
    pub model: Model,
    /// Training data of the decoder, which names the tokenizer.
    pub data: Data,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Folder of a committed checkpoint with the weights.
    pub checkpoint: PathBuf,
    /// Text to continue; may be empty.
    pub prompt: String,
    /// Number of tokens to generate.
    pub tokens: u32,
    /// Sampling temperature: 0 always takes the likeliest token; 1 samples from the model's own distribution.
    pub temperature: f64,
    /// Top-k sampling: the number of likeliest tokens considered; `None` considers all.
    pub top_k: Option<u32>,
    /// Nucleus sampling: the total probability of the likeliest tokens considered; `None` considers all.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Texts that end the continuation before them.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Random seed; the same request gives the same text.
    pub seed: u64,
    /// Number of threads that compute on the CPU.
    pub threads: u32,
}

/// A response to a [`SampleRequest`]; any number of `Text`, then `Done`, `Refused` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleResponse {
    /// The next part of the continuation, without the prompt.
    Text(String),
    /// The continuation is complete.
    Done(GenerationStats),
    /// The prompt or the tokenizer does not fit the model, for this reason.
    Refused(String),
    /// The request failed, for this reason.
    Failed(String),
}

/// The length and duration of a continuation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationStats {
    /// Number of tokens that were generated.
    pub tokens: u32,
    /// Seconds from the prompt to the last token, without reading the checkpoint.
    pub seconds: f64,
}

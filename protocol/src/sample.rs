//! What is asked of `dtrain worker sample`, and what it answers.

use dtrain_recipes::{Data, Model};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Continue a prompt with a trained decoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SampleRequest {
    /// The model; a decoder.
    pub model: Model,
    /// The data it was trained on: names the tokenizer.
    pub data: Data,
    /// Folder that relative data paths start from.
    pub data_root: PathBuf,
    /// Folder of a committed checkpoint.
    pub checkpoint: PathBuf,
    /// The text to continue; may be empty.
    pub prompt: String,
    /// Tokens to add.
    pub tokens: u32,
    /// 0 takes the likeliest token; 1 samples from the model's own distribution.
    pub temperature: f64,
    /// Only this many of the likeliest tokens are considered; `None` considers all.
    pub top_k: Option<u32>,
    /// Only the likeliest tokens whose probabilities together reach this are considered; `None` considers all.
    #[serde(default)]
    pub top_p: Option<f64>,
    /// Texts that end the continuation; they are not part of it.
    #[serde(default)]
    pub stop: Vec<String>,
    /// Seed of the choices: the same request gives the same text.
    pub seed: u64,
    /// Threads for compute on the CPU.
    pub threads: u32,
}

/// An answer to a [`SampleRequest`]; any number of `Text`, then `Done`, `Refused` or `Failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SampleResponse {
    /// More of the continuation, the prompt not included.
    Text(String),
    /// The continuation is written.
    Done(GenerationStats),
    /// The prompt or the tokenizer is not what the model reads, and why.
    Refused(String),
    /// The request cannot be met, and why.
    Failed(String),
}

/// What a continuation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerationStats {
    /// Tokens that were generated.
    pub tokens: u32,
    /// Seconds from the prompt to the last token, without those that reading the checkpoint took.
    pub seconds: f64,
}

//! Arguments of `dtrain model`.

use super::TrialArgs;
use crate::completions;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Generate text with a trained decoder
    #[command(after_help = "Example:\n  dtrain model sample last --prompt \"fn main\" --tokens 200")]
    Sample(SampleArgs),

    /// Classify rows of tables, or images, with a trained mlp or cnn
    #[command(after_help = "Examples:\n  dtrain model predict last new.csv\n  \
                            dtrain model predict last \"photos/*.png\" --top 3 --output classes.csv")]
    Predict(PredictArgs),

    /// Measure a trained model on its validation data, or on other files
    #[command(after_help = "Examples:\n  dtrain model evaluate last\n  \
                            dtrain model evaluate last --data held-out.csv --json")]
    Evaluate(EvaluateArgs),

    /// Write the weights of a trial for other programs
    #[command(after_help = "Examples:\n  dtrain model export last --to hf --out my-model\n  \
                            dtrain model export last --to onnx --out classifier\n  \
                            dtrain model export last --to safetensors --out weights")]
    Export(ModelExportArgs),
}

#[derive(Args, Debug)]
pub(crate) struct ModelExportArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Format to write
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub(crate) to: ModelFormat,

    /// Type of the weights in a GGUF file [default: f16]
    #[arg(long, value_enum, value_name = "TYPE")]
    pub(crate) weights: Option<GgufWeights>,

    /// Folder to write
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,

    /// Checkpoint of this step [default: the newest]
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,

    /// Replace files that are already there; others in the folder stay
    #[arg(long)]
    pub(crate) force: bool,
}

/// Format of weights that `--to` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// A folder of Hugging Face transformers (decoders of one of its families), adapters merged
    Hf,
    /// One GGUF file for llama.cpp (decoders of a family that it has), adapters merged
    Gguf,
    /// One ONNX file, for mlp and cnn
    Onnx,
    /// A folder of Hugging Face peft with the adapters alone (decoders with `model.lora`)
    Peft,
    /// One safetensors file with dtrain's names, for every model
    Safetensors,
}

/// Type of the weights in a GGUF file; norms, biases and routers are always f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum GgufWeights {
    /// 4 bytes a weight
    F32,
    /// 2 bytes a weight
    F16,
    /// 8.5 bits a weight, in blocks of 32 with a common scale
    #[value(name = "q8_0")]
    Q8,
}

#[derive(Args, Debug)]
pub(crate) struct PredictArgs {
    /// A trial: its name, the beginning of its id, or `last`
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: String,

    /// Files or glob patterns: CSV or Parquet with or without the target column, PNG, JPEG or IDX images
    #[arg(value_name = "INPUT", required = true)]
    pub(crate) inputs: Vec<String>,

    /// File to write in place of stdout; one that exists is replaced
    #[arg(long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,

    /// Number of most probable classes for each sample
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) top: u32,

    /// Checkpoint of this step [default: the newest]
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Files or glob patterns in the format of the recipe's data [default: the recipe's validation data]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) data: Vec<String>,

    /// Label files, one for each IDX file of `--data`
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "data")]
    pub(crate) labels: Vec<String>,

    /// Checkpoint of this step [default: the newest]
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<u64>,
}

#[derive(Args, Debug)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Prompt to continue
    #[arg(long, default_value = "")]
    pub(crate) prompt: String,

    /// Number of tokens to generate
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub(crate) tokens: u32,

    /// Sampling temperature; 0 takes the likeliest token
    #[arg(long, default_value_t = 0.8, value_name = "NUMBER")]
    pub(crate) temperature: f64,

    /// Sample only from this many most likely tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<u32>,

    /// Sample only from the most likely tokens whose probabilities together reach this
    #[arg(long, value_name = "NUMBER", value_parser = parse_share)]
    pub(crate) top_p: Option<f64>,

    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) stop: Vec<String>,

    /// Random seed; the same seed generates the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// Parses a number above 0 and at most 1, as for `--top-p`.
fn parse_share(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|number| *number > 0.0 && *number <= 1.0);
    number.ok_or_else(|| "expected a number above 0 and at most 1".to_owned())
}

//! Arguments of commands that take a trained model.

use super::TrialArgs;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Generate text with a trained decoder
    #[command(after_help = "Example:\n  dtrain model sample last --prompt \"fn main\" --tokens 200")]
    Sample(SampleArgs),

    /// Write the weights of a trial for other programs
    #[command(after_help = "Examples:\n  dtrain model export last --to hf --out my-model\n  \
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

/// Formats of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelFormat {
    /// A folder of Hugging Face transformers (decoders of the families GPT-2, Llama and Qwen2)
    Hf,
    /// One safetensors file with dtrain's names, for every model
    Safetensors,
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

    /// Random seed; the same seed generates the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

//! Arguments of commands that take a trained model.

use super::TrialArgs;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Generate text with a trained decoder
    #[command(after_help = "Example:\n  dtrain model sample last --prompt \"fn main\" --tokens 200")]
    Sample(SampleArgs),
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

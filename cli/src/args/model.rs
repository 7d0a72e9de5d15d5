//! Arguments of commands that take a trained model.

use super::TrialArgs;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ModelCommand {
    /// Continue a text with a trained decoder
    #[command(after_help = "Example:\n  dtrain model sample last --prompt \"fn main\" --tokens 200")]
    Sample(SampleArgs),
}

#[derive(Args, Debug)]
pub(crate) struct SampleArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// The text to continue
    #[arg(long, default_value = "")]
    pub(crate) prompt: String,

    /// Tokens to write
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub(crate) tokens: u32,

    /// 0 always takes the likeliest token; 1 follows the model's own probabilities
    #[arg(long, default_value_t = 0.8, value_name = "NUMBER")]
    pub(crate) temperature: f64,

    /// Consider only this many of the likeliest tokens
    #[arg(long, value_name = "N")]
    pub(crate) top_k: Option<u32>,

    /// The same seed writes the same text
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

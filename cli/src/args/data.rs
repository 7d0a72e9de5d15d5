//! Arguments of `dtrain data`.

use super::train::RecipeArgs;
use clap::Args;

#[derive(Args, Debug)]
pub(crate) struct DataArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Show the beginnings of this many documents of text
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) samples: usize,

    /// Tokenize text now, keep the tokens for `run`, and count samples and tokens
    #[arg(long, visible_alias = "count")]
    pub(crate) prepare: bool,
}

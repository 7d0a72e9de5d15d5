//! Arguments of commands that take trials.

use super::LayerArgs;
use clap::Args;

/// A trial by name.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrialArgs {
    /// A trial: its name, the beginning of its id, or `last`
    #[arg(value_name = "TRIAL", default_value = "last")]
    pub(crate) trial: String,
}

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Return as soon as training has started, with exit code 131
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Only this rank
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Go on printing what is written, until the trial ends
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryArgs {
    /// Only trials that meet these conditions, joined by `and`, such as `status=completed and batch>=32`
    #[arg(long = "where", value_name = "CONDITIONS")]
    pub(crate) condition: Option<String>,

    /// Sort: `newest`, `best`, `fastest`, or a figure such as `valid.loss`, the smallest first
    #[arg(long, value_name = "ORDER")]
    pub(crate) by: Option<String>,

    /// Trials on a page
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: u32,

    /// Which page, from 1
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) page: u32,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// A trial: its name, the beginning of its id, or `last`; with --resolved a recipe
    #[arg(value_name = "TRIAL|RECIPE")]
    pub(crate) what: Option<String>,

    /// Show every setting of a recipe, and where it was said
    #[arg(long)]
    pub(crate) resolved: bool,

    /// Show also the parameters of a trial that nobody chose
    #[arg(long, conflicts_with = "resolved")]
    pub(crate) all: bool,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// A trial
    pub(crate) a: String,

    /// The trial it is compared with
    pub(crate) b: String,

    /// Show also what is the same
    #[arg(long)]
    pub(crate) all: bool,

    /// Show the difference of their code
    #[arg(long)]
    pub(crate) code: bool,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

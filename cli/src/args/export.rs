//! Arguments of `dtrain export`.

use crate::completions;
use clap::{Args, ValueEnum};
use std::net::SocketAddr;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Trials: their names, the beginnings of their ids, or `last` [default: last; for prometheus all that
    /// run]
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trials: Vec<String>,

    /// All trials of this study
    #[arg(long, value_name = "NAME", conflicts_with = "trials", add = completions::study())]
    pub(crate) study: Option<String>,

    /// All trials that meet these conditions, as `dtrain history` takes them
    #[arg(long = "where", value_name = "CONDITIONS", conflicts_with = "trials")]
    pub(crate) condition: Option<String>,

    /// Format
    #[arg(long, value_name = "FORMAT")]
    pub(crate) to: ExportFormat,

    /// File, or folder for the runs; `-` prints csv, jsonl and prometheus [default: `runs` for tensorboard,
    /// `mlflow.db`, `wandb`, otherwise a file with the name of the trial or study]
    #[arg(long, short, value_name = "PATH")]
    pub(crate) out: Option<PathBuf>,

    /// Only series with these keys, separated by commas; `*` stands for any text
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    pub(crate) keys: Vec<String>,

    /// Points of all attempts, or where attempts overlap of the last [default: all for csv, jsonl and
    /// parquet, otherwise last]
    #[arg(long, value_name = "WHICH")]
    pub(crate) attempt: Option<AttemptChoice>,

    /// Replace what an earlier export wrote
    #[arg(long)]
    pub(crate) force: bool,

    /// For prometheus: answer on this address until Ctrl-C [default: 127.0.0.1:9400]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "out")]
    pub(crate) listen: Option<SocketAddr>,
}

/// Format that `--to` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// Event files, with the settings for its table of hyperparameters
    Tensorboard,
    /// A SQLite store, new or existing
    Mlflow,
    /// Offline runs for `wandb sync`
    Wandb,
    /// One line for each point
    Csv,
    /// One line for each trial and each point
    Jsonl,
    /// One row for each point
    Parquet,
    /// A page that a Prometheus server reads
    Prometheus,
}

/// Attempts whose points `--attempt` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AttemptChoice {
    /// Every attempt
    All,
    /// One point for each step
    Last,
}

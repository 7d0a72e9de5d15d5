//! Arguments of `dtrain engine`.

use super::LayerArgs;
use crate::completions;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueHint};
use dtrain_recipes::TrainingEngine;
use std::path::PathBuf;

/// Subcommands of `dtrain engine`.
#[derive(Debug, Subcommand)]
pub(crate) enum EngineCommand {
    /// Install the Python environment of an engine, here or on the hosts of a recipe
    #[command(
        after_help = "Examples:\n  dtrain engine install torchtitan\n  dtrain engine install fsdp recipe.toml --cluster hosts.toml\n  \
                      dtrain engine install torchtitan --wheels /mnt/wheels    without a network"
    )]
    Install(EngineInstallArgs),

    /// Show the engines and the versions that are installed, here or on the hosts of a recipe
    #[command(after_help = "Example:\n  dtrain engine ls")]
    Ls(EngineListArgs),
}

#[derive(Args, Debug)]
pub(crate) struct EngineInstallArgs {
    /// The engine
    #[arg(value_name = "ENGINE", value_parser = PossibleValuesParser::new(installable()))]
    pub(crate) engine: String,

    #[command(flatten)]
    pub(crate) hosts: EngineListArgs,

    /// Take packages from this folder of each host, and download nothing
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) wheels: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct EngineListArgs {
    /// Recipe whose hosts are meant [default: this machine]
    #[arg(value_name = "RECIPE", add = completions::recipe())]
    pub(crate) recipe: Option<String>,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

/// Returns the names of the engines that have a Python environment.
pub(crate) fn installable() -> Vec<&'static str> {
    TrainingEngine::ALL.iter().filter(|engine| engine.is_foreign()).map(|engine| engine.name()).collect()
}

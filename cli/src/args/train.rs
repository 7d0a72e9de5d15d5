//! Arguments of commands that take a recipe.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use dtrain_planner::emit::{EmitError, Format};
use std::path::PathBuf;

/// A recipe and the layers over it.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecipeArgs {
    /// A recipe: a file, `library/NAME`, or `PACKAGE/RECIPE` of an added package
    #[arg(value_name = "RECIPE", default_value = "recipe.toml")]
    pub(crate) recipe: String,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

/// Layers over a recipe.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LayerArgs {
    /// Set one key of the recipe; may be given again
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// File with the cluster section
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// File to write; an existing one is never overwritten
    #[arg(value_name = "FILE", default_value = "recipe.toml")]
    pub(crate) path: PathBuf,

    /// What to start from; without it, a few questions are asked
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<crate::commands::init::Template>,

    /// Name of the recipe [default: the file's name; for recipe.toml that of its folder]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Training data: files or a glob pattern, relative to the recipe
    #[arg(long, value_name = "FILES")]
    pub(crate) data: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ProbeArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Measure again, even where a measurement is known
    #[arg(long)]
    pub(crate) fresh: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Save the plan in this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// How many of the best candidates to show
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(crate) top: usize,

    /// Tell of every value of every axis that was not chosen what it would cost, by cause
    #[arg(long, conflicts_with = "emit")]
    pub(crate) explain: bool,

    /// Also write a page with drawings of the step, its memory and its trade-offs
    #[arg(long, value_name = "FILE", conflicts_with = "emit")]
    pub(crate) html: Option<PathBuf>,

    /// Plan for GPUs that are not here: hosts, GPUs of each and part, joined by `+`
    #[arg(long, value_name = "HOSTSxGPUS PART", conflicts_with_all = ["out", "top", "emit"])]
    pub(crate) on: Option<String>,

    /// What would train there
    #[arg(long, requires = "on", value_enum, default_value_t = EngineStyle::Megatron)]
    pub(crate) engine: EngineStyle,

    /// Gigabits a second of network for each GPU there [default: as the part is usually sold with]
    #[arg(long, requires = "on", value_name = "GBIT")]
    pub(crate) network: Option<f64>,

    /// Write the best choice for another engine, or a manifest that launches it, in place of the explanation
    #[arg(long, value_name = "NAME", value_parser = formats())]
    pub(crate) emit: Option<Format>,

    /// Folder for the files of --emit [default: stdout, when it is one file]
    #[arg(long, value_name = "FOLDER", requires = "emit")]
    pub(crate) emit_to: Option<PathBuf>,
}

fn formats() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::word))
        .try_map(|name| -> Result<Format, EmitError> { Format::parse(&name) })
}

/// Engines whose cost is known from published runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineStyle {
    /// Megatron-Core, NeMo, Megatron-Bridge
    Megatron,
    /// Megatron-DeepSpeed, GPT-NeoX
    MegatronDeepspeed,
    /// PyTorch FSDP, DeepSpeed ZeRO, not compiled
    Fsdp,
    /// torchtitan with torch.compile
    Torchtitan,
    /// MaxText and others on JAX
    Jax,
}

#[derive(Args, Debug)]
pub(crate) struct EstimateArgs {
    /// CSV table of trainings, one a row; `-` reads stdin
    #[arg(value_name = "ROWS")]
    pub(crate) rows: PathBuf,

    /// Ids of rows whose measured time may be looked at: they correct the other rows of their source and hardware
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) calibrate_on: Vec<String>,

    /// Print the summary of each source only
    #[arg(long, conflicts_with = "json")]
    pub(crate) summary: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Short trials in all, those that ended before included
    #[arg(long, default_value_t = 12, value_name = "N")]
    pub(crate) trials: u64,

    /// Optimizer steps of a short trial [default: a ninth of the whole training, at least 20]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) steps: Option<u64>,

    /// Layouts that a new study measures first, of the fastest planned; 0 trusts the plan
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) layouts: usize,

    /// Name of the study; one that there is goes on [default: RECIPE-tune-N]
    #[arg(long, value_name = "NAME")]
    pub(crate) study: Option<String>,

    /// Save the winner's plan in this file [default: in the state folder]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A recipe (a file, `library/NAME`, or `PACKAGE/RECIPE`), or a plan saved by `dtrain plan --out`
    #[arg(value_name = "RECIPE|PLAN", default_value = "recipe.toml")]
    pub(crate) target: String,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,

    /// Return as soon as training has started, with exit code 131
    #[arg(long)]
    pub(crate) detach: bool,

    /// Name of the recipe in the history
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Processes in all, over all hosts [default: the planner chooses]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,

    /// After training a text model, write this many tokens with it [default: 120]
    #[arg(long, value_name = "N", conflicts_with = "no_sample")]
    pub(crate) sample: Option<u32>,

    /// Write no sample
    #[arg(long)]
    pub(crate) no_sample: bool,

    /// Run a plan although the circumstances it was made for have changed
    #[arg(long)]
    pub(crate) stale_ok: bool,
}

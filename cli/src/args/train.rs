//! Arguments of commands that take a recipe.

use crate::completions;
use crate::output::shell_quoted;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use dtrain_planner::emit::{ConfigFormat, EmitError};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Arguments that name a recipe and override its values.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecipeArgs {
    /// A recipe: a file, `library/NAME`, or `PACKAGE/RECIPE` of an added package
    #[arg(value_name = "RECIPE", default_value = "recipe.toml", add = completions::recipe())]
    pub(crate) recipe: String,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Try the templates of `model.progress` on the output of a program: a file, or `-` for stdin
    #[arg(long = "try", value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments that override values of a recipe.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct LayerArgs {
    /// Set one key of the recipe; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", add = completions::setting())]
    pub(crate) set: Vec<String>,

    /// File with the cluster section
    #[arg(long, value_name = "FILE")]
    pub(crate) cluster: Option<PathBuf>,
}

impl LayerArgs {
    /// Returns these arguments as a shell takes them.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut all: Vec<String> =
            self.set.iter().map(|set| format!("--set {}", shell_quoted(set))).collect();
        all.extend(self.cluster.iter().map(|file| format!("--cluster {}", shell_quoted(file.display()))));
        all
    }
}

/// Template for a new recipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecipeTemplate {
    /// A small language model on text files
    Decoder,
    /// A residual network that classifies images (IDX files, as MNIST comes)
    Cnn,
    /// A multi-layer perceptron that classifies the rows of a table (CSV)
    Mlp,
}

#[derive(Args, Debug)]
pub(crate) struct InitArgs {
    /// File to write; an existing one is never overwritten
    #[arg(value_name = "FILE", default_value = "recipe.toml")]
    pub(crate) path: PathBuf,

    /// Template to start from; if omitted, dtrain asks
    #[arg(long, value_name = "NAME")]
    pub(crate) template: Option<RecipeTemplate>,

    /// Describe the model in this folder of Hugging Face transformers, or a model of the Hugging Face Hub, such as
    /// hf:Qwen/Qwen2.5-0.5B, which is downloaded
    #[arg(long, value_name = "FOLDER|hf:ORG/NAME", value_hint = clap::ValueHint::AnyPath, conflicts_with = "template")]
    pub(crate) from: Option<String>,

    /// Train low-rank adapters (LoRA) of this rank in place of all weights
    #[arg(long, value_name = "RANK", requires = "from")]
    pub(crate) lora: Option<NonZeroU32>,

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

    /// Measure again even if a measurement is stored
    #[arg(long)]
    pub(crate) fresh: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Plan to begin with the weights of a folder of Hugging Face transformers, or of a model of the Hugging Face
    /// Hub, such as hf:Qwen/Qwen2.5-0.5B, in place of `train.from`
    #[arg(long, value_name = "FOLDER|hf:ORG/NAME", value_hint = clap::ValueHint::AnyPath, conflicts_with = "on")]
    pub(crate) from: Option<String>,

    /// Save the plan to this file
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Number of layouts in the table [default: 5]
    #[arg(long, value_name = "N")]
    pub(crate) top: Option<usize>,

    /// Also show all figures, and what every value that was not chosen would cost
    #[arg(long, conflicts_with = "emit")]
    pub(crate) explain: bool,

    /// Also write an HTML page with charts of step time, memory and trade-offs
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,

    /// Plan for other hardware: hosts, GPUs per host and GPU type; `+` joins groups
    #[arg(long, value_name = "HOSTSxGPUS TYPE", allow_hyphen_values = true)]
    pub(crate) on: Option<String>,

    /// Engine that trains [default: that of the recipe; with --on that of --emit, otherwise megatron]
    #[arg(long, value_enum)]
    pub(crate) engine: Option<EngineName>,

    /// Network bandwidth per GPU in Gbit/s [default: typical for the GPU type]
    #[arg(long, requires = "on", value_name = "GBIT")]
    pub(crate) network: Option<f64>,

    /// Write the plan as files for another engine or launcher instead of explaining it
    #[arg(long, value_name = "NAME", value_parser = formats())]
    pub(crate) emit: Option<ConfigFormat>,

    /// Folder for the files of --emit [default: stdout, when it is one file]
    #[arg(long, value_name = "FOLDER", requires = "emit")]
    pub(crate) emit_to: Option<PathBuf>,
}

fn formats() -> impl TypedValueParser<Value = ConfigFormat> {
    let known = ConfigFormat::ALL.map(|format| PossibleValue::new(format.word()));
    // Its error names the format of today.
    let before = PossibleValue::new(ConfigFormat::FSDP).hide(true);
    PossibleValuesParser::new(known.into_iter().chain([before]))
        .try_map(|name| -> Result<ConfigFormat, EmitError> { ConfigFormat::parse(&name) })
}

/// Engine that `--engine` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// dtrain's own worker, which was never measured on a GPU
    Dtrain,
    /// Megatron-LM, NeMo, Megatron-Bridge
    Megatron,
    /// torchtitan with torch.compile
    Torchtitan,
    /// dtrain's program for PyTorch FSDP2, not compiled, never measured on a GPU
    Fsdp,
    /// Hugging Face's Trainer with FSDP2 through accelerate, not compiled
    HfTrainer,
    /// DeepSpeed ZeRO, not compiled
    Deepspeed,
    /// MaxText on JAX
    Jax,
    /// The fastest that is installed on the hosts of the recipe; not with --on
    Auto,
    /// Megatron-DeepSpeed, GPT-NeoX: known from published runs only
    #[value(hide = true)]
    MegatronDeepspeed,
}

#[derive(Args, Debug)]
pub(crate) struct EstimateArgs {
    /// CSV table of training runs, one per row; `-` reads stdin
    #[arg(value_name = "ROWS")]
    pub(crate) rows: PathBuf,

    /// Ids of rows to calibrate on; they correct rows of the same source
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub(crate) calibrate_on: Vec<String>,

    /// Print all rows and the summary of every source
    #[arg(long, conflicts_with_all = ["json", "summary"])]
    pub(crate) explain: bool,

    /// Print only the summary of every source
    #[arg(long, conflicts_with = "json")]
    pub(crate) summary: bool,
}

#[derive(Args, Debug)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Total number of trials, including those already run [default: tune.trials, 12]
    #[arg(long, value_name = "N")]
    pub(crate) trials: Option<u64>,

    /// Sampler of new settings: auto, grid, random, sobol, tpe, gaussian, cma_es, swarm, evolution
    #[arg(long, value_name = "NAME")]
    pub(crate) sampler: Option<String>,

    /// Which trials end early: none, median, asha, hyperband, threshold
    #[arg(long, value_name = "NAME")]
    pub(crate) pruner: Option<String>,

    /// Program that trains: dtrain (its own worker), torchtitan, fsdp, or auto [default: `engine` of the recipe]
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Option<String>,

    /// Trials that run side by side [default: cluster.slots, 1]
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<u32>,

    /// Train the best setting and the untuned one with this many other seeds each, and compare them
    /// [default: tune.confirm, 0]
    #[arg(long, value_name = "SEEDS")]
    pub(crate) confirm: Option<u32>,

    /// Begin no trial after this long, such as "2 h"
    #[arg(long, value_name = "TIME")]
    pub(crate) time: Option<String>,

    /// Begin a new study with what the trials of another one found
    #[arg(long, value_name = "STUDY", add = completions::study())]
    pub(crate) from: Option<String>,

    /// Steps of each trial [default: of dtrain's models a ninth of the run, at least 20; of a command its
    /// own]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..))]
    pub(crate) steps: Option<u64>,

    /// Fastest planned layouts to measure first in a new study
    #[arg(long, default_value_t = 3, value_name = "N")]
    pub(crate) layouts: usize,

    /// First try learning rates far apart for a few steps each in a new study, and search where the loss
    /// falls
    #[arg(long)]
    pub(crate) range_test: bool,

    /// Name of the study; an existing study is resumed [default: RECIPE-tune-N]
    #[arg(long, value_name = "NAME", add = completions::study())]
    pub(crate) study: Option<String>,

    /// Save the best plan to this file [default: in the state folder]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,

    /// Save a recipe with the best values to this file: it extends the given one
    #[arg(long, value_name = "FILE")]
    pub(crate) recipe_out: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A recipe (a file, `library/NAME`, or `PACKAGE/RECIPE`), or a plan saved by `dtrain plan --out`
    #[arg(value_name = "RECIPE|PLAN", default_value = "recipe.toml", add = completions::recipe())]
    pub(crate) target: String,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,

    /// Return as soon as training has started; a process in the background supervises it
    #[arg(long)]
    pub(crate) detach: bool,

    /// Name of the recipe in the history
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Number of ranks over all hosts [default: chosen by the planner]
    #[arg(long, value_name = "N")]
    pub(crate) ranks: Option<u32>,

    /// Program that trains: dtrain (its own worker), torchtitan, fsdp, or auto [default: `engine` of the recipe]
    #[arg(long, value_name = "NAME")]
    pub(crate) engine: Option<String>,

    /// Begin with the weights of a trial (its newest checkpoint, or that of a step), of a folder of Hugging Face
    /// transformers, or of a model of the Hugging Face Hub, such as hf:Qwen/Qwen2.5-0.5B
    #[arg(long, value_name = "TRIAL[@STEP]|FOLDER", add = completions::trial())]
    pub(crate) from: Option<String>,

    /// Length of the text sample after training, in tokens [default: 120]
    #[arg(long, value_name = "N", conflicts_with = "no_sample")]
    pub(crate) sample: Option<u32>,

    /// Do not generate a sample
    #[arg(long)]
    pub(crate) no_sample: bool,

    /// Run a stale plan: one whose recipe, data, host or dtrain version has changed
    #[arg(long)]
    pub(crate) stale_ok: bool,
}

//! The command line as clap reads it.

use crate::failure::exit_codes;
use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use std::path::PathBuf;

/// Trains a model as its recipe says: plans, runs, watches, and remembers.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version, max_term_width = 100, after_long_help = exit_codes(), after_help = FIRST_STEPS)]
pub(crate) struct Arguments {
    /// Print JSON on stdout; JSON Lines while training
    #[arg(long, global = true, help_heading = "Options of every command")]
    pub(crate) json: bool,

    /// Say nothing on stderr but errors
    #[arg(long, short, global = true, help_heading = "Options of every command")]
    pub(crate) quiet: bool,

    /// Folder of the history and of all trials [default: ~/.local/state/dtrain]
    #[arg(
        long,
        global = true,
        help_heading = "Options of every command",
        value_name = "FOLDER",
        env = "DTRAIN_STATE",
        hide_env_values = true
    )]
    pub(crate) state: Option<PathBuf>,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const FIRST_STEPS: &str = "First steps:
  dtrain init                  write a commented recipe
  dtrain plan recipe.toml      see how it would be trained, and how fast
  dtrain run recipe.toml       train it
  dtrain history               see what was trained";

/// What is to be done.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Write a commented recipe
    #[command(
        after_help = "Example:\n  dtrain init my-model.toml --template decoder --data \"corpus/*.txt\""
    )]
    Init(InitArgs),

    /// Check a recipe and say everything that is wrong with it
    #[command(after_help = "Example:\n  dtrain check recipe.toml --set train.batch=64")]
    Check(RecipeArgs),

    /// Print the JSON schema of recipes, for editors
    #[command(after_help = "Example:\n  dtrain schema > dtrain.schema.json")]
    Schema,

    /// Measure how fast this machine trains the model of a recipe
    #[command(after_help = "Example:\n  dtrain probe recipe.toml")]
    Probe(ProbeArgs),

    /// Choose how to train, explain the choice, and optionally save it
    #[command(after_help = "Example:\n  dtrain plan recipe.toml --out plan.json && dtrain run plan.json")]
    Plan(PlanArgs),

    /// Train what a recipe or a saved plan says
    #[command(after_help = RUN_EXAMPLE)]
    Run(RunArgs),

    /// Go on with a trial that was stopped, interrupted or lost
    #[command(after_help = "Example:\n  dtrain resume last")]
    Resume(ResumeArgs),

    /// Watch a trial that runs detached
    #[command(after_help = "Example:\n  dtrain attach last\n\nCtrl-C leaves; the trial goes on.")]
    Attach(TrialArgs),

    /// Let a running trial finish its step, save and stop
    #[command(after_help = "Example:\n  dtrain stop last")]
    Stop(TrialArgs),

    /// Print what the processes of a trial wrote to their logs
    #[command(after_help = "Example:\n  dtrain logs last --rank 0 --follow")]
    Logs(LogsArgs),

    /// List trials
    #[command(
        after_help = "Example:\n  dtrain history --where \"status=completed and batch>=32\" --by loss --limit 10"
    )]
    History(HistoryArgs),

    /// Show one trial, or every setting of a recipe and where it was said
    #[command(after_help = "Examples:\n  dtrain show last\n  dtrain show --resolved recipe.toml")]
    Show(ShowArgs),

    /// Compare two trials: what differed, and what came of it
    #[command(after_help = "Example:\n  dtrain compare tiny-1 tiny-2")]
    Compare(CompareArgs),

    /// Find, share and trust recipes
    #[command(subcommand, after_help = "Example:\n  dtrain recipe list")]
    Recipe(RecipeCommand),

    /// Use a trained model
    #[command(subcommand, after_help = "Example:\n  dtrain model sample last --prompt \"fn main\"")]
    Model(ModelCommand),

    /// Check that this machine is fit to train; each failure comes with its fix
    #[command(after_help = "Examples:\n  dtrain doctor\n  dtrain doctor train@gpu-01 gpu-02:2222")]
    Doctor {
        /// Check these hosts over SSH instead, each as host, user@host or user@host:port
        #[arg(value_name = "HOST")]
        hosts: Vec<String>,
    },

    /// Print a script that completes dtrain's commands in your shell
    #[command(
        after_help = "Example:\n  dtrain completions bash > ~/.local/share/bash-completion/completions/dtrain"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Print the manual as a man page
    #[command(after_help = "Example:\n  dtrain man run | man -l -")]
    Man {
        /// The command to describe; without one, dtrain itself
        #[arg(num_args = 0..=2)]
        command: Vec<String>,
    },

    /// The process of one rank; started by the agent
    #[command(hide = true)]
    Worker {
        #[command(subcommand)]
        part: Option<WorkerPart>,
    },

    /// The process that owns the ranks of one attempt; started by `run` and `resume`
    #[command(hide = true)]
    Agent,
}

const RUN_EXAMPLE: &str = "Examples:
  dtrain run recipe.toml
  dtrain run recipe.toml --ranks 2 --set train.seed=7 --name seven
  dtrain run plan.json --detach

Ctrl-C once finishes the step, saves and stops; twice stops at once.";

/// Other entries of a worker.
#[derive(Debug, Subcommand)]
pub(crate) enum WorkerPart {
    /// Measures
    Probe,
    /// Continues a text
    Sample,
}

/// A recipe and the layers over it.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecipeArgs {
    /// A recipe: a file, `library/NAME`, or `PACKAGE/NAME` of an added package
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

    /// Name of the recipe [default: the name of the file's folder]
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
}

#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// A recipe (a file, `library/NAME`, or `PACKAGE/NAME`), or a plan saved by `dtrain plan --out`
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

    /// Processes on this machine [default: the planner chooses]
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

#[derive(Debug, Subcommand)]
pub(crate) enum RecipeCommand {
    /// List the recipes of the library and of added packages
    #[command(after_help = "Example:\n  dtrain recipe list")]
    List,

    /// Add a package of recipes from a git repository, and pin it in dtrain.lock
    #[command(after_help = "Example:\n  dtrain recipe add https://example.org/team/recipes.git --rev v1.2")]
    Add(AddArgs),

    /// Print a recipe as it was written
    #[command(after_help = "Example:\n  dtrain recipe show library/tiny-llama > recipe.toml")]
    Show {
        /// `library/NAME` or `PACKAGE/NAME`
        name: String,
    },

    /// Take the newest version of one package, or of all
    #[command(after_help = "Example:\n  dtrain recipe update team")]
    Update {
        /// The package; without one, all
        package: Option<String>,

        /// Fetch also from repositories on this machine
        #[arg(long)]
        allow_file: bool,
    },

    /// Check that packages are what dtrain.lock says; fetch those that are missing
    #[command(after_help = "Example:\n  dtrain recipe verify")]
    Verify {
        /// Fetch also from repositories on this machine
        #[arg(long)]
        allow_file: bool,
    },

    /// Commit a recipe to a branch of a git repository, and push it
    #[command(after_help = "Example:\n  dtrain recipe publish recipe.toml --repository ../recipes")]
    Publish(PublishArgs),

    /// Let the recipes of a package run the programs they name
    #[command(after_help = "Example:\n  dtrain recipe trust team")]
    Trust {
        /// The package
        package: String,
    },

    /// Print every key that a recipe may have
    #[command(after_help = "Example:\n  dtrain recipe keys")]
    Keys,
}

#[derive(Args, Debug)]
pub(crate) struct AddArgs {
    /// The repository: https, ssh, or with --allow-file a folder
    pub(crate) url: String,

    /// Name of the package [default: the last part of the address]
    #[arg(long)]
    pub(crate) name: Option<String>,

    /// Tag, branch or commit to follow [default: the default branch]
    #[arg(long)]
    pub(crate) rev: Option<String>,

    /// Fetch also from repositories on this machine
    #[arg(long)]
    pub(crate) allow_file: bool,
}

#[derive(Args, Debug)]
pub(crate) struct PublishArgs {
    /// The recipe
    #[arg(default_value = "recipe.toml")]
    pub(crate) recipe: PathBuf,

    /// The repository; its work tree is not touched
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) repository: PathBuf,

    /// Branch that gets the commit [default: recipes/NAME]
    #[arg(long)]
    pub(crate) branch: Option<String>,

    /// Text of the commit
    #[arg(long)]
    pub(crate) message: Option<String>,

    /// Remote that the branch is pushed to, where there is one of this name
    #[arg(long, default_value = "origin")]
    pub(crate) remote: String,

    /// Push also to a repository on this machine
    #[arg(long)]
    pub(crate) allow_file: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_command_shows_an_example() {
        fn look(command: &clap::Command, path: &str) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                let path = format!("{path} {}", sub.get_name());
                let help = sub.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("Example") && help.contains("dtrain "), "{path} has no example");
                look(sub, &path);
            }
        }
        look(&Arguments::command(), "dtrain");
    }
}

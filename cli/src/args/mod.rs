//! The command line as clap reads it.

mod checkpoint;
mod model;
mod recipe;
mod train;
mod trial;

pub(crate) use checkpoint::{CheckpointCommand, PullArgs, VerifyArgs};
pub(crate) use model::{ModelCommand, SampleArgs};
pub(crate) use recipe::{AddArgs, PublishArgs, RecipeCommand};
pub(crate) use train::{
    EngineStyle, EstimateArgs, InitArgs, LayerArgs, PlanArgs, ProbeArgs, RecipeArgs, RunArgs, TuneArgs,
};
pub(crate) use trial::{CompareArgs, HistoryArgs, LogsArgs, NoteArgs, ResumeArgs, ShowArgs, TrialArgs};

use crate::failure::exit_codes;
use clap::{Parser, Subcommand};
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

const PLAN_EXAMPLE: &str = "Examples:
  dtrain plan recipe.toml --out plan.json && dtrain run plan.json
  dtrain plan examples/llama-405b/recipe.toml --on \"2048x8 H100-SXM-80GB\"
  dtrain plan recipe.toml --html plan.html
  dtrain plan recipe.toml --emit torchtitan --emit-to titan";

const ESTIMATE_EXAMPLE: &str = "Example:
  dtrain estimate examples/published/rows.csv

The columns and what a blank cell means: docs/estimate.md. The formulas: docs/cost-model.md.";

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
    #[command(after_help = PLAN_EXAMPLE)]
    Plan(PlanArgs),

    /// Estimate what given trainings cost, from data sheets alone, beside what was measured
    #[command(after_help = ESTIMATE_EXAMPLE)]
    Estimate(EstimateArgs),

    /// Train what a recipe or a saved plan says
    #[command(after_help = RUN_EXAMPLE)]
    Run(RunArgs),

    /// Search the learning rate, and what else is left open, over short trials
    #[command(after_help = TUNE_EXAMPLE)]
    Tune(TuneArgs),

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
    #[command(after_help = HISTORY_EXAMPLE)]
    History(HistoryArgs),

    /// Show one trial, or every setting of a recipe and where it was said
    #[command(after_help = "Examples:\n  dtrain show last\n  dtrain show --resolved recipe.toml")]
    Show(ShowArgs),

    /// Compare two trials: what differed, and what came of it
    #[command(after_help = "Example:\n  dtrain compare tiny-1 tiny-2")]
    Compare(CompareArgs),

    /// Write a note to a trial, or tag it
    #[command(
        override_usage = "dtrain note [OPTIONS] <TRIAL> [TEXT]",
        after_help = "Examples:\n  dtrain note last \"the warm-up was too short\"\n  dtrain note tiny-3 --tag keep --tag figure=2\n  \
                      dtrain history --where tag=keep"
    )]
    Note(NoteArgs),

    /// List, verify and copy checkpoints
    #[command(subcommand, after_help = "Example:\n  dtrain checkpoint ls last")]
    Checkpoint(CheckpointCommand),

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
    Agent {
        /// Do on this host what a controller elsewhere asks over standard input
        #[arg(long)]
        stdio: bool,

        /// State folder that all hosts see, where checkpoints are kept
        #[arg(long, value_name = "FOLDER", requires = "stdio")]
        shared: Option<PathBuf>,

        /// Print the blake3 of this program
        #[arg(long, conflicts_with = "stdio")]
        digest: bool,
    },
}

const HISTORY_EXAMPLE: &str = "Example:
  dtrain history --where \"status=completed and batch>=32\" --by loss --limit 10

Conditions are about recipe, study, status or tag, about batch, learning_rate, best, loss, step or
tokens_per_second, about a key of the recipe or the plan, or about a figure, of which the smallest
value counts.";

const TUNE_EXAMPLE: &str = "Examples:
  dtrain tune recipe.toml --trials 12 --out tuned.json && dtrain run tuned.json
  dtrain tune recipe.toml --study recipe-tune-1 --trials 20    go on with a study

Each trial is a complete short training with a warm-up and a decay of its own. The rate is
searched within the plan's range unless the recipe says `learning_rate = { log = [1e-4, 1e-2] }`;
batch, warm-up and precision where it says `{ choices = [..] }` or `{ log = [..] }`. Ctrl-C stops
after saving; the same command with --study goes on, to the same end.";

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

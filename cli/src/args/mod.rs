//! Command line: all subcommands and flags, parsed by clap.

mod checkpoint;
mod data;
mod doctor;
mod engine;
mod examples;
mod export;
mod hosts;
mod model;
mod recipe;
mod train;
mod trial;
mod worker;

pub(crate) use checkpoint::{CheckpointCommand, PullArgs, VerifyArgs};
pub(crate) use data::DataArgs;
pub(crate) use doctor::{DeviceChoice, DoctorArgs, ModelChoice, PartChoice, PrecisionChoice};
pub(crate) use engine::{EngineCommand, EngineInstallArgs, EngineListArgs};
pub(crate) use export::{AttemptChoice, ExportArgs, ExportFormat};
pub(crate) use hosts::{DrainArgs, HostsCommand};
pub(crate) use model::{
    EvaluateArgs, GgufWeights, ModelCommand, ModelExportArgs, ModelFormat, PredictArgs, SampleArgs,
};
pub(crate) use recipe::{AddArgs, PublishArgs, RecipeCommand};
pub(crate) use train::{
    CheckArgs, EngineName, EstimateArgs, InitArgs, LayerArgs, PlanArgs, ProbeArgs, RecipeArgs,
    RecipeTemplate, RunArgs, TuneArgs,
};
pub(crate) use trial::{
    AuditArgs, CompareArgs, FenceArgs, GcArgs, HistoryArgs, HistoryCommand, HistoryExportArgs,
    HistoryImportArgs, LogsArgs, NoteArgs, ReportArgs, ResumeArgs, RmArgs, RunningArgs, ShowArgs, TrialArgs,
    WatchArgs,
};
pub(crate) use worker::WorkerPart;

use crate::exit_code::exit_codes;
use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use examples::{
    CHECK_EXAMPLE, DATA_EXAMPLE, DOCTOR_EXAMPLE, DRAIN_EXAMPLE, ESTIMATE_EXAMPLE, EXPORT_EXAMPLE,
    FENCE_EXAMPLE, GC_EXAMPLE, HISTORY_EXAMPLE, HOSTS_EXAMPLE, PLAN_EXAMPLE, REPORT_EXAMPLE, RM_EXAMPLE,
    RUN_EXAMPLE, TUNE_EXAMPLE, WATCH_EXAMPLE,
};
use std::path::{Path, PathBuf};

/// Plans and runs training from a recipe, recovers from failures, and records every trial.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version, max_term_width = 100, after_long_help = exit_codes(), after_help = FIRST_STEPS)]
pub(crate) struct Arguments {
    /// Print JSON to stdout; JSON Lines during training
    #[arg(long, global = true, help_heading = "Options of every command")]
    pub(crate) json: bool,

    /// Print only errors to stderr
    #[arg(long, short, global = true, help_heading = "Options of every command")]
    pub(crate) quiet: bool,

    /// Folder for the history and all trials [default: ~/.local/state/dtrain]
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
    pub(crate) command: CommandArgs,
}

const FIRST_STEPS: &str = "First steps:
  dtrain init                  write a commented recipe
  dtrain plan recipe.toml      show how it would be trained, and how fast
  dtrain run recipe.toml       train it
  dtrain history               list past trials";

/// Subcommands of `dtrain` with their arguments.
#[derive(Debug, Subcommand)]
pub(crate) enum CommandArgs {
    /// Write a commented recipe
    #[command(
        after_help = "Example:\n  dtrain init my-model.toml --template decoder --data \"corpus/*.txt\""
    )]
    Init(InitArgs),

    /// Check a recipe and report every problem in it
    #[command(after_help = CHECK_EXAMPLE)]
    Check(CheckArgs),

    /// Show what is in the data of a recipe, and tokenize it
    #[command(after_help = DATA_EXAMPLE)]
    Data(DataArgs),

    /// Print the JSON schema of recipes, for editors
    #[command(after_help = "Example:\n  dtrain schema > dtrain.schema.json")]
    Schema,

    /// Measure how fast this machine trains a recipe's model
    #[command(after_help = "Example:\n  dtrain probe recipe.toml")]
    Probe(ProbeArgs),

    /// Choose a layout and training settings, explain the choice, and optionally save it
    #[command(after_help = PLAN_EXAMPLE)]
    Plan(PlanArgs),

    /// Estimate the cost of given runs from data sheets and compare it with measurements
    #[command(after_help = ESTIMATE_EXAMPLE)]
    Estimate(EstimateArgs),

    /// Train a recipe or a saved plan
    #[command(after_help = RUN_EXAMPLE)]
    Run(RunArgs),

    /// Search the learning rate and other open settings with short trials
    #[command(after_help = TUNE_EXAMPLE)]
    Tune(TuneArgs),

    /// Resume a trial that was stopped, interrupted or lost
    #[command(after_help = "Example:\n  dtrain resume last")]
    Resume(ResumeArgs),

    /// Attach to a running trial and show its progress
    #[command(after_help = "Example:\n  dtrain attach\n\nCtrl-C detaches; the trial keeps running.")]
    Attach(RunningArgs),

    /// Watch a trial, a study, or everything that runs, on the whole screen
    #[command(after_help = WATCH_EXAMPLE)]
    Watch(WatchArgs),

    /// Stop a running trial after its current step and a checkpoint
    #[command(after_help = "Example:\n  dtrain stop")]
    Stop(RunningArgs),

    /// Let running trials save and go on without a host, and use it no more
    #[command(after_help = DRAIN_EXAMPLE)]
    Drain(DrainArgs),

    /// Count a host as lost, so that a trial continues without it
    #[command(after_help = FENCE_EXAMPLE)]
    Fence(FenceArgs),

    /// Print the logs of a trial's processes
    #[command(after_help = "Example:\n  dtrain logs last --rank 0 --follow")]
    Logs(LogsArgs),

    /// List trials
    #[command(after_help = HISTORY_EXAMPLE)]
    History(HistoryArgs),

    /// Show one trial, or every setting of a recipe and where it was set
    #[command(after_help = "Examples:\n  dtrain show last\n  dtrain show --resolved recipe.toml")]
    Show(ShowArgs),

    /// Compare the settings and results of two trials
    #[command(after_help = "Example:\n  dtrain compare tiny-1 tiny-2")]
    Compare(CompareArgs),

    /// Write trials for other tools: TensorBoard, MLflow, W&B, Prometheus, tables
    #[command(after_help = EXPORT_EXAMPLE)]
    Export(ExportArgs),

    /// Write a report of a trial, of several side by side, or of a study, as one HTML file
    #[command(after_help = REPORT_EXAMPLE)]
    Report(ReportArgs),

    /// Print who ran, stopped or killed what, and where
    #[command(after_help = "Examples:\n  dtrain audit --since 7d\n  dtrain audit last --json")]
    Audit(AuditArgs),

    /// Add a note or tags to a trial
    #[command(
        override_usage = "dtrain note [OPTIONS] <TRIAL> [TEXT]",
        after_help = "Examples:\n  dtrain note last \"the warm-up was too short\"\n  dtrain note tiny-3 --tag keep --tag figure=2\n  \
                      dtrain history --where tag=keep"
    )]
    Note(NoteArgs),

    /// Remove trials: their history, logs and checkpoints
    #[command(after_help = RM_EXAMPLE)]
    Rm(RmArgs),

    /// Remove what nothing needs any more
    #[command(after_help = GC_EXAMPLE)]
    Gc(GcArgs),

    /// List, verify and copy checkpoints
    #[command(subcommand, after_help = "Example:\n  dtrain checkpoint ls last")]
    Checkpoint(CheckpointCommand),

    /// Find, share and trust recipes
    #[command(subcommand, after_help = "Example:\n  dtrain recipe list")]
    Recipe(RecipeCommand),

    /// Use a trained model
    #[command(
        subcommand,
        after_help = "Examples:\n  dtrain model sample last --prompt \"fn main\"\n  \
                                  dtrain model predict last new.csv\n  dtrain model evaluate last"
    )]
    Model(ModelCommand),

    /// Install PyTorch engines such as torchtitan, and show what is installed
    #[command(subcommand, after_help = "Example:\n  dtrain engine install torchtitan")]
    Engine(EngineCommand),

    /// Check that this machine can train; each failed check names a fix
    #[command(after_help = DOCTOR_EXAMPLE)]
    Doctor(DoctorArgs),

    /// List the hosts that were used, what is held against them, and which are left out
    #[command(after_help = HOSTS_EXAMPLE)]
    Hosts {
        #[command(subcommand)]
        command: Option<HostsCommand>,
    },

    /// Print a shell completion script
    #[command(
        after_help = "Example:\n  dtrain completions bash > ~/.local/share/bash-completion/completions/dtrain\n\nThe script asks dtrain for trials, studies, recipes, packages and keys."
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

        /// Number of the open file that its messages go to
        #[arg(long, value_name = "NUMBER", global = true)]
        channel: Option<i32>,
    },

    /// The controller of a trial in the background; started by `run --detach`
    #[command(hide = true)]
    Supervise {
        /// Id of the trial
        #[arg(value_name = "ID")]
        trial: String,
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

        /// Print the BLAKE3 digest of this program
        #[arg(long, conflicts_with = "stdio")]
        digest: bool,

        /// Number of the open file that its answers go to
        #[arg(long, value_name = "NUMBER", conflicts_with_all = ["stdio", "digest"])]
        channel: Option<i32>,
    },
}

/// Subcommands whose `--json` output is JSON Lines.
const OF_LINES: [&str; 7] = ["run", "resume", "attach", "stop", "tune", "logs", "estimate"];

impl CommandArgs {
    /// Returns `true` if the command needs a valid state folder. `doctor` uses the state folder too, but
    /// reports its problems itself.
    pub(crate) fn uses_state(&self) -> bool {
        !matches!(
            self,
            Self::Doctor(_)
                | Self::Init(_)
                | Self::Check(_)
                | Self::Recipe(_)
                | Self::Schema
                | Self::Completions { .. }
                | Self::Man { .. }
        )
    }

    /// Returns the files and folders that the command's options tell it to write.
    pub(crate) fn outputs(&self) -> Vec<&Path> {
        let all = match self {
            Self::Plan(args) => vec![&args.out, &args.html, &args.emit_to],
            Self::Tune(args) => vec![&args.out, &args.recipe_out],
            Self::Report(args) => vec![&args.out],
            Self::Export(args) => vec![&args.out],
            Self::Doctor(args) => vec![&args.output],
            Self::Model(ModelCommand::Predict(args)) => vec![&args.output],
            Self::Model(ModelCommand::Export(args)) => return vec![&args.out],
            Self::Checkpoint(CheckpointCommand::Pull(args)) => return vec![&args.to],
            Self::History(HistoryArgs { command: Some(HistoryCommand::Export(args)), .. }) => {
                return vec![&args.to];
            }
            _ => Vec::new(),
        };
        all.into_iter().flatten().map(PathBuf::as_path).collect()
    }

    /// Returns `true` if the command's JSON output is JSON Lines.
    pub(crate) fn prints_lines(&self) -> bool {
        matches!(
            self,
            Self::Run(_)
                | Self::Resume(_)
                | Self::Attach(_)
                | Self::Stop(_)
                | Self::Tune(_)
                | Self::Logs(_)
                | Self::Estimate(_)
                | Self::Model(ModelCommand::Predict(_))
        )
    }
}

/// Returns the definition of the command line without the hidden internal commands.
pub(crate) fn visible() -> clap::Command {
    let all = Arguments::command();
    let shown = all.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    clap::Command::new("dtrain")
        .version(env!("CARGO_PKG_VERSION"))
        .args(all.get_arguments().cloned())
        .subcommands(shown)
}

/// Returns two facts about a command line that clap rejected: it asks for JSON, and its JSON would be JSON
/// Lines.
pub(crate) fn json_asked<'a>(words: impl Iterator<Item = &'a std::ffi::OsStr>) -> (bool, bool) {
    let words: Vec<&std::ffi::OsStr> = words.take_while(|word| *word != "--").collect();
    let is_lines = words.iter().find_map(|word| {
        let word = word.to_str()?;
        Arguments::command().find_subcommand(word).map(|_| OF_LINES.contains(&word))
    });
    (words.iter().any(|word| *word == "--json"), is_lines.unwrap_or(false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn json_is_asked_for_by_words_that_clap_cannot_read() {
        let asked = |line: &str| json_asked(line.split(' ').map(std::ffi::OsStr::new));
        assert_eq!(asked("runn --json"), (true, false));
        assert_eq!(asked("--json run --rank x"), (true, true));
        assert_eq!(asked("--quiet show -- --json"), (false, false));
    }

    #[test]
    fn commands_of_lines_are_those_that_are_listed() {
        let lines = |words: &str| {
            let words = std::iter::once("dtrain").chain(words.split(' '));
            Arguments::try_parse_from(words).map(|args| args.command.prints_lines())
        };
        assert_eq!(lines("estimate rows.csv").ok(), Some(true));
        for sub in Arguments::command().get_subcommands() {
            if let Ok(is_lines) = lines(sub.get_name()) {
                assert_eq!(is_lines, OF_LINES.contains(&sub.get_name()), "{}", sub.get_name());
            }
        }
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

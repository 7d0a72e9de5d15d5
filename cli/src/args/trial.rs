//! Arguments of commands that take trials.

use super::LayerArgs;
use crate::completions;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Subcommand, ValueHint};
use dtrain_protocol::bundle::LONGEST_NOTE;
use std::path::PathBuf;

/// Maximum length of a tag's name, in bytes.
const LONGEST_TAG_NAME: usize = 256;

/// Argument that names a trial.
#[derive(Args, Clone, Debug)]
pub(crate) struct TrialArgs {
    /// A trial: its name, the beginning of its id, or `last`
    #[arg(value_name = "TRIAL", default_value = "last", add = completions::trial())]
    pub(crate) trial: String,
}

/// Argument that names a running trial.
#[derive(Args, Clone, Debug)]
pub(crate) struct RunningArgs {
    /// A trial: its name, the beginning of its id, or `last` [default: the one that runs]
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct WatchArgs {
    /// A trial or a study by name, the beginning of a trial's id, or `last`; without one, what runs is listed
    #[arg(value_name = "TRIAL|STUDY", add = completions::trial_or_study())]
    pub(crate) name: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct ResumeArgs {
    /// A trial: its name, the beginning of its id, or `last`; TRIAL@STEP continues from that checkpoint, as a
    /// new trial
    #[command(flatten)]
    pub(crate) trial: TrialArgs,

    /// Settings that differ: training continues as a new trial
    #[command(flatten)]
    pub(crate) layers: LayerArgs,

    /// Continue although the data has changed, with the data as it is now, as a new trial
    #[arg(long)]
    pub(crate) accept_data: bool,

    /// Return as soon as training has started; a process in the background supervises it
    #[arg(long)]
    pub(crate) detach: bool,
}

#[derive(Args, Debug)]
pub(crate) struct FenceArgs {
    /// A trial: its name, the beginning of its id, or `last`
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: String,

    /// The host, as the recipe names it
    #[arg(value_name = "HOST")]
    pub(crate) host: String,

    /// Let the host be used again
    #[arg(long)]
    pub(crate) lift: bool,
}

#[derive(Args, Debug)]
pub(crate) struct AuditArgs {
    /// Only this trial: its name, its id or the beginning of it, or `last`
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: Option<String>,

    /// Only what was done within this time, such as 12h, 7d or 2w
    #[arg(long, value_name = "TIME")]
    pub(crate) since: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct LogsArgs {
    /// A trial: its name, the beginning of its id, or `last` [default: with --follow the one that runs,
    /// otherwise `last`]
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: Option<String>,

    /// Only this rank
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u32>,

    /// Keep printing new output until the trial ends
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Args, Debug)]
pub(crate) struct RmArgs {
    /// Trials: their names, the beginnings of their ids, or `last`
    #[arg(value_name = "TRIAL", required = true, add = completions::trial())]
    pub(crate) trials: Vec<String>,

    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
pub(crate) struct GcArgs {
    /// Show what would be removed, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Keep what `dtrain logs` prints of the newest N trials
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) keep_last: usize,

    /// Also remove folders of trials that the history does not know; they may be the only copy of their
    /// checkpoints
    #[arg(long)]
    pub(crate) orphans: bool,

    /// Do not ask
    #[arg(long, short, requires = "orphans")]
    pub(crate) yes: bool,
}

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct HistoryArgs {
    #[command(subcommand)]
    pub(crate) command: Option<HistoryCommand>,

    /// Only trials that meet these conditions, joined by `and`, such as `status=completed and batch>=32`
    #[arg(long = "where", value_name = "CONDITIONS")]
    pub(crate) condition: Option<String>,

    /// Sort by `newest`, `best`, `fastest`, or a number that --where compares, such as `valid.loss`
    #[arg(long, value_name = "ORDER")]
    pub(crate) by: Option<String>,

    /// Trials per page
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: u32,

    /// Page number, from 1
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) page: u32,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HistoryCommand {
    /// Write trials into a bundle: one file for other machines
    #[command(after_help = EXPORT_EXAMPLE)]
    Export(HistoryExportArgs),

    /// Merge bundles of other machines into the history
    #[command(after_help = IMPORT_EXAMPLE)]
    Import(HistoryImportArgs),
}

const EXPORT_EXAMPLE: &str = "Examples:
  dtrain history export --to shared/
  dtrain history export --to best.dtrain --where \"recipe=gpt and valid.loss<3\"
  dtrain history export --to two.dtrain gpt-3 gpt-7

A bundle has settings, facts, all points, notes, tags and studies of its trials, and no checkpoints.
In a folder each machine writes a file of its own, so that a team can share one.";

const IMPORT_EXAMPLE: &str = "Examples:
  dtrain history import shared/
  dtrain history import best.dtrain

A merge loses nothing and may be repeated. Imported trials can be listed, shown and compared, and
are not resumed: their checkpoints stay where they were trained.";

#[derive(Args, Debug)]
pub(crate) struct HistoryExportArgs {
    /// File to write, or folder, which gets a file for this machine
    #[arg(long, value_name = "FILE|FOLDER", value_hint = ValueHint::AnyPath)]
    pub(crate) to: PathBuf,

    /// Trials [default: all]
    #[arg(value_name = "TRIAL", conflicts_with = "condition", add = completions::trial())]
    pub(crate) trials: Vec<String>,

    /// Only trials that meet these conditions, as for `dtrain history`
    #[arg(long = "where", value_name = "CONDITIONS")]
    pub(crate) condition: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct HistoryImportArgs {
    /// Bundles, or folders that hold them as `*.dtrain`
    #[arg(value_name = "FILE|FOLDER", required = true, value_hint = ValueHint::AnyPath)]
    pub(crate) bundles: Vec<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// A trial: its name, the beginning of its id, or `last`; with --resolved a recipe
    #[arg(value_name = "TRIAL|RECIPE", add = completions::trial_or_recipe())]
    pub(crate) what: Option<String>,

    /// Show every setting of a recipe and where it was set
    #[arg(long)]
    pub(crate) resolved: bool,

    /// Also show parameters that were left at their defaults
    #[arg(long, conflicts_with = "resolved")]
    pub(crate) all: bool,

    /// With --json: also the points of the series with these keys, separated by commas; `all` for every
    /// series
    #[arg(long, value_name = "KEYS", value_delimiter = ',', requires = "json", conflicts_with = "resolved")]
    pub(crate) series: Vec<String>,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

/// Arguments of `dtrain note`: a text, tags, or both.
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("said").required(true).multiple(true))]
pub(crate) struct NoteArgs {
    /// A trial: its name, the beginning of its id, or `last`
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trial: String,

    /// Text of the note
    #[arg(value_name = "TEXT", group = "said", value_parser = parse_note)]
    pub(crate) text: Option<String>,

    /// Add a tag, for `dtrain history --where tag=NAME`; repeatable
    #[arg(long, value_name = "NAME[=VALUE]", group = "said", value_parser = parse_tag)]
    pub(crate) tag: Vec<(String, String)>,

    /// Remove a tag; repeatable
    #[arg(long, value_name = "NAME", group = "said", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) untag: Vec<String>,
}

/// Parses the text of a note, which must not be empty, and short enough for a bundle.
fn parse_note(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("a note has at least one character".to_owned());
    }
    check_length("a note", text, LONGEST_NOTE)?;
    Ok(text.to_owned())
}

fn check_length(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    Err(format!("{what} has at most {most} bytes, not {}", text.len()))
}

/// Parses a tag as name and value; one without a value gets the value `yes`.
fn parse_tag(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').unwrap_or((text, "yes"));
    let is_plain = |c: char| c.is_alphanumeric() || "_-.".contains(c);
    if name.is_empty() || !name.chars().all(is_plain) {
        return Err(format!("a tag's name has letters, digits, `_`, `-` and `.` only, not {name:?}"));
    }
    if value.is_empty() {
        return Err(format!("`--untag {name}` removes a tag"));
    }
    check_length("a tag's name", name, LONGEST_TAG_NAME)?;
    check_length("a tag's value", value, LONGEST_NOTE)?;
    Ok((name.to_owned(), value.to_owned()))
}

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// A trial
    #[arg(add = completions::trial())]
    pub(crate) a: String,

    /// Trial to compare with
    #[arg(add = completions::trial())]
    pub(crate) b: String,

    /// Also show what is equal
    #[arg(long)]
    pub(crate) all: bool,

    /// Show the diff of their code
    #[arg(long)]
    pub(crate) code: bool,

    /// Print comma-separated values
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// A trial, or several to compare: their names, the beginnings of their ids, or `last` [default: last]
    #[arg(value_name = "TRIAL", add = completions::trial())]
    pub(crate) trials: Vec<String>,

    /// Report on this study
    #[arg(long, value_name = "NAME", conflicts_with = "trials", add = completions::study())]
    pub(crate) study: Option<String>,

    /// Write to this file [default: named after the trial or the study, in this folder]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

//! `dtrain export`: writes trials in the formats of other tools.

mod metrics_collector;
mod serve;

use crate::args::{AttemptChoice, ExportArgs, ExportFormat};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::render::number::counted;
use crate::run_trial::record_finished_trials;
use crate::series::matching_keys;
use crate::trials::{self, history_failure};
use dtrain_recipes::name::file_name;
use dtrain_runner::export::{
    self, AttemptSelection, ExportError, OutputFormat, TrialSelection, WriteProgress, WrittenFiles,
};
use dtrain_runner::ledger::{Filter, History, Pagination, Sort, TrialRow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes trials in the format of another tool.
pub(crate) fn run(context: &Context, args: &ExportArgs) -> CommandResult {
    let Some(format) = format(args.to) else { return serve::run(context, args) };
    if args.listen.is_some() {
        return Err(CommandError::new(ExitReason::Usage, "`--listen` is for `--to prometheus`"));
    }
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let trials = selected_trials(context, &history, args)?;
    let keys = matching_keys(&history, &trials, &args.keys)?;
    let attempts = args.attempt.map_or(format.attempts(), |which| match which {
        AttemptChoice::All => AttemptSelection::All,
        AttemptChoice::Last => AttemptSelection::Last,
    });
    let to = args.out.clone().unwrap_or_else(|| default_place(format, args, &trials));
    let request = TrialSelection { history: &history, trials, keys, attempts, force: args.force };
    if to == Path::new("-") {
        return print(context, &request, format);
    }
    let bar = bar(context);
    let written = export::export(&request, format, &to, &mut |advance| show(&bar, advance));
    bar.finish_and_clear();
    let written = written.map_err(|error| export_failed(&error))?;
    if context.out.json {
        context.out.json("export", &written)?;
    } else {
        context.out.say(&summary_line(&written));
    }
    context.out.next(&next_command(format, &to));
    Ok(ExitReason::Done)
}

/// Returns the output format; `None` for Prometheus, which fetches a page instead of reading files.
fn format(to: ExportFormat) -> Option<OutputFormat> {
    match to {
        ExportFormat::Tensorboard => Some(OutputFormat::TensorBoard),
        ExportFormat::Mlflow => Some(OutputFormat::MlFlow),
        ExportFormat::Wandb => Some(OutputFormat::Wandb),
        ExportFormat::Csv => Some(OutputFormat::Csv),
        ExportFormat::Jsonl => Some(OutputFormat::JsonLines),
        ExportFormat::Parquet => Some(OutputFormat::Parquet),
        ExportFormat::Prometheus => None,
    }
}

/// Returns the trials named on the command line, or those selected by `--study` and `--where`, oldest first.
fn selected_trials(
    context: &Context,
    history: &History,
    args: &ExportArgs,
) -> Result<Vec<TrialRow>, CommandError> {
    if args.study.is_none() && args.condition.is_none() {
        let last = [String::from("last")];
        let names = if args.trials.is_empty() { &last[..] } else { &args.trials };
        let mut found: Vec<TrialRow> = Vec::new();
        for name in names {
            let row = trials::trial(context, history, name)?.row;
            if found.iter().all(|known| known.id != row.id) {
                found.push(row);
            }
        }
        return Ok(found);
    }
    let mut found = filtered(context, history, args)?;
    found.reverse();
    if found.is_empty() {
        return Err(CommandError::new(ExitReason::Usage, "no trial matches")
            .hint("`dtrain history` lists all trials"));
    }
    Ok(found)
}

/// Returns the trials that match `--study` and `--where`, newest first.
fn filtered(context: &Context, history: &History, args: &ExportArgs) -> Result<Vec<TrialRow>, CommandError> {
    let names = history.names().map_err(|error| history_failure(&error))?;
    let mut filter = match &args.condition {
        Some(text) => {
            Filter::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Filter::default(),
    };
    if args.study.is_some() {
        filter.study.clone_from(&args.study);
    }
    let activity = |id: &_| trials::activity(context, id);
    let rows = history.trials(&filter, &Sort::Newest, Pagination::default(), &activity);
    rows.map_err(|error| history_failure(&error))
}

/// Returns the default output path for a format.
fn default_place(format: OutputFormat, args: &ExportArgs, trials: &[TrialRow]) -> PathBuf {
    let name = match (&args.study, trials) {
        (Some(study), _) => file_name(study),
        (None, [only]) => file_name(&only.label),
        (None, _) => "trials".to_owned(),
    };
    match format {
        OutputFormat::TensorBoard => "runs".into(),
        OutputFormat::MlFlow => "mlflow.db".into(),
        OutputFormat::Wandb => "wandb".into(),
        OutputFormat::Csv => format!("{name}.csv").into(),
        OutputFormat::JsonLines => format!("{name}.jsonl").into(),
        OutputFormat::Parquet => format!("{name}.parquet").into(),
    }
}

/// Prints the exported trials to stdout.
fn print(context: &Context, request: &TrialSelection<'_>, format: OutputFormat) -> CommandResult {
    if !matches!(format, OutputFormat::Csv | OutputFormat::JsonLines) {
        return Err(CommandError::new(
            ExitReason::Usage,
            "only csv, jsonl and prometheus can be printed with `--out -`",
        ));
    }
    if context.out.json {
        return Err(CommandError::new(
            ExitReason::Usage,
            "`--out -` prints the export itself, and `--json` prints about it",
        ));
    }
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let printed = export::print(request, format, &mut stdout, &mut |_| {});
    let printed = printed
        .and_then(|()| stdout.flush().map_err(|source| ExportError::Write { path: "stdout".into(), source }));
    match printed {
        Err(ExportError::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            // Dropping the buffer would report the same error again.
            drop(stdout.into_parts());
            Err(CommandError::closed_pipe())
        }
        printed => printed.map(|()| ExitReason::Done).map_err(|error| export_failed(&error)),
    }
}

fn export_failed(error: &ExportError) -> CommandError {
    match error {
        ExportError::Ledger(error) => history_failure(error),
        ExportError::Exists(_) => CommandError::of(ExitReason::Usage, error)
            .hint("`--force` replaces it; `--out PATH` writes to another place"),
        ExportError::Foreign { .. } => CommandError::of(ExitReason::Usage, error)
            .hint("move it away, or write to another place with `--out PATH`"),
        ExportError::NoStore { .. } => {
            CommandError::of(ExitReason::Usage, error).hint("`--out PATH` writes to another place")
        }
        ExportError::Write { .. } | ExportError::Database { .. } => {
            CommandError::of(ExitReason::Infrastructure, error)
        }
    }
}

fn bar(context: &Context) -> ProgressBar {
    if !context.out.draws() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("  {bar:30} {pos}/{len} series   {msg}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, advance: WriteProgress) {
    bar.set_length(advance.of);
    bar.set_position(advance.series);
    bar.set_message(counted(advance.points, "point"));
}

fn summary_line(written: &WrittenFiles) -> String {
    let total = |of: fn(&export::WrittenRun) -> u64| written.runs.iter().map(of).sum::<u64>();
    let trials: BTreeSet<_> = written.runs.iter().map(|run| &run.trial).collect();
    format!(
        "wrote {} of {} series in {} to {}",
        counted(total(|run| run.points), "point"),
        total(|run| run.series),
        counted(trials.len() as u64, "trial"),
        written.path.display()
    )
}

/// Returns the command with which the user opens the exported files.
fn next_command(format: OutputFormat, to: &Path) -> String {
    let path = shell_quoted(to.display());
    match format {
        OutputFormat::TensorBoard => format!("tensorboard --logdir {path}"),
        OutputFormat::MlFlow => format!("mlflow ui --backend-store-uri sqlite:///{path}"),
        OutputFormat::Wandb => format!("wandb sync {path}/offline-run-*"),
        OutputFormat::Csv | OutputFormat::JsonLines => format!("head {path}"),
        OutputFormat::Parquet => {
            format!("python3 -c \"import pandas; print(pandas.read_parquet('{path}'))\"")
        }
    }
}

//! `dtrain export`.

mod live;
mod serve;

use crate::args::{AttemptChoice, ExportArgs, ExportFormat};
use crate::context::Context;
use crate::drive::catch_up;
use crate::failure::{Exit, Failure, Outcome};
use crate::names::file_name;
use crate::output::word;
use crate::render::number::counted;
use crate::trials::{self, ledger};
use dtrain_runner::export::{self, Advance, Attempts, ExportError, Format, Request, Written};
use dtrain_runner::ledger::{Filter, History, Page, Sort, Trial};
use glob::Pattern;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes trials for another tool.
pub(crate) fn run(context: &Context, args: &ExportArgs) -> Outcome {
    let Some(format) = format(args.to) else { return serve::run(context, args) };
    if args.listen.is_some() {
        return Err(Failure::new(Exit::Usage, "`--listen` is for `--to prometheus`"));
    }
    catch_up(context);
    let history = trials::read_history(context)?;
    let trials = wanted(context, &history, args)?;
    let keys = keys(&history, &trials, &args.keys)?;
    let attempts = args.attempt.map_or(format.attempts(), |which| match which {
        AttemptChoice::All => Attempts::All,
        AttemptChoice::Last => Attempts::Last,
    });
    let to = args.out.clone().unwrap_or_else(|| default_place(format, args, &trials));
    let request = Request { history: &history, trials, keys, attempts, force: args.force };
    if to == Path::new("-") {
        return print(context, &request, format);
    }
    let bar = bar(context);
    let written = export::export(&request, format, &to, &mut |advance| show(&bar, advance));
    bar.finish_and_clear();
    let written = written.map_err(|error| failed(&error))?;
    if context.out.json {
        context.out.json("export", &written)?;
    } else {
        context.out.say(&said(&written));
    }
    context.out.next(&next(format, &to));
    Ok(Exit::Done)
}

/// What the runner writes; `None` for Prometheus, which reads.
fn format(to: ExportFormat) -> Option<Format> {
    match to {
        ExportFormat::Tensorboard => Some(Format::TensorBoard),
        ExportFormat::Mlflow => Some(Format::MlFlow),
        ExportFormat::Wandb => Some(Format::Wandb),
        ExportFormat::Csv => Some(Format::Csv),
        ExportFormat::Jsonl => Some(Format::JsonLines),
        ExportFormat::Parquet => Some(Format::Parquet),
        ExportFormat::Prometheus => None,
    }
}

/// The trials that are named; those of a study or of conditions from the oldest on.
fn wanted(context: &Context, history: &History, args: &ExportArgs) -> Result<Vec<Trial>, Failure> {
    if args.study.is_none() && args.condition.is_none() {
        let last = [String::from("last")];
        let names = if args.trials.is_empty() { &last[..] } else { &args.trials };
        let mut found: Vec<Trial> = Vec::new();
        for name in names {
            let trial = trials::trial(context, history, name)?;
            if found.iter().all(|known| known.row.id != trial.row.id) {
                found.push(trial);
            }
        }
        return Ok(found);
    }
    let mut found = filtered(context, history, args)?;
    found.reverse();
    if found.is_empty() {
        return Err(Failure::new(Exit::Usage, "no trial matches").hint("`dtrain history` lists all trials"));
    }
    Ok(found)
}

/// The trials that `--study` and `--where` leave, the newest first.
fn filtered(context: &Context, history: &History, args: &ExportArgs) -> Result<Vec<Trial>, Failure> {
    let names = history.names().map_err(|error| ledger(&error))?;
    let mut filter = match &args.condition {
        Some(text) => Filter::parse(text, &names).map_err(|error| Failure::of(Exit::Usage, &error))?,
        None => Filter::default(),
    };
    if args.study.is_some() {
        filter.study.clone_from(&args.study);
    }
    let is_alive = |id: &_| trials::is_alive(context, id);
    let rows = history.trials(&filter, &Sort::Newest, Page::default(), &is_alive);
    let rows = rows.map_err(|error| ledger(&error))?;
    rows.iter().map(|row| history.trial(&row.id, &is_alive).map_err(|error| ledger(&error))).collect()
}

/// The keys that patterns name; `None` for all. `Err` for a pattern that names none.
pub(super) fn keys(
    history: &History,
    trials: &[Trial],
    patterns: &[String],
) -> Result<Option<BTreeSet<String>>, Failure> {
    if patterns.is_empty() {
        return Ok(None);
    }
    let all = export::keys(history, trials).map_err(|error| ledger(&error))?;
    let mut wanted = BTreeSet::new();
    for text in patterns {
        let pattern = Pattern::new(text).map_err(|error| {
            Failure::new(Exit::Usage, format!("`{text}` is not a pattern of keys")).cause(error.to_string())
        })?;
        let mut found = all.iter().filter(|key| pattern.matches(key)).cloned().peekable();
        if found.peek().is_none() {
            let has = all.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            return Err(Failure::new(Exit::Usage, format!("no series has the key `{text}`")).hint(
                if has.is_empty() { "nothing was measured".to_owned() } else { format!("there are {has}") },
            ));
        }
        wanted.extend(found);
    }
    Ok(Some(wanted))
}

/// Where a format is written when nobody says.
fn default_place(format: Format, args: &ExportArgs, trials: &[Trial]) -> PathBuf {
    let name = match (&args.study, trials) {
        (Some(study), _) => file_name(study),
        (None, [only]) => file_name(&only.row.label),
        (None, _) => "trials".to_owned(),
    };
    match format {
        Format::TensorBoard => "runs".into(),
        Format::MlFlow => "mlflow.db".into(),
        Format::Wandb => "wandb".into(),
        Format::Csv => format!("{name}.csv").into(),
        Format::JsonLines => format!("{name}.jsonl").into(),
        Format::Parquet => format!("{name}.parquet").into(),
    }
}

/// Prints lines.
fn print(context: &Context, request: &Request<'_>, format: Format) -> Outcome {
    if !matches!(format, Format::Csv | Format::JsonLines) {
        return Err(Failure::new(
            Exit::Usage,
            "only csv, jsonl and prometheus can be printed with `--out -`",
        ));
    }
    if context.out.json {
        return Err(Failure::new(
            Exit::Usage,
            "`--out -` prints the export itself, and `--json` prints about it",
        ));
    }
    let mut stdout = io::BufWriter::new(io::stdout().lock());
    let printed = export::print(request, format, &mut stdout, &mut |_| {});
    let printed = printed
        .and_then(|()| stdout.flush().map_err(|source| ExportError::Write { path: "stdout".into(), source }));
    match printed {
        Err(ExportError::Write { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => {
            // What is left in the buffer would fail once more.
            drop(stdout.into_parts());
            Err(Failure::closed_pipe())
        }
        printed => printed.map(|()| Exit::Done).map_err(|error| failed(&error)),
    }
}

fn failed(error: &ExportError) -> Failure {
    match error {
        ExportError::Ledger(error) => ledger(error),
        ExportError::Exists(_) => Failure::of(Exit::Usage, error)
            .hint("`--force` replaces it; `--out PATH` writes to another place"),
        ExportError::NoStore { .. } => {
            Failure::of(Exit::Usage, error).hint("`--out PATH` writes to another place")
        }
        ExportError::Write { .. } | ExportError::Database { .. } => Failure::of(Exit::Infrastructure, error),
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

fn show(bar: &ProgressBar, advance: Advance) {
    bar.set_length(advance.of);
    bar.set_position(advance.series);
    bar.set_message(counted(advance.points, "point"));
}

fn said(written: &Written) -> String {
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

/// The command that reads what was written.
fn next(format: Format, to: &Path) -> String {
    let path = word(to.display());
    match format {
        Format::TensorBoard => format!("tensorboard --logdir {path}"),
        Format::MlFlow => format!("mlflow ui --backend-store-uri sqlite:///{path}"),
        Format::Wandb => format!("wandb sync {path}/offline-run-*"),
        Format::Csv | Format::JsonLines => format!("head {path}"),
        Format::Parquet => format!("python3 -c \"import pandas; print(pandas.read_parquet('{path}'))\""),
    }
}

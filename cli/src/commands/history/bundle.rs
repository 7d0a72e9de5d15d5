//! `dtrain history export` and `dtrain history import`: exchange of histories between machines.

use crate::args::{HistoryExportArgs, HistoryImportArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::render::number::counted;
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_protocol::bundle::{ArchiveHeader, BundleError};
use dtrain_recipes::Bytes;
use dtrain_runner::audit::this_host;
use dtrain_runner::ledger::{Filter, History, ImportError, MergeReport, Pagination, Sort, WriteBundleError};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter};
use std::path::{Path, PathBuf};

/// File name extension of bundles.
const ENDING: &str = "dtrain";

/// JSON document that `dtrain history export --json` prints.
#[derive(Serialize)]
struct ExportedBundle {
    file: PathBuf,
    trials: u64,
    bytes: u64,
}

/// JSON of one imported bundle.
#[derive(Serialize)]
struct ImportedBundle {
    file: PathBuf,
    /// Host that exported the bundle.
    host: String,
    #[serde(flatten)]
    merged: MergeReport,
}

#[derive(Serialize)]
struct ImportReport {
    bundles: Vec<ImportedBundle>,
}

/// Writes the selected trials into a bundle file.
pub(super) fn export(context: &Context, args: &HistoryExportArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let trials = selected_trials(context, &history, args)?;
    let host = Some(this_host()).filter(|host| !host.is_empty()).unwrap_or_else(|| "unknown".to_owned());
    let machine = history.machine().map_err(|error| history_failure(&error))?;
    let is_folder = args.to.is_dir() || args.to.as_os_str().as_encoded_bytes().ends_with(b"/");
    let file = if is_folder { args.to.join(file_name(&host, &machine)) } else { args.to.clone() };
    let failed = |error: &io::Error| {
        CommandError::new(ExitReason::Infrastructure, format!("cannot write {}", file.display()))
            .cause(error.to_string())
    };
    if is_folder {
        fs::create_dir_all(&args.to).map_err(|error| failed(&error))?;
    }
    let bar = bar(context, "exporting", trials.len() as u64);
    let bytes = write(&history, &trials, &host, &file, &bar).map_err(|error| match &error {
        WriteBundleError::Ledger(error) => history_failure(error),
        WriteBundleError::Io(error) => failed(error),
    })?;
    bar.finish_and_clear();
    let exported = ExportedBundle { file, trials: trials.len() as u64, bytes };
    if context.out.json {
        context.out.json("export", &exported)?;
    } else {
        let (number, file) = (counted(exported.trials, "trial"), exported.file.display());
        context.out.say(&format!("wrote {number} to {file}: {}", Bytes(bytes)));
    }
    context.out.next(&format!(
        "dtrain history import {}, on another machine",
        shell_quoted(exported.file.display())
    ));
    Ok(ExitReason::Done)
}

/// Returns the trials that the user selected for export.
fn selected_trials(
    context: &Context,
    history: &History,
    args: &HistoryExportArgs,
) -> Result<Vec<TrialId>, CommandError> {
    if !args.trials.is_empty() {
        return args.trials.iter().map(|name| trials::find(history, name)).collect();
    }
    let names = history.names().map_err(|error| history_failure(&error))?;
    let filter = match &args.condition {
        Some(text) => {
            Filter::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Filter::default(),
    };
    let activity = |id: &TrialId| trials::activity(context, id);
    let rows = history.trials(&filter, &Sort::Newest, Pagination::default(), &activity);
    let rows = rows.map_err(|error| history_failure(&error))?;
    if rows.is_empty() {
        return Err(CommandError::new(ExitReason::Usage, "no trial matches, so there is nothing to export"));
    }
    Ok(rows.into_iter().map(|row| row.id).collect())
}

/// Returns the name of a bundle file, which differs by machine so that a shared folder has no conflicts.
fn file_name(host: &str, machine: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let host: String = host.chars().map(plain).collect();
    let id = machine[machine.len().saturating_sub(6)..].to_lowercase();
    format!("{host}-{id}.{ENDING}")
}

/// Writes a bundle to a temporary file and renames it; returns its size in bytes.
fn write(
    history: &History,
    trials: &[TrialId],
    host: &str,
    file: &Path,
    bar: &ProgressBar,
) -> Result<u64, WriteBundleError> {
    let mut partial = file.as_os_str().to_owned();
    partial.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(partial);
    let whole = || -> Result<u64, WriteBundleError> {
        let to = BufWriter::new(File::create(&partial)?);
        let to = history.write_bundle(trials, host, to, &mut |_| bar.inc(1))?;
        let to = to.into_inner().map_err(io::IntoInnerError::into_error)?;
        to.sync_all()?;
        let bytes = to.metadata()?.len();
        fs::rename(&partial, file)?;
        Ok(bytes)
    };
    whole().inspect_err(|_| drop(fs::remove_file(&partial)))
}

/// Merges bundles into the history of this machine.
pub(super) fn import(context: &Context, args: &HistoryImportArgs) -> CommandResult {
    let mut files = Vec::new();
    for path in &args.bundles {
        files.extend(bundles(path)?);
    }
    // Nothing is changed unless all bundles can be imported.
    let heads = files.iter().map(|file| check(file)).collect::<Result<Vec<_>, _>>()?;
    let mut history = trials::open_history(context)?;
    let bar = bar(context, "importing", heads.iter().fold(0, |sum, head| sum.saturating_add(head.trials)));
    let opened = files.iter().map(|file| File::open(file).map(BufReader::new));
    let merged = history.merge_bundles(opened, &mut |_| bar.inc(1)).map_err(|error| match &error {
        ImportError::Ledger(error) => history_failure(error),
        ImportError::Bundle { number, source } => bundle_failed(&files[*number], source),
    })?;
    let bundles = files.into_iter().zip(heads).zip(merged);
    let report = ImportReport {
        bundles: bundles
            .map(|((file, head), merged)| ImportedBundle { file, host: head.host, merged })
            .collect(),
    };
    bar.finish_and_clear();
    if context.out.json {
        context.out.json("import", &report)?;
    } else {
        report.bundles.iter().for_each(|one| context.out.say(&line(one)));
    }
    context.out.next("dtrain history");
    Ok(ExitReason::Done)
}

/// Formats one line about an imported bundle.
fn line(ImportedBundle { file, host, merged }: &ImportedBundle) -> String {
    let mut words = vec![format!("{} new", merged.new)];
    let more = [(merged.updated, "updated"), (merged.unchanged, "unchanged")];
    words.extend(more.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")));
    if merged.annotations > 0 {
        words.push(format!("{} on known trials", counted(merged.annotations, "new annotation")));
    }
    format!("{}: trials of {host}: {}", file.display(), words.join(", "))
}

/// Returns the bundle files at a path: the file itself, or those in the folder.
fn bundles(path: &Path) -> Result<Vec<PathBuf>, CommandError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |error: io::Error| {
        CommandError::new(ExitReason::Usage, format!("cannot read {}", path.display()))
            .cause(error.to_string())
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|ending| ending == ENDING) {
            found.push(path);
        }
    }
    if found.is_empty() {
        let what = format!("there is no bundle in {}: no file ends in .{ENDING}", path.display());
        return Err(CommandError::new(ExitReason::Usage, what)
            .hint(format!("`dtrain history export --to {}` puts one there", shell_quoted(path.display()))));
    }
    found.sort();
    Ok(found)
}

fn open(file: &Path) -> Result<BufReader<File>, CommandError> {
    File::open(file).map(BufReader::new).map_err(|error| {
        CommandError::new(ExitReason::Usage, format!("cannot read {}", file.display()))
            .cause(error.to_string())
    })
}

fn check(file: &Path) -> Result<ArchiveHeader, CommandError> {
    History::check_bundle(open(file)?).map_err(|error| bundle_failed(file, &error))
}

fn bundle_failed(file: &Path, error: &BundleError) -> CommandError {
    let failure = CommandError::new(ExitReason::Usage, format!("cannot import {}", file.display()));
    let cause = match error {
        BundleError::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    let failure = failure.cause(cause);
    match error {
        BundleError::Torn | BundleError::Damaged(_) => failure.hint("copy it again, or export it again"),
        BundleError::Invalid { .. } => {
            failure.hint("nothing of it was imported; export it again where it comes from")
        }
        BundleError::NoBundle => failure.hint("`dtrain history export --to FILE` writes a bundle"),
        BundleError::Newer(_) | BundleError::Io(_) => failure,
    }
}

/// Creates a progress bar that counts trials; hidden without a terminal.
fn bar(context: &Context, what: &'static str, trials: u64) -> ProgressBar {
    if !context.out.draws() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bar:24} {pos} of {len} trials  {eta} left");
    let bar = ProgressBar::with_draw_target(Some(trials), ProgressDrawTarget::stderr_with_hz(8));
    bar.set_style(style.expect("the template is well formed"));
    bar.set_message(what);
    bar
}

//! Detection of scripts that exit successfully without reporting the metrics that their recipe names.

use crate::command_error::CommandError;
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::progress_templates::{templates, try_on};
use crate::render::number::counted;
use crate::render::template_match::{mismatch_pointer, mismatch_text};
use crate::trial_logs::{PrintedOutput, files_here, printed};
use dtrain_recipes::line_template::{LineSplitter, TemplateReport, Tryout, plain};
use dtrain_recipes::{Metric, Model, Recipe};
use dtrain_runner::ledger::{TrialDetails, ValueSource};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

/// Number of output lines that an error quotes.
const LAST_LINES: usize = 5;

/// Number of bytes per log in which template matches are searched; templates may match later lines too.
const TRIED: u64 = 64 << 20;

/// Prefix of the series that the host monitor measures, which no program reports.
const OF_THE_HOST: &str = "system.";

/// Returns the error for a completed trial that counts as failed: no output line matched a template, or its
/// metric was never reported, though the recipe names it or `needs_metric` is set. `None` if all is reported,
/// and for dtrain's own models.
pub(crate) fn unreported_failure(
    context: &Context,
    recipe: &Recipe,
    trial: &TrialDetails,
    needs_metric: bool,
) -> Option<CommandError> {
    let Model::Command(command) = &recipe.model else { return None };
    let reported: BTreeSet<&str> = trial
        .figures
        .iter()
        .map(|figure| figure.key.as_str())
        .filter(|key| !key.starts_with(OF_THE_HOST))
        .collect();
    let label = &trial.row.label;
    let metric = recipe.objective.metric.name();
    let has_metric = reported.contains(metric) || reported.contains(format!("script/{metric}").as_str());
    let message = if reported.is_empty() && !command.progress.is_empty() {
        format!(
            "no line of the output of {label} matched `progress` of its recipe, and it reported nothing else"
        )
    } else if !has_metric && (needs_metric || names_metric(recipe, trial)) {
        format!("{label} never reported `{metric}`, its `objective.metric`")
    } else {
        return None;
    };
    let mut failure = CommandError::new(ExitReason::WorkerFailed, message);
    if !reported.is_empty() {
        let names: Vec<&str> = reported.into_iter().collect();
        failure = failure.cause(format!("it reported {}", names.join(", ")));
    }
    let output = printed(context, trial);
    for cause in causes(recipe, output.as_ref()) {
        failure = failure.cause(cause);
    }
    Some(failure.hint(hint(recipe, label, output.as_ref())))
}

/// Returns warnings about a completed script: metrics that were never finite, and templates that matched no
/// line.
pub(crate) fn warnings(context: &Context, recipe: &Recipe, trial: &TrialDetails) -> Vec<CommandError> {
    if !trial.is_script() {
        return Vec::new();
    }
    let warning = |message: String| CommandError::new(ExitReason::WorkerFailed, message);
    let figures: BTreeSet<&str> = trial.figures.iter().map(|figure| figure.key.as_str()).collect();
    let is_never_finite = |key: &&str| {
        let never = trial.figure(key).is_some_and(|figure| figure.points > 0 && figure.min.is_none());
        never && !key.starts_with(OF_THE_HOST)
    };
    let never_finite = figures.into_iter().filter(is_never_finite);
    let mut warnings: Vec<CommandError> =
        never_finite.map(|key| warning(format!("`{key}` was never a finite number"))).collect();
    warnings.extend(unmatched_templates(context, recipe, trial).into_iter().map(warning));
    warnings
}

/// Returns warnings about line templates that matched no line in the logs of all ranks and attempts. Empty if
/// some logs are on other machines or too long to search.
fn unmatched_templates(context: &Context, recipe: &Recipe, trial: &TrialDetails) -> Vec<String> {
    let Ok(templates) = templates(recipe) else { return Vec::new() };
    let Some(logs) = files_here(context, trial).filter(|_| !templates.is_empty()) else { return Vec::new() };
    let mut tryout = Tryout::new(&templates);
    for log in logs {
        let is_short = log.metadata().is_ok_and(|log| log.len() <= TRIED);
        let tried = File::open(&log).and_then(|file| try_on(file.take(TRIED), &mut tryout));
        if !is_short || tried.is_err() {
            return Vec::new();
        }
    }
    tryout.tried().iter().filter(|tried| tried.matched == 0).map(unread_words).collect()
}

fn unread_words(tried: &TemplateReport) -> String {
    let template = format!("template `{}` read no line", tried.template);
    match &tried.nearest {
        _ if tried.shadowed > 0 => {
            let lines = counted(tried.shadowed, "line");
            format!("{template}: an earlier template reads the {lines} that it fits; put it first")
        }
        Some(nearest) => {
            format!("{template}: {} in `{}`", mismatch_text(nearest), mismatch_pointer(nearest)[0])
        }
        None => template,
    }
}

/// Returns `true` if the recipe names the objective's metric, rather than leaving it at the default.
fn names_metric(recipe: &Recipe, trial: &TrialDetails) -> bool {
    let is_said = trial.params.iter().any(|param| {
        param.path == "objective.metric" && matches!(param.source, ValueSource::Recipe | ValueSource::Setting)
    });
    is_said || recipe.objective.metric != Metric::ValidLoss || recipe.objective.stop.target.is_some()
}

/// Explains where each unmatched line template stops matching, and quotes the last lines of the output.
fn causes(recipe: &Recipe, output: Option<&PrintedOutput>) -> Vec<String> {
    let Some(output) = output else { return vec!["it printed nothing".to_owned()] };
    let mut causes = Vec::new();
    if let Ok(templates) = templates(recipe) {
        let mut tryout = Tryout::new(&templates);
        // Reading from memory cannot fail.
        drop(try_on(output.bytes.as_slice(), &mut tryout));
        causes.extend(tryout.tried().iter().filter(|tried| tried.first.is_none()).map(stop_text));
    }
    let last = last_lines(&output.bytes);
    causes.push(format!("the last lines of its output:\n{}", last.join("\n")));
    causes
}

fn stop_text(tried: &TemplateReport) -> String {
    let template = format!("template `{}`", tried.template);
    let Some(nearest) = &tried.nearest else { return format!("{template} matched no line") };
    let [line, caret] = mismatch_pointer(nearest);
    format!("{template}: {}:\n{line}\n{caret}", mismatch_text(nearest))
}

fn last_lines(bytes: &[u8]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut take = |_, line: &[u8]| {
        lines.extend(plain(line).lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    };
    let mut splitter = LineSplitter::default();
    splitter.feed(bytes, &mut take);
    splitter.finish(&mut take);
    lines.split_off(lines.len().saturating_sub(LAST_LINES))
}

fn hint(recipe: &Recipe, label: &str, output: Option<&PrintedOutput>) -> String {
    let has_templates = matches!(&recipe.model, Model::Command(command) if !command.progress.is_empty());
    match output.map(|output| &output.path) {
        Some(Some(path)) if has_templates => {
            format!(
                "`dtrain check RECIPE --try {}` tries the templates on its output",
                crate::output::shell_quoted(path.display())
            )
        }
        _ if has_templates => {
            format!(
                "`dtrain logs {label} > output.txt` and `dtrain check RECIPE --try output.txt` try the templates"
            )
        }
        _ => "print it and add a template to `progress`, or report it as docs/your-own-script.md says"
            .to_owned(),
    }
}

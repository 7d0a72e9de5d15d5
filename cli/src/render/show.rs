//! Text page about one trial.

use super::history::{rate, status};
use super::number::{count, deviation, seconds};
use super::phases::{bytes, memory, phases, traffic};
use super::sparkline::sparkline;
use super::table::{TextRole, ago, painted, section};
use super::{metrics, param, time_spent};
use crate::output::PageStyle;
use crate::weights_provenance;
use dtrain_protocol::{Failure, StopReason};
use dtrain_recipes::sanitize::on_one_line;
use dtrain_runner::ledger::{Attempt, Parent, TrialDetails, TypicalStep, ValueSource};
use dtrain_runner::{AttemptEnd, Verdict, workdir};

/// Maximum number of checkpoints shown, the newest ones.
const CHECKPOINTS: usize = 5;

/// Formats a trial's page; `typical` are the typical steps of its ranks, `curves` are named series with one
/// character per value. With `all`, default parameters are included.
pub(crate) fn show(
    trial: &TrialDetails,
    typical: &[TypicalStep],
    curves: &[(String, Vec<Option<f64>>)],
    all: bool,
    style: PageStyle,
) -> String {
    let parts = [
        head(trial, style),
        section("SPEED AND MEMORY", &predicted(trial), style),
        section("TIME", &time_spent::lines(trial, style.now_ms), style),
        section("A TYPICAL STEP OF EACH RANK", &phases(trial, typical), style),
        section("PEAK MEMORY OF THE HEAVIEST RANK", &memory(trial), style),
        section("BYTES SENT PER STEP BY THE BUSIEST RANK", &traffic(trial), style),
        section("METRICS", &metrics::lines(trial), style),
        section("CURVES", &curve_lines(curves, style), style),
        section("ATTEMPTS", &attempts(trial, style), style),
        section("CHECKPOINTS", &checkpoints(trial, style), style),
        section("PARAMETERS", &parameters(trial, all), style),
        section("PROVENANCE", &made_by(trial), style),
        section("TAGS", &tags(trial), style),
        section("NOTES", &notes(trial, style), style),
    ];
    parts.concat()
}

fn head(trial: &TrialDetails, style: PageStyle) -> String {
    let row = &trial.row;
    let word = status(row.status);
    let ended =
        trial.verdict.as_ref().map(|verdict| format!(": {}", verdict_text(verdict))).unwrap_or_default();
    // Batch and learning rate of a foreign command are unknown.
    let how = match row.batch {
        0 => String::new(),
        batch => format!(", batch {batch}, learning rate {}", rate(row.learning_rate)),
    };
    format!(
        "{}  {}{ended}\n  {}\n  {}{how}, step {}, created {}\n",
        painted(&row.label, TextRole::Bold, style.paint),
        painted(&word.text, word.tone, style.paint),
        painted(&row.id.to_string(), TextRole::Dim, style.paint),
        row.layout,
        row.step,
        ago(row.created_ms, style.now_ms),
    ) + &imported(trial)
        + &begins_with(trial)
        + &begins_with_folder(trial)
}

/// Formats the origin of an imported trial; empty for other trials.
fn imported(trial: &TrialDetails) -> String {
    let host = trial.row.imported_from.as_ref();
    host.map_or_else(String::new, |host| format!("  imported: trained on {host}, checkpoints are there\n"))
}

/// Formats the checkpoint from which a trial started, and how its settings differ; empty without one.
pub(super) fn begins_with(trial: &TrialDetails) -> String {
    let Some(Parent { label, step, weights_only, changes, .. }) = &trial.parent else { return String::new() };
    let how = if *weights_only { "begins with the weights of" } else { "continues" };
    let changes: String = changes.iter().map(|change| format!("    {change}\n")).collect();
    format!("  {how} {label} at step {step}\n{changes}")
}

/// Formats the folder or the model of the Hub from whose weights a trial started; empty without one.
pub(super) fn begins_with_folder(trial: &TrialDetails) -> String {
    let environment = &trial.provenance.environment;
    let [Some(folder), Some(digest)] =
        [weights_provenance::FOLDER, weights_provenance::DIGEST].map(|key| environment.get(key))
    else {
        return String::new();
    };
    let place = match environment.get(weights_provenance::MODEL) {
        Some(model) => format!("of {model}"),
        None => format!("in {folder}"),
    };
    format!("  begins with the weights {place} (blake3 {})\n", digest.get(..12).unwrap_or(digest))
}

/// Formats the verdict on a trial as words.
pub(crate) fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Completed(reason) => stopped(*reason).to_owned(),
        Verdict::Pruned => "ended early by the search".to_owned(),
        Verdict::OutOfMemory => "a rank ran out of memory".to_owned(),
        Verdict::Diverged => "the loss or gradient was not finite".to_owned(),
        Verdict::Failed(failure) => failure.to_string(),
        Verdict::Stopped => "it can be resumed".to_owned(),
    }
}

/// Formats how an attempt ended.
pub(crate) fn end_text(ended: &AttemptEnd) -> String {
    match ended {
        AttemptEnd::Finished(reason) => format!("finished: {}", stopped(*reason)),
        AttemptEnd::Lost(failure) => format!("lost: {failure}"),
        AttemptEnd::NotLaunched(failure) => format!("not launched: {failure}"),
    }
}

pub(super) fn stopped(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Complete => "all steps completed",
        StopReason::Time => "time limit reached",
        StopReason::Target => "target reached",
        StopReason::Ordered => "stopped on request",
    }
}

/// Returns the largest memory used by any rank of a trial, in bytes; `None` if it was not measured.
pub(super) fn peak(trial: &TrialDetails) -> Option<f64> {
    let memory = trial.figures.iter().filter(|summary| summary.key == "memory_bytes");
    memory.filter_map(|summary| summary.max).reduce(f64::max)
}

/// Formats a table of predictions, each with the measured value and its deviation.
pub(super) fn predicted(trial: &TrialDetails) -> Vec<Vec<String>> {
    let memory = peak(trial);
    let told = |name: &str, predicted: Option<f64>, measured: Option<f64>, show: &dyn Fn(f64) -> String| {
        let predicted = predicted?;
        let off = measured.map(|measured| deviation(measured, predicted)).unwrap_or_default();
        let measured = measured.map_or("not yet".to_owned(), show);
        Some(vec![name.to_owned(), show(predicted), measured, off])
    };
    let (said, row) = (&trial.predicted, &trial.row);
    let lines = [
        told("step", said.step_seconds, row.step_seconds, &seconds),
        told(trial.unit_of_speed(), said.tokens_per_second, row.tokens_per_second, &count),
        told("memory", said.memory_bytes.map(|bytes| bytes as f64), memory, &bytes),
    ]
    .into_iter()
    .flatten();
    let titles = vec![String::new(), "predicted".to_owned(), "measured".to_owned()];
    let all: Vec<_> = std::iter::once(titles).chain(lines).collect();
    if all.len() > 1 { all } else { Vec::new() }
}

fn curve_lines(curves: &[(String, Vec<Option<f64>>)], style: PageStyle) -> Vec<Vec<String>> {
    let drawn = curves.iter().map(|(name, values)| vec![name.clone(), sparkline(values, style)]);
    drawn.filter(|line| !line[1].is_empty()).collect()
}

fn attempts(trial: &TrialDetails, style: PageStyle) -> Vec<Vec<String>> {
    let line = |attempt: &Attempt| {
        let lasted = attempt.ended_ms.unwrap_or(style.now_ms).saturating_sub(attempt.started_ms) as f64 / 1e3;
        let ended = attempt.ended.as_ref().map_or("not ended".to_owned(), end_text);
        let head = vec![
            attempt.number.to_string(),
            attempt.from.map_or("from the start".to_owned(), |step| format!("from step {step}")),
            seconds(lasted),
            ended,
        ];
        let printed =
            last_words(attempt).iter().map(|line| vec!["".into(), "".into(), "".into(), format!("| {line}")]);
        std::iter::once(head).chain(printed).collect::<Vec<_>>()
    };
    trial.attempts.iter().flat_map(line).collect()
}

/// Returns the last lines that a foreign program printed before it failed.
fn last_words(attempt: &Attempt) -> &[String] {
    match &attempt.ended {
        Some(AttemptEnd::Lost(Failure::Command { last, .. })) => last,
        _ => &[],
    }
}

fn checkpoints(trial: &TrialDetails, style: PageStyle) -> Vec<Vec<String>> {
    let hidden = trial.checkpoints.len().saturating_sub(CHECKPOINTS);
    let mut lines: Vec<_> = trial.checkpoints[hidden..]
        .iter()
        .map(|checkpoint| {
            let state = match &checkpoint.refused {
                Some(reason) => format!("refused: {reason}"),
                None => checkpoint.folder.display().to_string(),
            };
            let made = ago(checkpoint.at_ms, style.now_ms);
            vec![format!("step {}", checkpoint.step), format!("attempt {}", checkpoint.attempt), made, state]
        })
        .collect();
    if hidden > 0 {
        lines.insert(0, vec![format!("{hidden} older")]);
    }
    lines
}

/// Formats the parameters set by the user, a search or the planner; with `all`, also the defaults.
fn parameters(trial: &TrialDetails, all: bool) -> Vec<Vec<String>> {
    let chosen = trial
        .params
        .iter()
        .filter(|param| all || (param.source != ValueSource::Default && !param.value.is_null()));
    chosen.map(|param| param::row(param).to_vec()).collect()
}

pub(super) fn made_by(trial: &TrialDetails) -> Vec<Vec<String>> {
    let made = &trial.provenance;
    let mut lines = vec![vec!["dtrain".to_owned(), made.program.clone()]];
    if let Some(git) = &made.git {
        let branch = git.branch.as_ref().map(|branch| format!(" ({branch})")).unwrap_or_default();
        let dirty = if git.is_dirty() { ", with uncommitted changes" } else { "" };
        lines.push(vec!["commit".to_owned(), format!("{}{branch}{dirty}", git.revision)]);
    }
    let version = |(name, version): (&String, &String)| {
        let package = name.strip_prefix("engine.").filter(|package| *package != "interpreter")?;
        Some(format!("{package} {version}"))
    };
    let versions: Vec<_> = made.environment.iter().filter_map(version).collect();
    if !versions.is_empty() {
        lines.push(vec!["engine".to_owned(), versions.join(", ")]);
    }
    if let Some(digest) = made.environment.get(workdir::PROVENANCE) {
        lines.push(vec!["sent folder".to_owned(), format!("blake3 {}", digest.get(..12).unwrap_or(digest))]);
    }
    if let Some(host) = made.environment.get("host") {
        lines.push(vec!["host".to_owned(), host.clone()]);
    }
    if !made.command.is_empty() {
        lines.push(vec!["command".to_owned(), on_one_line(&made.command.join(" "))]);
    }
    lines
}

fn tags(trial: &TrialDetails) -> Vec<Vec<String>> {
    trial.tags.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect()
}

fn notes(trial: &TrialDetails, style: PageStyle) -> Vec<Vec<String>> {
    let line = |note: &dtrain_runner::ledger::Note| {
        vec![ago(note.at_ms, style.now_ms), note.text.replace('\n', " ")]
    };
    trial.notes.iter().map(line).collect()
}

#[cfg(test)]
pub(crate) mod tests;

//! `dtrain show`: prints one trial, or the settings of a recipe.

use crate::args::ShowArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::load_recipe::load_without_download;
use crate::output::shell_quoted;
use crate::render::show as one;
use crate::run_trial::record_finished_trials;
use crate::series::{curve, matching_keys};
use crate::trials::{self, history_failure, plan_of_trial, recipe_of_trial};
use dtrain_protocol::checkpoint::ENGINE_FOLDER;
use dtrain_protocol::{AttemptId, Rank, StepId};
use dtrain_recipes::ResolvedValue;
use dtrain_runner::ledger::{Checkpoint, History, MetricSample, TrialDetails, is_own_series};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Width of each curve on a trial's page, in characters.
const PAGE_CURVE: usize = 48;

/// Maximum number of curves on a trial's page.
const CURVES_MOST: usize = 8;

/// Shows a trial, or with `--resolved` the settings of a recipe.
pub(crate) fn run(context: &Context, args: &ShowArgs) -> CommandResult {
    if args.resolved {
        return resolved(context, args);
    }
    if !args.layers.set.is_empty() || args.layers.cluster.is_some() {
        return Err(CommandError::new(ExitReason::Usage, "--set and --cluster are for recipes")
            .hint("`dtrain show --resolved RECIPE` shows a recipe"));
    }
    show_trial(context, args.what.as_deref().unwrap_or("last"), args)
}

#[derive(Serialize)]
struct TrialDocument {
    trial: TrialDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<Vec<PrintedSeries>>,
}

/// JSON of one series of a trial, with its points.
#[derive(Serialize)]
struct PrintedSeries {
    key: String,
    rank: Rank,
    points: Vec<SeriesPoint>,
}

/// JSON of one point of a series. Of attempts that overlap, the last one counts.
#[derive(Serialize)]
struct SeriesPoint {
    step: u64,
    at_ms: u64,
    #[serde(with = "dtrain_protocol::non_finite")]
    value: f64,
}

/// Returns the series that `--series` selects; `None` without that option.
fn series(
    history: &History,
    trial: &TrialDetails,
    asked: &[String],
) -> Result<Option<Vec<PrintedSeries>>, CommandError> {
    if asked.is_empty() {
        return Ok(None);
    }
    let patterns: Vec<String> =
        asked.iter().map(|key| if key == "all" { "*".to_owned() } else { key.clone() }).collect();
    let keys = matching_keys(history, std::slice::from_ref(&trial.row), &patterns)?;
    let names = history.series_names(&trial.row.id).map_err(|error| history_failure(&error))?;
    let wanted = names.into_iter().filter(|(key, _)| keys.as_ref().is_none_or(|keys| keys.contains(key)));
    let read = |(key, rank): (String, Rank)| {
        let samples = history.series(&trial.row.id, &key, rank).map_err(|error| history_failure(&error))?;
        let point = |sample: &MetricSample| SeriesPoint {
            step: sample.step,
            at_ms: sample.at_ms,
            value: sample.value,
        };
        Ok(PrintedSeries { key, rank, points: samples.iter().map(point).collect() })
    };
    wanted.map(read).collect::<Result<_, _>>().map(Some)
}

/// Beginning of the keys of series about the checkpoints that a training engine saves.
const CHECKPOINT_SERIES: &str = "checkpoint_";

/// Adds the checkpoints that a training engine reported and still keeps.
fn add_engine_checkpoints(
    context: &Context,
    history: &History,
    trial: &mut TrialDetails,
) -> Result<(), CommandError> {
    let id = &trial.row.id;
    let saved = history.engine_checkpoints(id).map_err(|error| history_failure(&error))?;
    let keep = usize::try_from(recipe_of_trial(trial)?.checkpoint.keep).unwrap_or(usize::MAX);
    let folder = context.home.trial(id).checkpoints().join(ENGINE_FOLDER);
    let attempt = |at_ms| {
        let begun = trial.attempts.iter().rev().find(|attempt| attempt.started_ms <= at_ms);
        begun.map_or(AttemptId(0), |attempt| attempt.number)
    };
    let checkpoint = |sample: &MetricSample| Checkpoint {
        attempt: attempt(sample.at_ms),
        step: StepId(sample.step),
        at_ms: sample.at_ms,
        folder: folder.join(format!("step-{}", sample.step)),
        refused: None,
    };
    let kept: Vec<_> = saved[saved.len().saturating_sub(keep)..].iter().map(checkpoint).collect();
    trial.checkpoints.extend(kept);
    Ok(())
}

/// Shows all details of one trial.
fn show_trial(context: &Context, name: &str, args: &ShowArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let mut trial = trials::trial(context, &history, name)?;
    if trial.is_of_engine() {
        add_engine_checkpoints(context, &history, &mut trial)?;
    }
    forget_removed(context, &mut trial);
    let typical = history.typical_steps(&trial.row.id).map_err(|error| history_failure(&error))?;
    let measured = |key| history.measured(&trial.row.id, key).map_err(|error| history_failure(&error));
    let (step, speed) = (measured("step_seconds")?, measured("tokens_per_second")?);
    trial.row.step_seconds = step.map(|step| step.typical).or(trial.row.step_seconds);
    trial.row.tokens_per_second = speed.map(|speed| speed.typical).or(trial.row.tokens_per_second);
    let (label, status) = (trial.row.label.clone(), trial.row.status);
    let is_imported = trial.row.imported_from.is_some();
    let unreadable = plan_of_trial(&trial).err();
    if context.out.json {
        let series = series(&history, &trial, &args.series)?;
        context.out.json("trial", &TrialDocument { trial, series })?;
    } else {
        let named = trial.figures.iter().map(|summary| summary.key.as_str());
        let named = named.filter(|key| !is_own_series(key) && !key.starts_with(CHECKPOINT_SERIES));
        let mut keys: Vec<&str> =
            [trial.row.objective.as_str(), "loss", "valid.loss"].into_iter().chain(named).collect();
        let mut seen = BTreeSet::new();
        keys.retain(|key| seen.insert(*key));
        let curves = keys
            .into_iter()
            .take(CURVES_MOST)
            .map(|key| Ok((key.to_owned(), curve(&history, &trial.row.id, key, PAGE_CURVE)?)))
            .collect::<Result<Vec<_>, CommandError>>()?;
        context.out.data(&one::show(&trial, &typical, &curves, args.all, context.out.style()))?;
    }
    if let Some(failure) = &unreadable {
        context.out.say(&failure.warning(context.out.paint));
    }
    use dtrain_runner::ledger::TrialStatus as S;
    context.out.next(&match status {
        _ if is_imported || unreadable.is_some() => "dtrain history".to_owned(),
        S::Running | S::Waiting | S::Unattended => format!("dtrain attach {label}"),
        S::Lost | S::Stopped | S::Failed | S::Created => format!("dtrain resume {label}"),
        S::Completed | S::Pruned | S::OutOfMemory | S::Diverged => "dtrain history".to_owned(),
    });
    Ok(ExitReason::Done)
}

/// Drops from `trial` the checkpoints that retention has removed from this machine. Those on other hosts
/// cannot be checked without a connection.
fn forget_removed(context: &Context, trial: &mut TrialDetails) {
    let folder = context.home.trial(&trial.row.id);
    let are_here = !folder.remote_hosts_file().exists() || folder.job().exists();
    if trial.row.imported_from.is_some() || !are_here {
        return;
    }
    let own = folder.checkpoints();
    let is_there =
        |saved: &Path| saved.is_dir() || saved.file_name().is_some_and(|name| own.join(name).is_dir());
    trial.checkpoints.retain(|saved| saved.refused.is_some() || is_there(&saved.folder));
}

/// JSON of one setting, as `dtrain show --resolved --json` prints it.
#[derive(Serialize)]
struct ResolvedSetting {
    key: String,
    value: String,
    /// Source of the value: `default`, `recipe.toml:12:9`, `--set`, …
    origin: String,
    layer: String,
}

#[derive(Serialize)]
struct ResolvedSettings {
    settings: Vec<ResolvedSetting>,
}

fn resolved(context: &Context, args: &ShowArgs) -> CommandResult {
    let name = args.what.as_deref().unwrap_or("recipe.toml");
    let loaded = load_without_download(context.out, name, &args.layers, &[])?;
    let values = &loaded.checked.resolved;
    if context.out.json {
        let setting = |value: &ResolvedValue| ResolvedSetting {
            key: value.path.clone(),
            value: value.value.clone(),
            origin: value.origin.to_string(),
            layer: value.origin.layer().to_string(),
        };
        context.out.json("settings", &ResolvedSettings { settings: values.iter().map(setting).collect() })?;
    } else {
        context.out.data(&table(values))?;
    }
    context.out.next(&format!("dtrain plan {}", shell_quoted(name)));
    Ok(ExitReason::Done)
}

/// Formats settings in columns of key, value and source; a long value shifts only its own line.
fn table(values: &[ResolvedValue]) -> String {
    let width = |lengths: Vec<usize>| lengths.into_iter().filter(|length| *length <= 40).max().unwrap_or(0);
    let keys = width(values.iter().map(|value| value.path.chars().count()).collect());
    let texts = width(values.iter().map(|value| value.value.chars().count()).collect());
    let line = |value: &ResolvedValue| {
        format!("{:<keys$}  {:<texts$}  {}", value.path, value.value, value.origin).trim_end().to_owned()
    };
    values.iter().map(line).collect::<Vec<_>>().join("\n")
}

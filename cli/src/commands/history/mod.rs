//! `dtrain history` and `dtrain show TRIAL`: lists trials, and shows one.

mod bundle;

use crate::args::{HistoryArgs, HistoryCommand, ShowArgs};
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::render::{history as list, show as one};
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure, plan_of_trial};
use dtrain_protocol::{Rank, TrialId};
use dtrain_runner::compare::buckets;
use dtrain_runner::ledger::{Filter, History, MetricSample, Pagination, Sort, TrialDetails, is_own_series};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;

/// Width of a trial's curve in the list, in characters.
const LIST_CURVE: usize = 12;

/// Width of each curve on a trial's page, in characters.
const PAGE_CURVE: usize = 48;

/// Lists trials, or exports or imports them.
pub(crate) fn run(context: &Context, args: &HistoryArgs) -> CommandResult {
    match &args.command {
        Some(HistoryCommand::Export(args)) => bundle::export(context, args),
        Some(HistoryCommand::Import(args)) => bundle::import(context, args),
        None => list_trials(context, args),
    }
}

fn list_trials(context: &Context, args: &HistoryArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let names = history.names().map_err(|error| history_failure(&error))?;
    let filter = match &args.condition {
        Some(text) => {
            Filter::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Filter::default(),
    };
    let sort = match &args.by {
        Some(text) => {
            Sort::parse(text, &names).map_err(|error| CommandError::of(ExitReason::Usage, &error))?
        }
        None => Sort::Newest,
    };
    let limit = u64::from(args.limit.max(1));
    let page = Pagination { skip: u64::from(args.page.max(1) - 1) * limit, limit: limit + 1 };
    let mut rows = history
        .trials(&filter, &sort, page, &|id| trials::is_alive(context, id))
        .map_err(|error| history_failure(&error))?;
    let has_more = rows.len() as u64 > limit;
    rows.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    if context.out.json {
        context.out.json("history", &list::history_json(&rows))?;
    } else if args.csv {
        context.out.data(&list::history_csv(&rows))?;
    } else if rows.is_empty() {
        context.out.say("no trial matches");
    } else {
        let curves: Vec<_> = rows
            .iter()
            .map(|row| match curve(&history, &row.id, "loss", LIST_CURVE)? {
                none if none.is_empty() => curve(&history, &row.id, &row.objective, LIST_CURVE),
                loss => Ok(loss),
            })
            .collect::<Result<_, CommandError>>()?;
        context.out.data(&list::history(&rows, &curves, context.out.style()))?;
    }
    match rows.first() {
        Some(_) if has_more => context.out.next(&format!("dtrain history --page {}", args.page.max(1) + 1)),
        Some(first) => context.out.next(&format!("dtrain show {}", first.label)),
        None => {}
    }
    Ok(ExitReason::Done)
}

/// Reduces a series to `count` values, one per character.
fn curve(
    history: &History,
    trial: &TrialId,
    key: &str,
    count: usize,
) -> Result<Vec<Option<f64>>, CommandError> {
    let samples = history.curve(trial, key).map_err(|error| history_failure(&error))?;
    let (Some(first), Some(last)) = (samples.first(), samples.last()) else { return Ok(Vec::new()) };
    Ok(buckets(&samples, (first.step, last.step), count))
}

/// Most curves on a trial's page.
const CURVES_MOST: usize = 8;

#[derive(Serialize)]
struct TrialDocument {
    trial: TrialDetails,
    #[serde(skip_serializing_if = "Option::is_none")]
    series: Option<Vec<PrintedSeries>>,
}

/// A series with its points.
#[derive(Serialize)]
struct PrintedSeries {
    key: String,
    rank: Rank,
    points: Vec<SeriesPoint>,
}

/// A point. If attempts overlap, the last one counts.
#[derive(Serialize)]
struct SeriesPoint {
    step: u64,
    at_ms: u64,
    #[serde(with = "dtrain_protocol::non_finite")]
    value: f64,
}

/// Returns the series that `--series` names; `None` without it.
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
    let keys = super::export::keys(history, std::slice::from_ref(&trial.row), &patterns)?;
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

/// Shows all details of one trial.
pub(crate) fn show(context: &Context, name: &str, args: &ShowArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let mut trial = trials::trial(context, &history, name)?;
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
        let named = named.filter(|key| !is_own_series(key));
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
        S::Running => format!("dtrain attach {label}"),
        S::Lost | S::Stopped | S::Failed | S::Created => format!("dtrain resume {label}"),
        S::Completed | S::Pruned | S::OutOfMemory | S::Diverged => "dtrain history".to_owned(),
    });
    Ok(ExitReason::Done)
}

/// Leaves out checkpoints on this machine that retention has removed. Those on other hosts cannot be checked
/// without a connection.
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

//! `dtrain report`: writes an HTML page about a trial, several trials, or a study.

mod study;

use crate::args::ReportArgs;
use crate::command_error::{CommandError, CommandResult};
use crate::context::Context;
use crate::exit_code::ExitReason;
use crate::output::shell_quoted;
use crate::plan_file::save;
use crate::render::html::{
    ChartedTrial, ComparedTrials, MetricCurve, comparison_page, study_page, trial_page,
};
use crate::run_trial::record_finished_trials;
use crate::trials::{self, history_failure};
use dtrain_protocol::TrialId;
use dtrain_recipes::name::file_name;
use dtrain_runner::compare::compare;
use dtrain_runner::ledger::History;
use serde::Serialize;
use std::path::PathBuf;

/// Names of series that the report shows by rank or in a table, not as curves.
const DETAILS: [&str; 13] = [
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "communication_seconds",
    "bubble_seconds",
    "optimizer_seconds",
    "sent_bytes",
    "weights_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "elapsed",
    "gradient_signal",
    "gradient_noise",
];

/// Names of series whose curves come last, after those of named metrics.
const LAST: [&str; 7] = [
    "learning_rate",
    "gradient_norm",
    "tokens_per_second",
    "step_seconds",
    "memory_bytes",
    "save.stall_seconds",
    "validation_seconds",
];

/// JSON document that `dtrain report --json` prints.
#[derive(Serialize)]
struct WrittenPage {
    file: PathBuf,
    bytes: usize,
}

/// Writes the report as an HTML file.
pub(crate) fn run(context: &Context, args: &ReportArgs) -> CommandResult {
    record_finished_trials(context);
    let history = trials::read_history(context)?;
    let (name, page, next) = match (&args.study, args.trials.as_slice()) {
        (Some(name), _) => {
            let page = study_page(&study::read_study(context, &history, name)?);
            (name.clone(), page, format!("dtrain history --where {}", shell_quoted(format!("study={name}"))))
        }
        (None, trials) => trials_page(context, &history, trials)?,
    };
    let file = args.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.html", file_name(&name))));
    save(&file, &page)?;
    if context.out.json {
        context.out.json("report", &WrittenPage { file, bytes: page.len() })?;
    } else {
        context.out.data(&file.display().to_string())?;
    }
    context.out.next(&next);
    Ok(ExitReason::Done)
}

/// Returns name, page and suggested next command for a report about one trial or several.
fn trials_page(
    context: &Context,
    history: &History,
    names: &[String],
) -> Result<(String, String, String), CommandError> {
    let last = ["last".to_owned()];
    let names = if names.is_empty() { &last } else { names };
    let mut ids: Vec<TrialId> = Vec::new();
    for name in names {
        let id = find(history, name)?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let shown: Vec<ChartedTrial> =
        ids.iter().map(|id| charted_trial(context, history, id)).collect::<Result<_, _>>()?;
    if let [one] = shown.as_slice() {
        let label = one.trial.row.label.clone();
        return Ok((label.clone(), trial_page(one), format!("dtrain show {label}")));
    }
    let comparison = compare(history, &ids, &[], &|id| trials::activity(context, id))
        .map_err(|error| history_failure(&error))?;
    let labels: Vec<String> = shown.iter().map(|shown| shown.trial.row.label.clone()).collect();
    let name = match labels.as_slice() {
        [a, b] => format!("{a}-and-{b}"),
        _ => format!("{}-and-{}-more", labels[0], labels.len() - 1),
    };
    let next = format!("dtrain compare {} {}", labels[0], labels[1]);
    Ok((name, comparison_page(&ComparedTrials { comparison, trials: shown }), next))
}

/// Finds the trial that the user named; the error for a study's name suggests `--study`.
fn find(history: &History, name: &str) -> Result<TrialId, CommandError> {
    trials::find(history, name).map_err(|failure| match history.study(name) {
        Ok(Some(_)) => failure.hint(format!("`dtrain report --study {name}` tells of the study")),
        Ok(None) | Err(_) => failure,
    })
}

/// Reads a trial with its curves, in order: the objective, losses and metrics by name, all others.
fn charted_trial(context: &Context, history: &History, id: &TrialId) -> Result<ChartedTrial, CommandError> {
    let trial =
        history.trial(id, &|id| trials::activity(context, id)).map_err(|error| history_failure(&error))?;
    let names = history.series_names(id).map_err(|error| history_failure(&error))?;
    let mut keys: Vec<String> =
        names.into_iter().map(|(key, _)| key).filter(|key| !DETAILS.contains(&key.as_str())).collect();
    keys.dedup();
    let order = |key: &String| {
        let last = LAST.iter().position(|last| last == key).map_or(0, |place| place + 1);
        (last, *key != trial.row.objective, key != "loss", !key.starts_with("valid."), key.clone())
    };
    keys.sort_by_key(order);
    let curves = keys
        .into_iter()
        .map(|key| {
            let attempts = history.curve_by_attempt(id, &key).map_err(|error| history_failure(&error))?;
            let attempts = attempts.into_iter().map(|(attempt, samples)| (attempt.0, samples)).collect();
            Ok(MetricCurve { key, attempts })
        })
        .collect::<Result<_, CommandError>>()?;
    let typical = history.typical_steps(id).map_err(|error| history_failure(&error))?;
    Ok(ChartedTrial { trial, typical, curves, now_ms: context.out.style().now_ms })
}
